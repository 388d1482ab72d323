"""A site's answer about rows that are filled in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._base.sources import is_stream, iter_batches
from .._kernels.device_rows import in_memory
from .._validation.arrays import in_numpy
from .._validation.checks import check_rows, check_weight, float_array
from .._validation.feature_names import check_same_names, names_of
from ..streaming import StreamingPCA
from ..summary import Subspace
from ..summary._codec import FILL, InFiles
from ._conditional_fill import entries_of_client, filled_rows, with_covariance

__all__ = ["FillAnswer"]

# Share by which weights may differ that are sums of the same rows.
_SAME_WEIGHT = 1e-9


@dataclass(frozen=True, eq=False)
class FillAnswer(InFiles):
    """What a site with missing entries answers, where rows are filled in by what all sites say.

    The first is about no query, and tells means: `FederatedPCA.from_fills` takes those of all
    sites. Each later one is about `FederatedPCA.refinement_query`, and `FederatedPCA.refine_from`
    takes it: a round of `ConditionalFill`.

    Parameters
    ----------
    summary : Subspace
        Of the rows as they were filled in, about their mean, with the covariance of what is missing
        given the others of its row. Of the first answer without
        directions; its mean is that of the entries that are there.
    missing : array-like of shape (d,)
        Weight of the rows in which each column is missing.
    query : int
        Digest of what was asked; 0 for the first answer.

    Raises
    ------
    ValueError
        If the fields do not fit together, or hold other values than finite numbers.

    Notes
    -----
    k d + k + 3 d + 2 floats for k directions. As `Subspace`, an answer is written without pickle,
    and may come from anybody.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from fedpca_sklearn import ConditionalFill, FederatedPCA, FillAnswer
    >>> X, y = load_iris(return_X_y=True)
    >>> X[np.random.default_rng(0).random(X.shape) < 0.2] = np.nan
    >>> sites = [X[y == kind] for kind in range(3)]
    >>> pca = FederatedPCA.from_fills([FillAnswer.from_rows(None, rows) for rows in sites], 2)
    >>> for _ in range(3):  # by the means, and twice by components
    ...     query = pca.refinement_query()
    ...     pca = pca.refine_from([FillAnswer.from_rows(query, rows) for rows in sites])
    >>> pca.explained_variance_.round(3)
    array([4.184, 0.257])
    >>> pca = FederatedPCA(2, missing=ConditionalFill(n_rounds=2)).fit(X, clients=y)
    >>> pca.explained_variance_.round(3)
    array([4.184, 0.257])
    """

    _kind = FILL
    summary: Subspace
    missing: np.ndarray
    query: int

    def __post_init__(self):
        if not isinstance(self.summary, Subspace):
            raise TypeError(f"summary must be a Subspace, got {type(self.summary).__name__}.")
        missing = float_array("missing", self.missing, 1, np.float64)
        n, d = self.summary.n_samples, self.summary.n_features
        if len(missing) != d or missing.min() < 0 or missing.max() > n * (1 + _SAME_WEIGHT):
            raise ValueError(
                f"missing must be {d} weights from 0 to n_samples={n:g}, got {missing}."
            )
        if not self.summary.centered:
            raise ValueError("summary must be about the mean of the rows, got centered=False.")
        object.__setattr__(self, "missing", missing)
        object.__setattr__(self, "query", int(self.query))

    @property
    def site(self) -> str | None:
        """Who the rows belong to."""
        return self.summary.site

    @property
    def entries(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the first answer: means of columns, and the weight of the entries that are there."""
        return self.summary.mean, np.maximum(self.summary.n_samples - self.missing, 0.0)

    @property
    def n_floats(self) -> int:
        """Floats that the answer carries."""
        return self.summary.n_floats + len(self.missing)

    @property
    def nbytes(self) -> int:
        """Length of `to_bytes`, without building it."""
        return self.summary.nbytes + 8 * (len(self.missing) + 1)

    @classmethod
    def from_rows(
        cls,
        query: Subspace | None,
        X: Any,
        n_components: int | float | None = None,
        *,
        sample_weight: Any = None,
        site: str | None = None,
    ) -> FillAnswer:
        """Answer with the rows of a site.

        Parameters
        ----------
        query : Subspace or None
            Of `FederatedPCA.refinement_query`: what missing entries are filled in by. None: no
            query, for the first answer.
        X : {array-like, sparse matrix} of shape (n, d) or iterable of these
            The rows, NaN where an entry is missing; the same for each answer. Of sparse rows the
            entries that are stored as NaN are missing.
        n_components : int, float or None, default=None
            Directions to send, as in `StreamingPCA`; None: all, which is exact.
        sample_weight : array-like of shape (n,), default=None
            Weight of each row; None: 1.
        site : str, default=None
            Who the rows belong to. Two answers of one site are refused.

        Returns
        -------
        answer : FillAnswer
            In O(n d k^2) time for a query of k directions, and that of a summary.

        Raises
        ------
        ValueError
            If the rows have other columns than the query, or no entry is in any of them.
        """
        names, X = _rows_with_holes(X)
        weight = check_weight(sample_weight, X.shape[0])
        means, there = entries_of_client(site, X, weight)
        total = float(X.shape[0] if weight is None else weight.sum())
        if query is None:
            asked, digest = means_only(means, total), 0
            kept: Any = 0
        else:
            asked = _checked_query(query, names, X.shape[1])
            digest, kept = digest_of(asked), n_components
        filled = filled_rows(X, asked)
        if kept == 0:
            summary = Subspace.from_rows(filled, 0, sample_weight=weight)._replace(mean=means)
        else:
            summary = StreamingPCA(kept).fit(filled, sample_weight=weight).subspace_
            summary = with_covariance(summary, X, weight, asked)
        summary = summary._named(names)
        missing = np.maximum(total - there, 0.0)
        return cls(summary if site is None else summary._replace(site=site), missing, digest)

    def _replace(self, **changes: Any) -> FillAnswer:
        if "site" in changes:
            changes["summary"] = self.summary._replace(site=changes.pop("site"))
        return replace(self, **changes)

    def _head(self) -> tuple[int, dict[str, Any]]:
        flags, numbers = self.summary._head()
        return flags, {**numbers, "query": self.query}

    def _labels(self) -> bytes:
        return self.summary._labels()

    def _stored(self) -> dict[str, np.ndarray]:
        return {**self.summary._stored(), "missing": self.missing}

    @classmethod
    def _read(cls, found: dict[str, Any]) -> FillAnswer:
        return cls(Subspace._read(found), found["missing"], found["query"])


