"""The subspace summary, and functions that make one from rows or from other summaries."""

from ._merging import merge_subspaces
from ._pair_moments import PairMoments
from ._rank_selection import ParallelAnalysis, n_components_by, parallel_analysis
from ._subspace import Subspace

__all__ = [
    "PairMoments",
    "ParallelAnalysis",
    "Subspace",
    "merge_subspaces",
    "n_components_by",
    "parallel_analysis",
]
