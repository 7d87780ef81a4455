"""Collecting of a data set: convolutions of many models and sizes, measured group by group as `run_verify.py` does."""
