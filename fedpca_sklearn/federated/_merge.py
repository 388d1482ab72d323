"""Merge strategies: how the summaries of clients become one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Integral
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from .._validation.too_large import largest_named
from ..summary import Subspace, merge_subspaces
from ..summary._merge_methods import MERGE_METHODS
from ..summary._merging import check_subspaces, directions_between, names_of_parts, weighted
from ..summary._updating import was_truncated

__all__ = ["MergeStrategy", "SubspaceMerge"]


class MergeStrategy(BaseEstimator, ABC):
    """Base of the merge strategies: parameters in ``__init__``, one method."""

    _parameter_constraints: dict = {}

    def validate(self) -> None:
        """Raise a ValueError that names a wrong parameter; estimators call it before they start."""
        self._validate_params()

    def directions_needed(self, n_components: int | float | None) -> int | float | None:
        """Directions that a client should send for a result of ``n_components``.

        Parameters
        ----------
        n_components : int, float or None
            Number of directions, or in (0, 1) the share of the scatter that they explain; None:
            all.

        Returns
        -------
        n_components : int, float or None
            The same for a client's summary; here as many as for the result.
        """
        return n_components

    def directions_kept(
        self, subspaces: Sequence[Subspace], n_components: int | float | None
    ) -> int | float | None:
        """Directions to request of `merge` for a model with ``n_components`` components.

        Parameters
        ----------
        subspaces : sequence of Subspace
            Summaries that are to be merged.
        n_components : int, float or None
            Number of directions, or in (0, 1) the share of the scatter that they explain; None:
            all.

        Returns
        -------
        n_components : int, float or None
            More than the caller shows where merges may follow; here as many.
        """
        return n_components

    @abstractmethod
    def merge(
        self,
        subspaces: Sequence[Subspace],
        n_components: int | float | None = None,
        *,
        weights: Any = None,
        between: int | float | None = None,
        record: Callable[..., None] | None = None,
        memory: list | None = None,
    ) -> Subspace:
        """Merge summaries of disjoint sets of rows.

        Parameters
        ----------
        subspaces : sequence of Subspace
            Summaries with the same number of features, one of each client.
        n_components : int, float or None, default=None
            Directions asked for, as in `merge_subspaces`.
        weights : array-like of shape (len(subspaces),), default=None
            Factor on the singular values of each summary; None: 1.
        between : int, float or None, default=None
            Directions that an inner node of a tree keeps of summaries that were cut before; of
            others it keeps all. None: ``n_components`` and extra ones. The result has
            ``n_components`` in any case.
        record : callable, default=None
            Called once per round with the list of the summaries that are sent in it and, unless
            the server takes them all, the list of who does.
        memory : list, default=None
            Kept by the caller from one merge to the next; a strategy may cache results in it.

        Returns
        -------
        subspace : Subspace
            Summary of all rows.
        """


class SubspaceMerge(MergeStrategy):
    """Merge of subspace summaries, flat or in a tree (Grammenos et al. 2020).

    Parameters
    ----------
    method : {"auto", "svd", "qr", "orthogonal", "gram"}, default="auto"
        See `merge_subspaces`.
    fan_in : int or None, default=None
        Summaries merged at each node of a tree with ceil(log_fan_in(s)) levels, the DASM levels of
        the paper. None: all at the server at once. Summaries from which nothing was cut are not
        cut within the tree either; of others extra directions are kept. The cut to
        ``n_components`` comes at the root.

    See Also
    --------
    FederatedPCA : Uses a strategy as its ``merge``.

    Notes
    -----
    A level of a tree with fan-in f costs O((f k)^2 d) a node; the server of a flat merge holds all
    s summaries, O(s k d), a node of the tree f of them, which have more directions up the tree
    where nothing has been cut.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import Subspace, SubspaceMerge
    >>> X = np.random.default_rng(0).standard_normal((60, 5))
    >>> sites = [Subspace.from_rows(X[i::7]) for i in range(7)]
    >>> for merge in SubspaceMerge(), SubspaceMerge("orthogonal", fan_in=2):
    ...     print(merge.merge(sites).singular_values.round(4))
    [9.5278 8.2219 7.9661 7.0829 5.4882]
    [9.5278 8.2219 7.9661 7.0829 5.4882]
    """

    _parameter_constraints: dict = {
        "method": [StrOptions(set(MERGE_METHODS))],
        "fan_in": [Interval(Integral, 2, None, closed="left"), None],
    }

    def __init__(self, method: str = "auto", fan_in: int | None = None):
        self.method = method
        self.fan_in = fan_in

    def directions_kept(
        self, subspaces: Sequence[Subspace], n_components: int | float | None
    ) -> int | float | None:
        """Extra directions, so that the result can be merged again."""
        return directions_between(subspaces, n_components)

    def merge(
        self,
        subspaces: Sequence[Subspace],
        n_components: int | float | None = None,
        *,
        weights: Any = None,
        between: int | float | None = None,
        record: Callable[..., None] | None = None,
        memory: list | None = None,
    ) -> Subspace:
        """Merge summaries level by level; see `MergeStrategy.merge`."""
        self.validate()
        nodes = weighted(check_subspaces(subspaces), weights)
        with largest_named(partial(names_of_parts, nodes), nodes):
            return self._up_the_tree(nodes, n_components, between, record, memory)

    def _up_the_tree(self, nodes, n_components, between, record, memory):
        fan_in = self.fan_in
        if between is None:
            between = directions_between(nodes, n_components)
        before = {(*map(id, group), kept): node for group, kept, node in memory or ()}
        if memory is not None:
            memory.clear()
        while fan_in is not None and len(nodes) > fan_in:
            groups = [nodes[i : i + fan_in] for i in range(0, len(nodes), fan_in)]
            # a node alone in its group waits for the next level
            sent = [(node, i) for i, group in enumerate(groups) if len(group) > 1 for node in group]
            if record is not None:
                record(*map(list, zip(*sent, strict=True)))
            nodes = [self._node(group, between, before, memory) for group in groups]
        if record is not None:
            record(nodes)
        return merge_subspaces(nodes, n_components, method=self.method)

    def _node(self, group, between, before, memory):
        """An inner node of the tree, or the one of the last merge if its children are the same."""
        if len(group) == 1:
            return group[0]
        key = (*map(id, group), between)
        node = before.get(key)
        if node is None:
            cut = between if any(map(was_truncated, group)) else None
            node = merge_subspaces(group, cut, method=self.method)
        if memory is not None:
            memory.append((group, between, node))
        return node
