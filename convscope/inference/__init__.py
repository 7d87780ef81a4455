"""Study of inference engines (`run_inference.py`)."""