def means_only(means: np.ndarray, n_samples: float) -> Subspace:
    """The query that fills rows in by means."""
    d = len(means)
    return Subspace(np.zeros((0, d)), np.zeros(0), means, n_samples, 0.0)


def digest_of(query: Subspace) -> int:
    """Tells one query from another; never 0."""
    sums = [query.n_samples, query.scatter]
    parts: list[Any] = [query.components.ravel(), query.singular_values, query.mean, sums]
    numbers = np.concatenate(parts).astype("<f8").tobytes()
    found = hashlib.blake2b(numbers, digest_size=8).digest()
    return int.from_bytes(found, "little") or 1


def _rows_with_holes(X: Any) -> tuple[Any, Any]:
    """Names of the columns, and checked rows in one piece."""
    parts = list(iter_batches(X)) if is_stream(X) else [X]
    if not parts:
        raise ValueError("X is a stream without batches; at least one row is required.")
    names = names_of(parts[0])
    for part in parts[1:]:
        check_same_names(names, names_of(part), "X")
    blocks: Any = [in_memory(check_rows(part, allow_nan=True)) for part in parts]
    if len(blocks) == 1:
        return names, blocks[0]
    if any(map(sp.issparse, blocks)):
        return names, sp.vstack(blocks, format="csr")
    return names, np.concatenate(blocks)


def _checked_query(query: Any, names: Any, d: int) -> Subspace:
    """A query that rows with d columns can be filled in by, or an error."""
    if not isinstance(query, Subspace):
        raise TypeError(f"query must be a Subspace or None, got {type(query).__name__}.")
    query = in_numpy(query)
    check_same_names(query.feature_names, names, "X")
    if query.n_features != d:
        raise ValueError(f"X has {d} features, expected {query.n_features}.")
    if not query.centered:
        raise ValueError("query must be about the mean of the rows, got centered=False.")
    if len(query.components) and query.scatter > 0 and not query.singular_values.any():
        raise ValueError(
            "query must have the variances by which rows are filled in, got none: it asks about "
            "directions (RefinementAnswer, answer without --fill)."
        )
    return query
