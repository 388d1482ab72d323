"""Fixtures of several files."""

from triangle_helpers import sites

__all__ = ["sites"]
