"""Convolutions of our own, in Triton: the only place that imports triton.

Each file is to be read from top to bottom: the idea, the loop in a few lines, the kernel, how it is launched.
3-D: `conv3d` names the nine files in their order, `conv3d_layout` has what they share, `conv3d_tuning` chooses blocks.
"""
