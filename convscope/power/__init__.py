"""Watts to joules: sensors, sampling, windows with an uncertainty."""
