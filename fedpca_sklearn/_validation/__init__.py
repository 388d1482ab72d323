"""Checks of what comes from outside, and the names of columns."""
