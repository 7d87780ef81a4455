"""Copies of input and filters in the order in which the 3-D kernels read them."""
