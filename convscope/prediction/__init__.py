"""Prediction of a convolution's time or energy from measured ones, with intervals that are checked."""
