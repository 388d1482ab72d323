"""The subspace summary, and functions that make one from rows or from other summaries."""

from . import _elsewhere as _elsewhere  # says how a summary is shown in other libraries
from ._how_many import ParallelAnalysis, n_components_by, parallel_analysis
from ._merging import merge_subspaces
from ._pair_moments import PairMoments
from ._subspace import Subspace

__all__ = [
    "PairMoments",
    "ParallelAnalysis",
    "Subspace",
    "merge_subspaces",
    "n_components_by",
    "parallel_analysis",
]
