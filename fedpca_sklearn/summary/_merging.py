"""Merging summaries of disjoint sets of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from .._kernels import linalg
from .._kernels.scatter import add_rows
from .._kernels.sizes import (
    EXACT_ORDER,
    MAX_EXACT_DIMENSION,
    SMALL_DIMENSION,
    kept_directions,
    rank_for_fraction,
)
from .._kernels.threads import TINY_CALL, threads_for
from .._kernels.too_large import TooLargeError, largest_named
from .._validation.arrays import ArrayNamespace, namespace_among
from .._validation.checks import check_n_components, float_array, is_integer, plain_integer
from .._validation.containers import check_same_names, names_known
from ._directions import MERGE_METHODS, Cut, stack
from ._exact import Factor, ScatterMatrix, added
from ._provenance import check_each_site_once, pooled_privacy, pooled_sites
from ._subspace import Subspace
from ._updating import unit_of, was_truncated

# Directions that are stacked at once: so many for each feature, and so many at least.
_ROWS_PER_FEATURE = 4
_ROWS_AT_ONCE = 1024
# So many times the directions of a part may be merged at once.
_WIDTHS = 32


def tighter_fraction(fraction: float) -> float:
    """Fraction to keep in parts, so that ``fraction`` can be reached by the whole."""
    return 1 - (1 - fraction) / 10


def directions_between(
    subspaces: Sequence[Subspace], n_components: int | float | None
) -> int | float | None:
    """Directions to keep where more merges may follow: a number, a fraction, or None for all."""
    check_n_components(n_components, fraction=True)
    if n_components is None or not len(subspaces):
        return None
    d = subspaces[0].n_features
    if not is_integer(n_components) or n_components < 1:
        return None if d <= SMALL_DIMENSION else tighter_fraction(n_components)
    kept = kept_directions(n_components, d)
    return kept if kept >= d else max(kept, *[s.n_components for s in subspaces])


def names_of_parts(subspaces: Sequence[Subspace]) -> list[str]:
    """Names of the summaries of a list in errors: position, and site if it is known."""
    return [
        f"subspaces[{i}]" + (f" (site {s.site!r})" if s.site is not None else "")
        for i, s in enumerate(subspaces)
    ]


def check_subspaces(subspaces: Any) -> list[Subspace]:
    """Return a non-empty list of summaries that fit together, in numpy, or raise."""
    return checked_with_namespace(subspaces)[0]


def checked_with_namespace(subspaces: Any) -> tuple[list[Subspace], ArrayNamespace | None]:
    """What `check_subspaces` returns, and where the first is that has arrays of another library."""
    if not isinstance(subspaces, Iterable):
        kind = type(subspaces).__name__
        raise TypeError(f"subspaces must be a sequence of Subspace objects, got one {kind}.")
    subspaces = list(subspaces)
    if not subspaces:
        raise ValueError("subspaces must hold at least one Subspace, got none.")
    for i, subspace in enumerate(subspaces):
        if not isinstance(subspace, Subspace):
            kind = type(subspace).__name__
            raise TypeError(f"subspaces must be Subspace objects, got {kind} as subspaces[{i}].")
    namespace = namespace_among(subspaces)
    if namespace is not None:
        subspaces = [subspace._in_numpy() for subspace in subspaces]
    # what is made of a summary is not the model that its file is of
    subspaces = [s if s.model is None else s._replace(model=None) for s in subspaces]
    first, d = subspaces[0], len(subspaces[0].mean)
    for i, subspace in enumerate(subspaces):
        if len(subspace.mean) != d:
            who = names_of_parts(subspaces)
            unlike = f"{who[i]}, unlike {who[0]},"
            check_same_names(first.feature_names, subspace.feature_names, unlike)
            raise ValueError(f"{who[i]} has {len(subspace.mean)} features, {who[0]} has {d}.")
        if subspace.centered != first.centered:
            who = names_of_parts(subspaces)
            raise ValueError(
                "subspaces must be all centred or all not centred, got both: "
                f"{who[0]} has centered={first.centered}, {who[i]} does not."
            )
    known = next((i for i, s in enumerate(subspaces) if s.feature_names is not None), None)
    if known is not None:
        who = names_of_parts(subspaces)
        for i, subspace in enumerate(subspaces):
            check_same_names(
                subspaces[known].feature_names,
                subspace.feature_names,
                f"{who[i]}, unlike {who[known]},",
            )
    check_each_site_once(subspaces)
    return subspaces, namespace


def merge_subspaces(
    subspaces: Sequence[Subspace],
    n_components: int | float | None = None,
    *,
    method: str = "auto",
    weights: Any = None,
) -> Subspace:
    """Merge summaries of disjoint sets of rows into the summary of all rows.

    Where nothing was cut from the summaries the result is exact, in any order and grouping: only
    ``n_components`` cuts, at the end. The difference of the means is part of the merge. The result
    has the sites of all, and states about privacy what holds for every row, if all state something:
    the largest epsilon and delta, as a row is in one summary and the others do not depend on it.

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

    Returns
    -------
    subspace : Subspace
        In float64 unless all inputs are float32.

    Raises
    ------
    ValueError
        If the list is empty or the summaries do not fit together, or if a site is in two of them.

    Warns
    -----
    UserWarning
        If some summaries have a site and others, not empty, have none.

    Notes
    -----
    Mean correction: Bai, Chan and Luk (2005), Theorem 1. With R directions in all, and m the
    smaller of R and d: time O(R m d + m^3), memory O(m d) beyond the summaries. A list of more than
    4 d directions (and 1,024) passes through a d x d matrix, a few rows at a time.

    Summaries that have been cut already are merged by groups, with oversampling in between, where
    m exceeds 2,048, and 32 times the directions of one, and ``n_components`` is given. For 20 of 45
    directions of each of 60 sites with 3,000 features, that is off by a sine of 0.003 where
    variances fall like 1 / i, and of 0.05 where they fall like 1 / sqrt(i) (``bench accuracy``).
    Summaries from which nothing was cut are merged at once.

    References
    ----------
    .. [1] A. Grammenos, R. Mendoza-Smith, C. Mascolo, J. Crowcroft, "Federated PCA with adaptive
       rank estimation", arXiv:1907.08059v1, 2019.
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
    subspaces, namespace = checked_with_namespace(subspaces)
    if not (isinstance(method, str) and method in MERGE_METHODS):
        raise ValueError(f"method must be one of {sorted(MERGE_METHODS)}, got {method!r}.")
    check_n_components(n_components, fraction=True)
    subspaces, n_components = weighted(subspaces, weights), plain_integer(n_components)
    with largest_named(partial(names_of_parts, subspaces), subspaces):
        result = merged_rows(subspaces, lambda parts: merged_parts(parts, n_components, method))
    return result if namespace is None else result._shown_in(namespace)


