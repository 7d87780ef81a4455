"""Convolutions of our own, in Triton, for what cuDNN does not have: the only place that imports triton.

`direct` and `winograd` are the kernels, each file to be read from top to bottom; `tuning` chooses their block shapes on
the card at hand and remembers the choice; `plan` is what `swap.Engine` holds for a shape, beside cuDNN's own plans.
"""
