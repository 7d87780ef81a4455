"""Convolutions of 8-bit integers with the channels last, and the numbers that they stand for."""
