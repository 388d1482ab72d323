"""The subspace summary, and everything that makes one from rows or from others."""

from ._merging import merge_subspaces
from ._subspace import Subspace

__all__ = ["Subspace", "merge_subspaces"]
