"""What a convolution costs on a GPU: time, power and energy, layer by layer, for each algorithm.

The modules stand in one flat row; each imports only modules above it in the list of README.md.
"""

__version__ = "0.1.0"
