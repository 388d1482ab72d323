"""Merging summaries of disjoint sets of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import scipy.linalg

from . import _linalg
from ._absorb import kept_directions, rank_for_fraction
from ._block_sizes import SMALL_DIMENSION
from ._checks import check_n_components, float_array
from ._feature_names import check_same_names
from ._update import DenseBlock
from .subspace import Subspace


def tighter_fraction(fraction: float) -> float:
    """Fraction to keep in parts, so that ``fraction`` can be reached by the whole."""
    return 1 - (1 - fraction) / 10


def directions_between(
    subspaces: Sequence[Subspace], n_components: int | float | None
) -> int | float | None:
    """Directions to keep while more merges follow: a number, a fraction, or None for all."""
    check_n_components(n_components, fraction=True)
    if n_components is None or not len(subspaces):
        return None
    if n_components < 1:
        return tighter_fraction(n_components)
    widest = max(s.n_components for s in subspaces)
    return max(widest, kept_directions(n_components, subspaces[0].n_features))


def _merge_svd(parts, corrections, max_keep):
    """Grammenos et al. (2020), Algorithm 4: SVD of the stacked, scaled bases."""
    M = _stack(parts, corrections)
    _, s, Vt = scipy.linalg.svd(M, full_matrices=False, check_finite=False)
    p = min(max_keep, _linalg.numerical_rank(s))
    return Vt[:p], s[:p]


def _merge_qr(parts, corrections, max_keep):
    """Grammenos et al. (2020), Algorithm 5: QR of the stack, then the SVD of its triangle."""
    return _linalg.top_right_singular(_stack(parts, corrections), lambda s: min(len(s), max_keep))


def _merge_gram(parts, corrections, max_keep, fallback=False):
    """Eigenvectors of the small side of the stack's Gram matrix."""
    M = _stack(parts, corrections)
    d = M.shape[1]
    block = DenseBlock(np.zeros((0, d)), np.zeros(0), np.zeros(d), 0.0, M, None, False)
    return block.reduce(max_keep, solver="auto" if fallback else "gram")


def _merge_auto(parts, corrections, max_keep):
    """The Gram method, with QR where its certificate fails."""
    return _merge_gram(parts, corrections, max_keep, fallback=True)


def _merge_orthogonal(parts, corrections, max_keep):
    """Grammenos et al. (2020), Algorithm 2: rotate within span(V1, what V2 adds to it).

    Each further summary is projected on the complement of the basis so far; a pivoted QR of the
    remainder leaves out what is dependent, so that the basis stays orthonormal for any ranks.
    """
    V, s = parts[0]
    for i in range(1, len(parts)):
        V2, s2 = parts[i]
        B = np.concatenate([s2[:, None] * V2, corrections[i - 1 : i]])
        C = B @ V.T
        rest = B - C @ V
        again = rest @ V.T
        rest -= again @ V
        C += again
        Q, R, order = scipy.linalg.qr(rest.T, mode="economic", pivoting=True, check_finite=False)
        scale = np.finfo(np.float64).eps * _linalg.RANK_EPS * np.linalg.norm(B)
        new = int(np.sum(np.abs(np.diag(R)) > scale))
        Q = Q[:, :new]
        if new:
            Q -= V.T @ (V @ Q)
            Q, T = scipy.linalg.qr(Q, mode="economic", check_finite=False)
            R = T @ R[:new]
        small = np.zeros((len(s) + len(B), len(s) + new))
        small[: len(s), : len(s)] = np.diag(s)
        small[len(s) :, : len(s)] = C
        small[len(s) + order, len(s) :] = R[:new].T
        _, s, Wt = np.linalg.svd(small, full_matrices=False)  # takes 1 x 0 as well
        p = _linalg.numerical_rank(s)
        V, s = Wt[:p] @ np.concatenate([V, Q.T]), s[:p]
    return V[:max_keep], s[:max_keep]


MERGE_METHODS: dict[str, Callable] = {
    "auto": _merge_auto,
    "gram": _merge_gram,
    "qr": _merge_qr,
    "svd": _merge_svd,
    "orthogonal": _merge_orthogonal,
}


def _stack(parts, corrections) -> np.ndarray:
    M = np.empty((sum(len(s) for _, s in parts) + len(corrections), corrections.shape[1]))
    at = 0
    for V, s in parts:
        np.multiply(s[:, None], V, out=M[at : at + len(s)])
        at += len(s)
    M[at:] = corrections
    return M


