"""What a convolution computes: its sizes, the tiles that a plan computes them in, and what its time consists of."""
