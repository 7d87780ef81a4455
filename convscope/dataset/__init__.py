"""Measured convolutions as one table: what a row says, data of others, and which rows are held back."""
