"""Subspace tracking from missing and corrupted data."""

from ._alternating_projections import AlternatingProjections
from ._outliers import OutlierSupport, projected_sparse_recovery
from ._robust_subspace_tracker import RobustSubspaceTracker
from ._stmiss import ChangeDetection, FirstSubspace
from ._subspace_tracker import SubspaceTracker

__all__ = [
    "AlternatingProjections",
    "ChangeDetection",
    "FirstSubspace",
    "OutlierSupport",
    "RobustSubspaceTracker",
    "SubspaceTracker",
    "projected_sparse_recovery",
]
