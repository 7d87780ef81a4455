"""The two estimates of a predictor: trees with what is the same for all algorithms (`core`), a Gaussian process."""
