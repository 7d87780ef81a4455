"""Study of 3-D convolutions (`run_conv3d.py`)."""
