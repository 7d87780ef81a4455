"""Study of one model with one algorithm over input sizes (`run_profile.py`)."""
