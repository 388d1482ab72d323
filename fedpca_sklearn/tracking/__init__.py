"""Subspace tracking from missing and corrupted data."""

from ._subspace_tracker import SubspaceTracker

__all__ = ["SubspaceTracker"]
