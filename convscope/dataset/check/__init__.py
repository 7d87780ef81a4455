"""Checks of samples and of published data sets: schema, keys, splits, the card's limits, kernels."""
