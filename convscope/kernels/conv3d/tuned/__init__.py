"""Kernels and block shapes that the tuned 3-D kernel (`gemm`) chooses from."""