def merged_parts(
    parts: list[Subspace], n_components: int | float | None, method: str = "auto"
) -> Subspace:
    """Merge of summaries that fit together, hold rows and are in float64."""
    unit = unit_of(max([s.n_samples for s in parts]))
    if unit < 1:
        parts = [s.decay(1 / unit) for s in parts]
        return merged_parts(parts, n_components, method).decay(unit)
    with threads_of_merge(parts):
        return _cut(_in_steps(parts, n_components, method), n_components)


def threads_of_merge(subspaces: Sequence[Subspace]) -> AbstractContextManager[None]:
    """One BLAS thread where few directions of few features are merged."""
    k = d = len(subspaces[0].mean)
    if ScatterMatrix not in [type(s._leading) for s in subspaces]:
        k = min(d, sum([s.n_components for s in subspaces]))
    return threads_for(16 * d * k, TINY_CALL)


def merged_rows(
    subspaces: Sequence[Subspace], merge: Callable[[list[Subspace]], Subspace]
) -> Subspace:
    """Result of ``merge`` for the summaries that hold rows, in float64; an empty one without any.

    The column names and the dtype of the result are those of all, the empty ones included. What is
    stated of privacy holds for all parts, as the choice of some depends on the others, and the
    sites are those of all unless ``merge`` says whose rows it has taken.
    """
    first = subspaces[0]
    dtypes, names = [s._dtype for s in subspaces], names_known(subspaces)
    dtype = np.result_type(*dtypes)
    parts = [s for s in subspaces if s.n_samples > 0]
    if np.float32 in dtypes:
        parts = [in_float64(s) for s in parts]
    if not parts:
        return Subspace.empty(first.n_features, centered=first.centered, dtype=dtype)._named(names)
    result = merge(parts)._named(names)
    stated, sites = parts[0].privacy and pooled_privacy(parts), result.sites or pooled_sites(parts)
    if stated != result.privacy or sites != result.sites:  # who was left out was looked at
        result = result._replace(privacy=stated, sites=sites)
    if result._dtype == dtype:
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
    weighted = []
    for i, (subspace, weight) in enumerate(zip(subspaces, weights, strict=True)):
        try:
            weighted.append(subspace.decay(weight * weight))
        except ValueError as error:
            raise ValueError(f"{names_of_parts(subspaces)[i]}: {error}") from None
    return weighted


