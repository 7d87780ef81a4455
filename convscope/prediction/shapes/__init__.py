"""Sizes of convolutions, the tiles that a plan computes them in, and the parts of their time."""
