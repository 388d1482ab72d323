"""A site's answer to the query of a refinement."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from .._kernels.device_rows import in_memory
from .._kernels.linalg import orthonormality_error
from .._kernels.row_moments import SiteMoments
from .._kernels.tolerances import GIVEN_BASIS_TOL
from .._validation.arrays import in_numpy
from .._validation.checks import check_rows, check_weight, nonnegative_float
from .._validation.feature_names import check_same_names, names_of
from .._validation.texts import check_text
from ._checked import checked_arrays
from ._codec import ANSWER, InFiles
from ._refinement import products_of
from ._subspace import Subspace


@dataclass(frozen=True, eq=False)
class RefinementAnswer(InFiles):
    """What a site answers to `FederatedPCA.refinement_query`, for `FederatedPCA.refine_from`.

    Parameters
    ----------
    products : array-like of shape (k, d)
        The directions of the query times the scatter matrix of the site's rows about the mean of
        all rows.
    deviation : array-like of shape (d,)
        Sum of the rows less the mean of all.
    scatter : float
        Sum of squares of the rows less the mean of all.
    n_samples : float
        Weight of the rows.
    query : int
        Checksum of the directions that were asked about.
    site : str, default=None
        Who the rows belong to. Two answers of one site are refused.

    Raises
    ------
    ValueError
        If the fields do not fit together, or hold other values than finite numbers.

    Notes
    -----
    k d + d + 2 floats, of which the server needs the sums over sites. As `Subspace`, an answer is
    written without pickle, and may come from anybody.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import FederatedPCA, RefinementAnswer, StreamingPCA
    >>> X, y = load_digits(return_X_y=True)
    >>> parts = X[y < 5], X[y >= 5]
    >>> sites = [StreamingPCA(3, oversampling=2).fit(part).subspace_ for part in parts]
    >>> pca = FederatedPCA.from_subspaces(sites, 3)
    >>> query = pca.refinement_query()
    >>> answers = [RefinementAnswer.from_rows(query, part) for part in parts]
    >>> before = pca.explained_variance_.round()
    >>> before, pca.refine_from(answers).explained_variance_.round()
    (array([175., 160., 139.]), array([179., 164., 142.]))
    """

    _kind = ANSWER
    products: np.ndarray
    deviation: np.ndarray
    scatter: float
    n_samples: float
    query: int
    site: str | None = None

    def __post_init__(self):
        checked: dict[str, Any] = {
            **checked_arrays(ANSWER, vars(self)),
            "scatter": nonnegative_float("scatter", self.scatter),
            "n_samples": nonnegative_float("n_samples", self.n_samples),
            "query": int(self.query),
            "site": None if self.site is None else check_text("site", self.site),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def n_floats(self) -> int:
        """Floats that the answer carries."""
        return self.products.size + len(self.deviation) + 2

    @classmethod
    def from_rows(
        cls, query: Subspace, X: Any, *, sample_weight: Any = None, site: str | None = None
    ) -> RefinementAnswer:
        """Answer a query with the rows of a site.

        Parameters
        ----------
        query : Subspace
            Of `FederatedPCA.refinement_query`: orthonormal directions without variances. The answer
            tells its sender the product of the scatter matrix of the rows with each of them, so
            that a query of d directions asks for the scatter matrix.
        X : {array-like, sparse matrix} of shape (n, d)
            The rows that the site's summary is of.
        sample_weight : array-like of shape (n,), default=None
            Weight of each row, as in the summary; None: 1.
        site : str, default=None
            Who the rows belong to.

        Returns
        -------
        answer : RefinementAnswer
            From the number, mean and scatter matrix of the rows, in O(n d^2) time up to 2,048
            columns; above, from products of the rows about their own mean, with noise of 2^-40 of
            what an entry can be, in O(n d k) time.
        """
        return cls._from_batches(query, [(X, sample_weight)], site)

    @classmethod
    def _from_batches(
        cls, query: Subspace, batches: Iterable[tuple[Any, Any]], site: str | None
    ) -> RefinementAnswer:
        """Answer with the rows of all batches together; each comes with weights or None."""
        if not isinstance(query, Subspace):
            raise TypeError(f"query must be a Subspace, got {type(query).__name__}.")
        query = in_numpy(query)
        _check_question(query)
        own = SiteMoments.of_batches(_checked(query, X, weight) for X, weight in batches)
        if own is None:
            raise ValueError("X must hold at least one batch of rows, got none.")
        V = query.components.astype(np.float64)
        answer = products_of(own, query.mean, V)
        products, deviation, (scatter, count) = np.split(answer, [V.size, -2])
        return cls(products.reshape(V.shape), deviation, scatter, count, checksum(V), site)

    def vector(self) -> np.ndarray:
        """Return all numbers one after the other, of which those of several sites are added up.

        Returns
        -------
        vector : ndarray of shape (n_floats,)
            Products, deviation, scatter and weight.
        """
        return np.concatenate(
            [self.products.ravel(), self.deviation, [self.scatter, self.n_samples]]
        )

    def _replace(self, **changes: Any) -> RefinementAnswer:
        return replace(self, **changes)

    def _head(self) -> tuple[int, dict[str, Any]]:
        k, d = self.products.shape
        sums = {"scatter": self.scatter, "n_samples": self.n_samples}
        return 0, {"query": self.query, "k": k, "d": d, **sums}

    def _labels(self) -> bytes:
        return (self.site or "").encode()

    def _stored(self) -> dict[str, np.ndarray]:
        return {"products": self.products, "deviation": self.deviation}

    @classmethod
    def _read(cls, found: dict[str, Any]) -> RefinementAnswer:
        return cls(**{field.name: found[field.name] for field in fields(cls)})


def _check_question(query: Subspace) -> None:
    """Raise unless a summary asks about directions, as `refinement_query` does."""
    if query.singular_values.any():
        raise ValueError(
            "query must ask about directions without variances, got singular values: it is a "
            "model, or the query of a round that fills rows in (FillAnswer, answer --fill)."
        )
    error = orthonormality_error(query.components.astype(np.float64))
    if not error <= GIVEN_BASIS_TOL:
        raise ValueError(f"query must have orthonormal components, they are off by {error:.1e}.")


def _checked(query: Subspace, X: Any, sample_weight: Any) -> tuple[Any, np.ndarray | None]:
    """Rows with the columns of a query, in memory, and their weights."""
    check_same_names(query.feature_names, names_of(X), "X")
    X = check_rows(X)
    if X.shape[1] != query.n_features:
        raise ValueError(f"X has {X.shape[1]} features, expected {query.n_features}.")
    return in_memory(X), check_weight(sample_weight, X.shape[0])


def checksum(directions: np.ndarray) -> int:
    """Tells the directions of one query from those of another."""
    return zlib.crc32(np.ascontiguousarray(directions, "<f8").tobytes())
