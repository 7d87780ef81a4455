"""Selection of an algorithm or plan for each convolution of a model, from samples and predictions."""