def _cut(subspace: Subspace, n_components: int | float | None) -> Subspace:
    """Truncate to a number of directions or to a fraction of the scatter."""
    if n_components is None:
        return subspace
    if is_integer(n_components):
        return subspace.truncate(n_components)
    s, scatter = subspace.singular_values, subspace.scatter
    return subspace.truncate(rank_for_fraction(s, scatter, n_components))


def in_float64(subspace: Subspace) -> Subspace:
    """The same summary with a basis that is orthonormal to the last digit of float64."""
    if subspace._dtype == np.float64:
        return subspace
    if isinstance(subspace._leading, ScatterMatrix):
        leading = replace(subspace._leading, dtype=np.dtype(np.float64))
        return subspace._replace(_leading=leading)
    V = linalg.orthonormalised(subspace.components.astype(np.float64))
    return subspace._replace(components=V)


def pooled_moments(subspaces: Sequence[Subspace]) -> tuple[Subspace, np.ndarray]:
    """Count, mean and scatter of all rows, without directions, and the mean corrections.

    The corrections are the rows that the scatter matrix about the common mean has beyond those
    about the means of the parts, all of which must hold rows.
    """
    first = subspaces[0]
    n, mean, scatter = first.n_samples, first.mean, first.scatter
    known = [s.column_scatter for s in subspaces if s.column_scatter is not None]
    columns = sum(known[1:], known[0]) if len(known) == len(subspaces) else None
    corrections = np.zeros((len(subspaces) - 1, len(first.mean)))
    low = first._mean_low
    with np.errstate(over="ignore", invalid="ignore"):
        for row, subspace in zip(corrections, subspaces[1:], strict=True):
            total = n + subspace.n_samples
            np.subtract(subspace.mean, mean, out=row)  # zero about the origin
            row += subspace._mean_low - low
            rest, before = low + (subspace.n_samples / total) * row, mean
            mean = before + rest
            low = (before - mean) + rest
            row *= math.sqrt((n / total) * subspace.n_samples)
            n = total
        squares = np.einsum("ij,ij->j", corrections, corrections)
        scatter += float(squares.sum())
        columns = None if columns is None else columns + squares
    scatter += sum([s.scatter for s in subspaces[1:]])
    if not (math.isfinite(scatter) and math.isfinite(n)):
        raise TooLargeError(
            "Values are too large to merge: their sum of squares or of counts overflows float64."
        )
    dtype = np.result_type(*[s._dtype for s in subspaces])
    empty = np.zeros((0, len(first.mean)), dtype)
    total = Subspace._trusted(
        empty,
        np.zeros(0),
        mean,
        n,
        scatter,
        first.centered,
        sites=pooled_sites(subspaces),
        column_scatter=columns,
        privacy=pooled_privacy(subspaces),
        _mean_low=low,
    )
    return total, corrections