def check_subspaces(subspaces: Any) -> list[Subspace]:
    """Return a non-empty list of summaries that fit together, or raise."""
    if isinstance(subspaces, Subspace):
        raise TypeError("subspaces must be a sequence of Subspace objects, got one Subspace.")
    subspaces = list(subspaces)
    if not subspaces:
        raise ValueError("subspaces must hold at least one Subspace, got none.")
    for subspace in subspaces:
        if not isinstance(subspace, Subspace):
            raise TypeError(f"subspaces must be Subspace objects, got {type(subspace).__name__}.")
    first = subspaces[0]
    for i, subspace in enumerate(subspaces):
        if subspace.n_features != first.n_features:
            raise ValueError(
                f"subspaces[{i}] has {subspace.n_features} features, subspaces[0] has "
                f"{first.n_features}."
            )
        if subspace.centered != first.centered:
            raise ValueError("subspaces must be all centred or all not centred, got both.")
    known = next((i for i, s in enumerate(subspaces) if s.feature_names is not None), None)
    if known is not None:
        for i, subspace in enumerate(subspaces):
            who = f"subspaces[{i}], unlike subspaces[{known}],"
            check_same_names(subspaces[known].feature_names, subspace.feature_names, who)
    return subspaces


def merge_subspaces(
    subspaces: Sequence[Subspace],
    n_components: int | float | None = None,
    *,
    method: str = "auto",
    weights: Any = None,
    between: int | float | None = None,
) -> Subspace:
    """Merge summaries of disjoint sets of rows into the summary of all rows.

    Without truncation the result is exact, so order and grouping do not matter. The difference of
    the means is part of the merge.

    Parameters
    ----------
    subspaces : sequence of Subspace
        All of the same number of features, all centred or none; where feature names are known, of
        the same names in the same order.
    n_components : int, float or None, default=None
        Directions to keep; a float in (0, 1): as many as explain this fraction of the scatter;
        None: all.
    method : {"auto", "gram", "qr", "svd", "orthogonal"}, default="auto"
        "svd", "qr" and "orthogonal" are Algorithms 4, 5 and 2 of [1]_; "gram" takes
        eigenvectors of the small side of the stack's Gram matrix, several times faster, but
        resolves no singular value below 1e-7 of the largest; "auto" is "gram" with "qr" where
        the result is not certain to ten digits.
    weights : array-like of shape (len(subspaces),), default=None
        The factors lambda_i of [1]_: the singular values of summary i are multiplied by them,
        its count and scatter by their squares. The mean is weighted in the same way.
    between : int, float or None, default=None
        Directions to keep where a long list is merged group by group; None: ``n_components`` with
        oversampling, and no fewer than the widest summary has.

    Returns
    -------
    subspace : Subspace
        In float64 unless all inputs are float32.

    Raises
    ------
    ValueError
        If the list is empty or the summaries do not fit together.

    Notes
    -----
    Mean correction: Bai, Chan and Luk (2005), Theorem 1. Time O(R^2 d + R^3) for R directions in
    all, memory O(R d). Lists with many directions are merged group by group, with oversampling in
    between.

    References
    ----------
    .. [1] A. Grammenos, R. Mendoza-Smith, J. Crowcroft, C. Mascolo, "Federated principal component
       analysis", NeurIPS 2020.
    .. [2] Z.-J. Bai, R. Chan, F. Luk, "Principal component analysis for distributed data sets with
       updating", APPT 2005.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import Subspace, merge_subspaces
    >>> X = np.random.default_rng(0).standard_normal((30, 4)) * [4, 3, 2, 1] + 100
    >>> sites = [Subspace.from_rows(X[:1]), Subspace.from_rows(X[1:])]
    >>> merge_subspaces(sites).singular_values.round(3)
    array([20.332, 14.663, 10.487,  4.801])
    >>> np.linalg.svd(X - X.mean(axis=0), compute_uv=False).round(3)
    array([20.332, 14.663, 10.487,  4.801])
    """
    subspaces = check_subspaces(subspaces)
    if method not in MERGE_METHODS:
        raise ValueError(f"method must be one of {sorted(MERGE_METHODS)}, got {method!r}.")
    check_n_components(n_components, fraction=True)
    subspaces = weighted(subspaces, weights)
    first = subspaces[0]
    d = first.n_features
    dtype = np.result_type(*(s.components.dtype for s in subspaces))
    names = next((s.feature_names for s in subspaces if s.feature_names is not None), None)
    subspaces = [in_float64(s) for s in subspaces if s.n_samples > 0]
    if not subspaces:
        return Subspace.empty(d, centered=first.centered, dtype=dtype)._named(names)
    check_n_components(between, fraction=True, name="between")
    if between is None:
        between = directions_between(subspaces, n_components)
    bound = between if isinstance(between, Integral) else 0
    limit = 8 * d if d <= SMALL_DIMENSION else max(512, 4 * bound)
    result = subspaces[0]
    group, rows = [], result.n_components
    for i, subspace in enumerate(subspaces[1:], 2):
        group.append(subspace)
        rows += subspace.n_components + 1
        if rows >= limit or i == len(subspaces):
            result = _merge_group([result, *group], between, method)
            group, rows = [], result.n_components
    result = _cut(result, n_components)
    if result.site is not None or result.feature_names is not names:
        result = result._replace(feature_names=names, site=None)
    if dtype == np.float64:
        return result
    return result._replace(components=result.components.astype(dtype))


