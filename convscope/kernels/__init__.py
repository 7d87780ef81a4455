"""Convolutions of our own, in Triton: the only place that imports triton.

Each file is to be read from top to bottom: the idea, the loop in a few lines, the kernel, how it is launched.

2-D, for what cuDNN does not have: `direct` and `winograd` are the kernels, `blocks` says how they may be cut, `plan` is
what `operator.CudaOperator` holds for a shape, beside cuDNN's own plans.

3-D: the package `conv3d`; its `catalogue` names the nine files in their order, `layout` has what they share,
`candidates` says how the ninth may be cut.

`autotune` chooses how either is cut, on the card at hand, and remembers the choice.
"""
