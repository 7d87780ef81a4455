"""Winograd convolutions for 3×3 kernels: `transforms` is the algorithm, `fused` one kernel, `nonfused` three."""
