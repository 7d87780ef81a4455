"""Engine `fused-int8`: convolutions of a fused trace on numbers of 8 bits."""
