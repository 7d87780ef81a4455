"""Triton kernels of the engine `fused` for images with the channels last: pooling, depthwise, activations."""
