"""Fixtures of several files."""

from rounds_helpers import recorded

__all__ = ["recorded"]
