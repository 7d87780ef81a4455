"""Study of training steps (`run_training.py`)."""
