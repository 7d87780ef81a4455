"""Nine Triton kernels for 3-D convolutions, in tutorial order, and what they share."""
