"""Atlas of plans: every plan of cuDNN's graph API for a model's layers, raced in the whole model."""