def _in_steps(subspaces: list[Subspace], n_components: int | float | None, method: str) -> Subspace:
    """One merge, or a merge of merges where that is faster and parts have been cut already."""
    if n_components is not None and any(map(was_truncated, subspaces)):
        between = directions_between(subspaces, n_components)
        if is_integer(between):
            between *= 2  # a third of the time more, and errors six times smaller
        while len(subspaces) > 4:
            widest = max(s.n_components + 1 for s in subspaces)
            if _order(subspaces) <= max(MAX_EXACT_DIMENSION, _WIDTHS * widest):
                break
            groups = _groups(subspaces, max(EXACT_ORDER // 2, 4 * widest))
            subspaces = [_merged(group, between, method) for group in groups]
    return _merged(subspaces, n_components, method)


def _merged(subspaces: list[Subspace], n_components: int | float | None, method: str) -> Subspace:
    """One merge of summaries that all hold rows, all in float64, however many they are."""
    if len(subspaces) == 1:
        return subspaces[0]
    summed = _sum_of_scatters(subspaces, n_components) if method == "auto" else None
    if summed is not None:
        return summed
    d = len(subspaces[0].mean)
    max_rank, fraction = d, n_components
    if is_integer(n_components):
        max_rank, fraction = n_components, None
    groups = _groups(subspaces, max(_ROWS_PER_FEATURE * d, _ROWS_AT_ONCE))
    found = None
    if len(groups) == 1:
        total, corrections = pooled_moments(subspaces)
        cut = Cut(max_rank, fraction, total.scatter)
        parts = _directions(subspaces, orthonormal=method == "orthogonal")
        found = MERGE_METHODS[method](parts, corrections, cut)
    elif method in ("auto", "gram"):
        total, G = _folded(groups, add_rows, np.zeros((d, d), order="F"))
        cut = Cut(max_rank, fraction, total.scatter)
        top = linalg.eigh_top(G, max_rank)
        found = linalg.top_of_scatter(*top, cut, forced=method == "gram")
    if found is None:
        total, R = _folded(groups, linalg.triangle, np.zeros((0, d)))
        cut = Cut(max_rank, fraction, total.scatter)
        parts = [(R[:0], np.zeros(0)), (R, np.ones(len(R)))]
        found = MERGE_METHODS["qr" if method == "auto" else method](parts, R[:0], cut)
    V, s = found
    V = linalg.flip_signs(np.array(V, order="C"))
    return total._replace(components=V, singular_values=s.copy())


def _sum_of_scatters(
    subspaces: list[Subspace], n_components: int | float | None
) -> Subspace | None:
    """The sum of scatter matrices; None where no part holds one, or the sum is not certain.

    If nothing is truncated, as many directions must be certain as of a part.
    """
    parts = [s._leading for s in subspaces]
    matrices = [
        part for part in parts if isinstance(part, ScatterMatrix) and part.certainty.n_certain
    ]
    if not matrices:
        return None
    total, corrections = pooled_moments(subspaces)
    summed = {id(part) for part in matrices}
    others = [s._rows for s, part in zip(subspaces, parts, strict=True) if id(part) not in summed]
    of_part = max(part.certainty.n_certain for part in matrices)
    n_certain = of_part
    if is_integer(n_components) and n_components < len(total.mean):
        n_certain = int(n_components)
    more = np.concatenate([*others, corrections])
    whole = added(matrices, more, total._dtype, n_certain)
    return None if whole is None else total._replace(_leading=whole)


def _order(subspaces: list[Subspace]) -> int:
    """The smaller of the number of all directions and that of features."""
    return min(sum(s.n_components + 1 for s in subspaces), subspaces[0].n_features)


def _directions(
    subspaces: list[Subspace], orthonormal: bool = False
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Directions and singular values; of a factor its rows, unless they must be orthonormal."""
    return [
        (s._leading.rows, np.ones(len(s._leading.rows)))
        if isinstance(s._leading, Factor) and not orthonormal
        else (s.components, s.singular_values)
        for s in subspaces
    ]


def _groups(subspaces: list[Subspace], n_rows: int) -> list[list[Subspace]]:
    """Summaries in their order, in groups of about so many directions and corrections."""
    ends = np.cumsum([s.n_components + 1 for s in subspaces])
    cuts = np.flatnonzero(np.diff(ends // n_rows)) + 1
    return [subspaces[a:b] for a, b in pairwise([0, *cuts.tolist(), len(subspaces)])]


def _folded(
    groups: list[list[Subspace]], fold: Callable, result: np.ndarray
) -> tuple[Subspace, np.ndarray]:
    """Moments of all rows, and the result of a function folded over the parts of their stack."""
    past: list[Subspace] = []
    for group in groups:
        total, corrections = pooled_moments([*past, *group])
        result = fold(result, stack(_directions(group), corrections))
        past = [total]
    return total, result
