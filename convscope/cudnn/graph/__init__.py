"""cuDNN's graph API through ctypes: what it offers for a convolution, engine by engine and plan by plan."""
