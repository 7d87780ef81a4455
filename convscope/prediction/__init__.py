"""Prediction of a convolution's time, energy and workspace from measured ones, with intervals that are checked."""
