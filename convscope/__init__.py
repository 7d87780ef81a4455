"""Cost of a convolution on a GPU: time, power and energy, layer by layer, for each algorithm."""

__version__ = "0.1.0"
