"""Inference engines: each turns a PyTorch model into a runner."""
