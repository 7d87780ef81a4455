"""Convolutions fused with what follows them: batch normalisation folded, bias, addition and ReLU in one call."""
