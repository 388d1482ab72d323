"""Rounds of `PersonalizedPCA`: sums of products; a site's own components stay there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._dask import is_dask
from .._kernels.row_moments import RowsAtHand
from .._kernels.rows import centred_product, scatter_product
from .._validation.checks import check_integer, check_rows
from ..communication import Federation
from ..summary import Subspace
from ..summary._along import along
from ..summary._merging import pooled_moments
from ..summary._refinement import check_same_rows, products_of
from ._clients import StreamingClientsTransformer, rows_of
from ._local_fit import Site
from ._shared_and_local import beyond, improved, outside

# Label, rows and weights of a site.
Part = tuple[Any, Any, np.ndarray | None]


@dataclass(frozen=True)
class SiteScatter:
    """Scatter matrix of a site's rows about its mean, of which only products are formed.

    The rows are in units of ``unit``, so that squares neither overflow nor underflow.
    """

    rows: Any
    weight: np.ndarray | None
    mean: np.ndarray
    unit: float
    squares: float

    def multiply(self, B: np.ndarray) -> np.ndarray:
        """``B S``, for directions as rows of B."""
        return scatter_product(self.rows, self.mean, B / self.unit, self.weight) / self.unit

    def gram(self, B: np.ndarray) -> np.ndarray:
        """``B S B^T``."""
        inner = centred_product(self.rows, self.mean, B.T / self.unit)
        return (inner if self.weight is None else self.weight[:, None] * inner).T @ inner


class PersonalRounds:
    """Rounds that improve shared components, and those of each site, on the rows themselves.

    They are the alternations of `shared_and_local`. The server has the shared components V, and
    receives sums over the sites: ``V P S P``, and then ``B P S P B^T`` in the span B of V and of
    that, with the scatter matrix S of a site and P beyond the site's own components, which the
    site improves before. The objective never gets worse.

    Parameters
    ----------
    federation : Federation
        Which adds up what sites send.
    parts : sequence of tuple (label, rows, weight)
        The sites.
    summaries : mapping
        Label -> summary of these rows; with exact count, mean and scatter.
    V : ndarray of shape (r, d)
        Shared components to start with.
    local : mapping
        Label -> components of the site.
    """

    def __init__(
        self,
        federation: Federation,
        parts: Sequence[Part],
        summaries: Mapping[Any, Subspace],
        V: np.ndarray,
        local: Mapping[Any, np.ndarray],
    ):
        self._federation, self._parts = federation, parts
        self._summaries = summaries
        largest = max(float(s.singular_values.max(initial=0.0)) for s in summaries.values())
        self.unit = largest or 1.0
        self.squares = sum(s.scatter / self.unit / self.unit for s in summaries.values())
        self.V = V.astype(np.float64)
        self.local = {label: W.astype(np.float64) for label, W in local.items()}
        list(federation.map(_check, self._calls()))

    def _calls(self, *more: Any) -> list[tuple]:
        return [
            (label, rows, weight, self._summaries[label], *more)
            for label, rows, weight in self._parts
        ]

    def _private(self, *more: Any) -> list[tuple]:
        """Calls with what a site keeps for itself."""
        calls = self._calls(self.unit, *more)
        return [(*call, self.local[call[0]]) for call in calls]

    def improve(self) -> None:
        """One alternation."""
        self._improve_local()
        self.V = improved(self, self.V)
        self.local = {label: outside(W, self.V) for label, W in self.local.items()}

    def _improve_local(self) -> None:
        found = self._federation.map(_own, self._private(self.V))
        self.local = dict(zip(self.local, found, strict=True))

    def finish(self) -> np.ndarray:
        """Improve the sites' own components once more; a factor of the scatter along V."""
        self._improve_local()
        values, Y = np.linalg.eigh(self.gram(self.V))
        return self.unit * np.sqrt(np.maximum(values, 0))[:, None] * Y.T

    # the sum of all sites' matrices P S P, of which only products are sent

    def multiply(self, B: np.ndarray) -> np.ndarray:
        """``B`` times the sum."""
        return self._sum(_products, B, B)

    def gram(self, B: np.ndarray) -> np.ndarray:
        """``B`` times the sum times ``B^T``."""
        return self._sum(_gram, B, B[len(self.V) :])

    def _sum(self, function: Callable, B: np.ndarray, new: np.ndarray) -> np.ndarray:
        total = self._federation.sum(function, self._private(B), new)
        assert total is not None  # all sites are there
        return total


