"""The subspace summary, and functions that make one from rows or from other summaries."""

from ._answers import RefinementAnswer
from ._merging import merge_subspaces
from ._pair_moments import PairMoments
from ._subspace import Subspace

__all__ = ["PairMoments", "RefinementAnswer", "Subspace", "merge_subspaces"]
