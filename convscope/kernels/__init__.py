"""Convolution kernels in Triton: the only package that imports triton.

Each kernel's file is to be read from top to bottom: the idea, the loop in a few lines, the kernel, its launch.

2-D, for what cuDNN does not have: `direct` and the package `winograd` are the kernels, `blocks` their block shapes,
`catalogue` their names and plans.

3-D: the package `conv3d`; its `catalogue` names the nine kernels in their order, `layout` has what they share,
`candidates` the block shapes of the ninth.

`plan` has what the plans of both share: `autotune` chooses block shapes on the card and remembers them, then filters
are packed, once.
"""