class PersonalRoundsMixin(StreamingClientsTransformer):
    """Refine shared and own components that come from summaries."""

    n_components: int | float | str | None
    components_: np.ndarray
    local_components_: dict[Any, np.ndarray]
    site_means_: dict[Any, np.ndarray]
    n_refinements_: int
    _clients: dict[Any, Site]

    def refine(
        self, X: Any, clients: Any = None, sample_weight: Any = None, *, n_rounds: int = 1
    ) -> Any:
        """Bring both kinds of components closer to those of whole rows, by rounds of sums.

        Where sites cut their summaries, components are those of what they sent. In a round each
        site improves its own components on its rows, and the shared ones are improved by sums over
        all sites. Those of a site stay there, other than in `fit`. No round makes the sum of
        squares outside the components larger. Mean, count and scatter, which are exact, stay.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            All rows of the fit, also those of earlier calls of `partial_fit`.
        clients : array-like of shape (n,) or str, default=None
            Label of the site that owns each row, as in `fit`.
        sample_weight : array-like of shape (n,), default=None
            Those of the fit.
        n_rounds : int, default=1
            Rounds.

        Returns
        -------
        self : PersonalizedPCA
            Unchanged if an error is raised; without sites that came by `adapt`. A later
            `partial_fit` merges the summaries anew, without the rounds.

        Raises
        ------
        ValueError
            If the rows of a site have another weight, mean or sum of squares than in the fit.

        Notes
        -----
        In a round of r shared components a site receives 2 r d floats and sends r d + 4 r^2; at the
        end it sends r^2. Its work is O(n_i d (r + q)).

        Examples
        --------
        >>> import numpy as np
        >>> from fedpca_sklearn import PersonalizedPCA, make_spiked, subspace_distance
        >>> X, V = make_spiked(4000, 400, spikes=(8, 6, 5), random_state=0)
        >>> sites = np.arange(4000) // 500
        >>> pca = PersonalizedPCA(3, 1).fit(X, clients=sites)
        >>> before = subspace_distance(pca.components_, V)
        >>> pca = pca.refine(X, clients=sites, n_rounds=3)
        >>> subspace_distance(pca.components_, V) < before
        True
        """
        check_is_fitted(self)
        if is_dask(X):
            raise TypeError("X is of Dask, whose rows refine does not take here; X.compute() does.")
        with self._unchanged_on_error():
            self._check_parameters()
            check_integer("n_rounds", n_rounds)
            X, weight, shards = self._shards(X, clients, sample_weight)
            self._check_sites([label for label, _ in shards])
            self.communication_ = self.communication_.copy()
            federation = Federation(self.n_jobs, log=self.communication_)
            pooled = self.communication_.floats_pooled
            summaries = {label: self._clients[label].summary for label, _ in shards}
            local = {label: self.local_components_[label] for label, _ in shards}
            parts = list(rows_of(X, weight, shards))
            rounds = PersonalRounds(federation, parts, summaries, self.components_, local)
            for _ in range(n_rounds):
                rounds.improve()
            total, corrections = pooled_moments(list(summaries.values()))
            factor = np.concatenate([rounds.finish(), corrections @ rounds.V.T])
            self.communication_.floats_pooled = pooled  # no rows but those of the fit
            self._set_fitted(along(total, rounds.V, factor), self.n_components, self.n_samples_)
            self.local_components_ = rounds.local
            self.site_means_ = {label: summary.mean for label, summary in summaries.items()}
            self.n_refinements_ += n_rounds
        return self

    def _check_sites(self, labels: Sequence[Any]) -> None:
        """Raise unless these are the sites of the fit."""
        for label in labels:
            if label not in self._clients:
                raise ValueError(f"clients must be sites of the fit, got {label!r}.")
        for label in self._clients:
            if label not in labels:
                raise ValueError(
                    f"X must hold the rows of all sites of the fit; of {label!r} none."
                )


def _check(label: Any, rows: Any, weight: Any, summary: Subspace) -> None:
    """Raise unless a site's rows are those of its summary."""
    none = np.empty((0, summary.n_features))
    answer = products_of(RowsAtHand(check_rows(rows), weight), summary.mean, none, weight)
    check_same_rows(summary, answer[-1], answer[:-2], answer[-2])


def _scatter(rows: Any, weight: Any, summary: Subspace, unit: float) -> SiteScatter:
    squares = summary.scatter / unit / unit
    return SiteScatter(check_rows(rows), weight, summary.mean, unit, squares)


def _own(label, rows, weight, summary, unit, V, W) -> np.ndarray:
    """A site's own components, improved outside the shared ones."""
    return improved(_scatter(rows, weight, summary, unit), W, V)


def _products(label, rows, weight, summary, unit, B, W) -> np.ndarray:
    return beyond(_scatter(rows, weight, summary, unit).multiply(beyond(B, W)), W)


def _gram(label, rows, weight, summary, unit, B, W) -> np.ndarray:
    return _scatter(rows, weight, summary, unit).gram(beyond(B, W))
