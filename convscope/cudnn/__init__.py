"""The cuDNN library through ctypes: shapes, descriptors, legacy algorithms; no torch."""
