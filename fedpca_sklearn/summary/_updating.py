"""Update of a summary with rows, block by block."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp

from .._kernels.device_rows import DeviceRows
from .._kernels.linalg import norm_of_scatter
from .._kernels.scatter import add_rows
from .._kernels.sizes import (
    DENSE_SHARE,
    MAX_EXACT_DIMENSION,
    SMALL_DIMENSION,
    auto_block_size,
    block_slices,
    passes_pay,
    slices_of,
)
from .._kernels.sparse_stack import SparseBlock
from .._kernels.stack import DenseBlock, DeviceBlock, Found, RankChoice, precisions
from .._kernels.too_large import too_large
from ._exact import Certainty, Factor, ScatterMatrix

_FLOAT64 = np.dtype(np.float64)
# A Subspace, whose own methods call this module
Summary: TypeAlias = Any

AnyBlock: TypeAlias = DenseBlock | SparseBlock

# Count of rows below which sums and squares are taken in other units.
_TINY = 2.0**-500


def unit_of(n_samples: float) -> float:
    """Power of four, in units of which a tiny count and sums of squares keep their digits.

    Weights near the smallest float lose digits in every product. Powers of four change none, and
    their roots are exact as well. 1 for all other counts.
    """
    if not 0 < n_samples < _TINY:
        return 1.0
    exponent = math.frexp(n_samples)[1]
    return 2.0 ** max(exponent + exponent % 2, -1020)


# Shares of the scatter that rounding explains, of many updates.
_SINGLE_ROUNDING, _DOUBLE_ROUNDING = 1e-6, 1e-10


def was_truncated(subspace: Summary) -> bool:
    """Whether the scatter is more than that along the directions, beyond what rounding explains."""
    return _beyond(subspace) > _SINGLE_ROUNDING * subspace.scatter


def lacks_directions(subspace: Summary) -> bool:
    """As `was_truncated`, also of directions that are small beside the rounding of float32.

    Beside columns in large units they may be all that there is of another column.
    """
    if subspace._leading is None and subspace.n_components == subspace.n_features:
        return False
    double = subspace._dtype == np.float64
    rounding = _DOUBLE_ROUNDING if double else _SINGLE_ROUNDING
    return _beyond(subspace) > rounding * subspace.scatter


def _beyond(subspace: Summary) -> float:
    """Scatter beyond that along the directions."""
    if subspace._leading is not None:
        return subspace.scatter - subspace._leading.energy
    return subspace.scatter - float(subspace.singular_values @ subspace.singular_values)


class How(NamedTuple):
    """What is kept after a block, and how it is found.

    ``max_rank`` bounds the number of directions (None: no bound); ``choose_rank`` may choose fewer
    from the singular values and the scatter. The first ``n_certain`` directions will be read, the
    others are reserves. ``passes``: number of components that passes over the rows find, where
    these are cheaper; None: no passes.
    """

    max_rank: int | None = None
    choose_rank: RankChoice | None = None
    forgetting_factor: float = 1.0
    svd_solver: str = "auto"
    n_certain: int | None = None
    passes: int | None = None


def updated(
    subspace: Summary,
    X: Any,
    weight: np.ndarray | None = None,
    *,
    block_size: int | None = None,
    **options: Any,
) -> Summary:
    """Update a summary with validated rows, block by block; options are those of `How`.

    ``block_size``: rows of a block, of which nothing is cut before its end; None: as it costs
    least, also by passes.
    """
    (n, d), how = X.shape, How(**options)
    if block_size is None:
        kind = {"sparse": stays_sparse(X, how.max_rank), "device": isinstance(X, DeviceRows)}
        passes = how.svd_solver == "auto"
        options["passes"] = (how.n_certain or 1) if passes else None
        slices = block_slices(n, d, how.max_rank, passes=passes, **kind)
    else:
        slices = list(slices_of(n, block_size))
    for at in slices:
        rows = X if at.stop - at.start == n else X[at]
        w = None if weight is None else weight[at]
        subspace = updated_by_block(subspace, rows, w, **options)
    return subspace


def updated_by_block(
    subspace: Summary, Y: Any, w: np.ndarray | None = None, **options: Any
) -> Summary:
    """Update a summary with one block of validated rows; options are those of `How`."""
    max_rank, choose_rank, forgetting_factor, svd_solver, n_certain, passes = How(**options)
    same_update: Any = partial(updated_by_block, **options)
    d = Y.shape[1]
    if w is not None:
        unit = unit_of(max(float(w.max()), subspace.n_samples))
        if unit < 1:
            return same_update(subspace.decay(1 / unit), Y, w / unit).decay(unit)
    exact = max_rank in (None, d) and choose_rank is None and svd_solver != "qr"
    if sp.issparse(Y) and d > SMALL_DIMENSION and not subspace.n_samples and not exact:
        columns = used_columns(Y)
        if SMALL_DIMENSION < len(columns) <= d // 2:
            dtype = subspace._dtype
            few = subspace.empty(len(columns), centered=subspace.centered, dtype=dtype)
            few = same_update(few, only_columns(Y, columns), w)
            labels = {name: getattr(subspace, name) for name in ("feature_names", "site", "sites")}
            return _spread(few, columns, d)._replace(**labels)
    if w is not None or forgetting_factor < 1:
        subspace, Y, w = faded(subspace, Y, w, forgetting_factor)
    if not Y.shape[0]:
        return subspace
    if sp.issparse(Y) and Y.shape[0] < d <= SMALL_DIMENSION:
        Y = Y.toarray()
    max_rank = d if max_rank is None else max_rank
    if exact:
        after = _with_scatter_matrix(subspace, Y, w, n_certain or d, svd_solver)
        if after is not None:
            return after
        if not isinstance(Y, DeviceRows):
            return stacked_by_block(subspace, Y, w, n_certain or d)
    with np.errstate(over="ignore", invalid="ignore"):  # the block checks its scatter instead
        kind = _block_kind(Y, max_rank, svd_solver)
        by_passes = kind is not SparseBlock and passes is not None and choose_rank is None
        by_passes = by_passes and passes_pay(Y.shape[0], d, max_rank)
        if kind is DenseBlock and sp.issparse(Y) and Y.shape[0] < d and not by_passes:
            Y = Y.toarray()  # more rows are made dense some at a time
        block = kind(subspace.components, subspace.singular_values, *_past(subspace, Y, w))
        found: Found | None = None
        if by_passes and isinstance(block, DenseBlock):
            found = block.by_passes(max_rank, passes)
        else:
            found = block.reduce(max_rank, choose_rank, subspace.scatter, svd_solver, n_certain)
    if found is None:
        for at in slices_of(Y.shape[0], auto_block_size(max_rank, d, False)):
            weights = None if w is None else w[at]
            subspace = same_update(subspace, Y[at], weights, forgetting_factor=1.0)
        return subspace
    directions = dict(zip(("components", "singular_values"), found, strict=True))
    return _with_block(subspace, block, directions)


def faded(
    subspace: Summary, Y: Any, w: np.ndarray | None, forgetting_factor: float
) -> tuple[Summary, Any, np.ndarray | None]:
    """What is left of a summary after a block of rows, and the rows with the weight left of each.

    A row without weight is as absent, whatever it holds.
    """
    m = Y.shape[0]
    if forgetting_factor < 1:
        fading = forgetting_factor ** np.arange(m - 1, -1, -1, dtype=np.float64)
        w = fading if w is None else w * fading
        subspace = subspace.decay(forgetting_factor**m)
    if w is not None and not w.all():
        Y, w = Y[w > 0], w[w > 0]
    return subspace, Y, w


def _with_scatter_matrix(
    subspace: Summary, Y: Any, w: np.ndarray | None, n_certain: int, svd_solver: str
) -> Summary | None:
    """Update a summary with one block, by its scatter matrix.

    None of few rows, and where the wanted directions would not be certain.
    """
    d, past, before = Y.shape[1], subspace._leading, Certainty()
    kind = _block_kind(Y, d, svd_solver)
    if not _are_many(subspace, Y):
        return None
    single, count = subspace._dtype != _FLOAT64 and kind is not SparseBlock, min(n_certain, d)
    if isinstance(past, ScatterMatrix):  # more rows need the precision of those before
        before, single, count = past.certainty, single and past.precision != _FLOAT64, 0
    elif subspace.n_samples:  # the trace is at least the largest eigenvalue
        before = before.with_products(subspace.scatter, 0.0, _FLOAT64, subspace._dtype)
    chosen = precisions(Y, subspace._dtype, count, np.zeros(0)) if single else [_FLOAT64]
    for precision in chosen:
        found = _summed(subspace, Y, w, kind, precision)
        if found is None and precision == _FLOAT64:
            raise too_large("sum of squares", weight=w)
        if found is not None:
            after, largest, lost = found
            certain = after._leading.judge(n_certain, before, largest, lost, precision)
            if certain or svd_solver == "gram":
                return after
    return None


def _are_many(subspace: Summary, Y: Any) -> bool:
    """Whether a scatter matrix is as small as the rows that it is of."""
    n, d = Y.shape
    if n >= d or isinstance(subspace._leading, ScatterMatrix):
        return True
    return len(subspace._rows) + n + (subspace.n_samples > 0) >= d


def _summed(
    subspace: Summary,
    Y: Any,
    w: np.ndarray | None,
    kind: type[AnyBlock],
    precision: np.dtype,
) -> tuple[Summary, float, float] | None:
    """Update a summary with the scatter matrix of a block, or None where that is not finite.

    With at least the largest eigenvalue of the products, and an energy that was in them and was
    taken off again.
    """
    past, d, dtype = subspace._leading, Y.shape[1], subspace._dtype
    with np.errstate(over="ignore", invalid="ignore"):
        none = np.zeros((0, d), dtype), np.zeros(0)
        block = kind(*none, *_past(subspace, Y, w))
        found = block.scatter_of_new(precision)
    if found is None:
        return None
    G, lost = found
    # underflow may take off as much as the roundings of another energy
    gone = block.m * d * float(np.finfo(precision).tiny)
    largest, energy = norm_of_scatter(G), max(float(lost.sum()), gone)
    if isinstance(past, ScatterMatrix):
        G += past.G
        lost = lost + past.lost
        if past.precision.itemsize < precision.itemsize:
            precision = past.precision
    elif subspace.n_samples:
        G = add_rows(G, subspace._rows)
    matrix = ScatterMatrix(G, lost, precision, dtype)
    return _with_block(subspace, block, {"_leading": matrix}), largest, energy


def scatter_updated_by_block(
    subspace: Summary, Y: Any, w: np.ndarray | None, precision: Any
) -> Summary | None:
    """Update a summary with one block, of which the scatter matrix is held instead of directions.

    None of few rows, or where products in ``precision`` overflow, or lose what is there of a
    column.
    """
    kind = _block_kind(Y, Y.shape[1])
    found = _summed(subspace, Y, w, kind, precision) if _are_many(subspace, Y) else None
    if found is None:
        return None
    matrix = found[0]._leading
    squares, limits = matrix.G.diagonal(), np.finfo(matrix.precision)
    if squares[squares > 0].min(initial=np.inf) < float(limits.tiny / limits.eps**2):
        return None
    if limits.dtype == np.float32 and not (squares > 0).all():  # what is there may be too small
        return None
    return found[0]


def stacked_by_block(
    subspace: Summary, Y: Any, w: np.ndarray | None, n_certain: int = 0
) -> Summary:
    """The same with the rows of a block below those before, or of many rows with their factor."""
    past = subspace._rows
    few = len(past) + Y.shape[0] < Y.shape[1]
    Y = Y.toarray() if few and sp.issparse(Y) else Y
    with np.errstate(over="ignore", invalid="ignore"):
        block = DenseBlock(past, np.ones(len(past)), *_past(subspace, Y, w))
        rows = block.few_rows() if few else block._triangle()
    return _with_block(
        subspace, block, {"_leading": Factor(rows, subspace._dtype, n_certain, False)}
    )


def _past(subspace: Summary, Y: Any, w: np.ndarray | None) -> tuple[Any, ...]:
    """What a block is made of, after the directions before."""
    return subspace.mean, subspace.n_samples, Y, w, subspace.centered, subspace._mean_low


def _with_block(subspace: Summary, block: AnyBlock, directions: dict[str, Any]) -> Summary:
    """The summary of the rows before a block and of its rows."""
    past, (mean, low) = subspace.column_scatter, block.new_mean
    # rows that no mechanism has seen: nothing is promised any more
    return subspace._replace(
        **directions,
        mean=mean,
        _mean_low=low,
        n_samples=block.n_total,
        scatter=subspace.scatter + block.scatter,
        column_scatter=None if past is None else past + block.column_scatter,
        privacy=None,
    )


def used_columns(Y: sp.csr_array) -> np.ndarray:
    """Columns of a CSR matrix with stored entries, sorted."""
    used = np.zeros(Y.shape[1], dtype=bool)
    used[Y.indices] = True
    return np.flatnonzero(used)


def only_columns(Y: sp.csr_array, columns: np.ndarray) -> sp.csr_array:
    """The matrix without the columns that hold nothing; data is shared."""
    position = np.empty(Y.shape[1], dtype=Y.indices.dtype)
    position[columns] = np.arange(len(columns), dtype=Y.indices.dtype)
    return sp.csr_array((Y.data, position[Y.indices], Y.indptr), shape=(Y.shape[0], len(columns)))


def _spread(subspace: Summary, columns: np.ndarray, d: int) -> Summary:
    """A summary of some columns as one of all ``d``; the others are zero."""
    V = subspace.components
    wide, moments = np.zeros((len(V), d), dtype=V.dtype), np.zeros((2, d))
    wide[:, columns], moments[:, columns] = V, (subspace.mean, subspace.column_scatter)
    mean, column_scatter = moments
    return subspace._replace(components=wide, mean=mean, column_scatter=column_scatter)


def is_made_dense(Y: Any) -> bool:
    """Whether the scatter matrix of rows is that of dense ones."""
    return _block_kind(Y, Y.shape[1]) is DenseBlock


def stays_sparse(Y: Any, max_rank: int | None) -> bool:
    """Whether blocks of rows are sparse; with many entries they are cut as dense rows are.

    Where directions are cut, products with all entries in turn take up to 14 times as long.
    """
    n, d = Y.shape
    cut = max_rank is not None and max_rank < d and d > SMALL_DIMENSION
    return sp.issparse(Y) and not (cut and Y.nnz > DENSE_SHARE * n * d)


def _block_kind(Y: Any, max_rank: int, svd_solver: str = "auto") -> type[AnyBlock]:
    """Class that reduces a block: sparse rows stay sparse unless their products cost more.

    Of a small dimension they do if all directions are kept, and a solver is not asked for.
    """
    n, d = Y.shape
    if isinstance(Y, DeviceRows):
        return DeviceBlock
    if not sp.issparse(Y):
        return DenseBlock
    if d <= SMALL_DIMENSION and (max_rank < d or svd_solver != "auto"):
        return DenseBlock
    many = max_rank == d <= min(n, MAX_EXACT_DIMENSION) and Y.nnz > DENSE_SHARE * n * d
    return DenseBlock if many or not stays_sparse(Y, max_rank) else SparseBlock
