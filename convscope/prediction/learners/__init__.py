"""Estimates of a predictor, trees (`core`) and a Gaussian process, and the baselines that it is compared with."""