def weighted(subspaces: list[Subspace], weights: Any) -> list[Subspace]:
    """Multiply the singular values of each summary by its weight; None changes nothing."""
    if weights is None:
        return subspaces
    weights = float_array("weights", weights, 1, np.float64)
    if len(weights) != len(subspaces):
        raise ValueError(
            f"weights must have one value for each of {len(subspaces)} subspaces, "
            f"got {len(weights)}."
        )
    if np.any(weights < 0):
        raise ValueError(f"weights must be non-negative, got {weights.min()!r}.")
    return [s.decay(w * w) for s, w in zip(subspaces, weights, strict=True)]


def _cut(subspace: Subspace, n_components: int | float | None) -> Subspace:
    """Truncate to a number of directions or to a fraction of the scatter."""
    if n_components is None:
        return subspace
    if n_components < 1 and n_components > 0:
        s, scatter = subspace.singular_values, subspace.scatter
        n_components = rank_for_fraction(s, scatter, n_components)
    return subspace.truncate(n_components)


def in_float64(subspace: Subspace) -> Subspace:
    """The same summary with a basis that is orthonormal to the last digit of float64."""
    if subspace.components.dtype == np.float64:
        return subspace
    V = _linalg.orthonormalised(subspace.components.astype(np.float64))
    return subspace._replace(components=V)


def pooled_moments(subspaces: Sequence[Subspace]) -> tuple[Subspace, np.ndarray]:
    """Count, mean and scatter of all rows, without directions, and the mean corrections.

    The corrections are the rows that the scatter matrix about the common mean has beyond those
    about the means of the parts, all of which must hold rows.
    """
    first = subspaces[0]
    n, mean, scatter = first.n_samples, first.mean, first.scatter
    corrections = np.zeros((len(subspaces) - 1, first.n_features))
    with np.errstate(over="ignore", invalid="ignore"):
        if first.centered:
            for row, subspace in zip(corrections, subspaces[1:], strict=True):
                total = n + subspace.n_samples
                np.subtract(subspace.mean, mean, out=row)
                mean = mean + (subspace.n_samples / total) * row
                row *= math.sqrt((n / total) * subspace.n_samples)
                n = total
            scatter += float(np.einsum("ij,ij->", corrections, corrections))
        else:
            n += sum(s.n_samples for s in subspaces[1:])
    scatter += sum(s.scatter for s in subspaces[1:])
    if not (math.isfinite(scatter) and math.isfinite(n)):
        raise ValueError(
            "subspaces hold values that are too large to merge: the sum of their squares or of "
            "their counts is not finite."
        )
    dtype = np.result_type(*(s.components.dtype for s in subspaces))
    empty = np.zeros((0, first.n_features), dtype)
    return Subspace._trusted(empty, np.zeros(0), mean, n, scatter, first.centered), corrections


def _merge_group(
    subspaces: list[Subspace], n_components: int | float | None, method: str
) -> Subspace:
    """One merge of summaries that all hold rows, all in float64."""
    total, corrections = pooled_moments(subspaces)
    parts = [(s.components, s.singular_values) for s in subspaces]
    max_keep = n_components if isinstance(n_components, Integral) else total.n_features
    V, s = MERGE_METHODS[method](parts, corrections, max_keep)
    V = _linalg.flip_signs(np.array(V, order="C"))
    return _cut(total._replace(components=V, singular_values=s.copy()), n_components)
