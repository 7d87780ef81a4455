"""Study of the algorithm that really ran (`run_verify.py`): evidence, verdict, support, choice, plans."""
