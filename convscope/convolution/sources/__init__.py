"""Sources of models: each builds a model, makes its inputs, and has a digest of its code."""
