"""Rows that do not belong: limits, monitors, drift."""

from ._subspace_monitor import SubspaceMonitor

__all__ = ["SubspaceMonitor"]
