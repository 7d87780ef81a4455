"""Libraries that compute a convolution on a GPU: cuDNN by its legacy calls and its graph API, Triton, PyTorch."""
