"""A network's convolutions: layers, models, algorithms, the operator that runs them, references and limits."""
