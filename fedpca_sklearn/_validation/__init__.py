"""Validation of input, and the names of columns."""
