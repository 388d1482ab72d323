"""Columns of a summary: sums of squares and units; confounders regressed out, scaled columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .._kernels.linalg import (
    bounds_of_largest,
    flip_signs,
    least_certain,
    n_above,
    numerical_rank,
    rounding_of_scatter,
)
from .._kernels.row_moments import is_rounding
from .._kernels.scatter import leading_directions
from .._kernels.threads import threads_for
from .._kernels.tolerances import ORTHONORMALITY_TOL
from ._directions import leading
from ._exact import Factor, Scaled, ScatterMatrix
from ._subspace import Subspace
from ._updating import lacks_directions, unit_of, was_truncated


def scatter_of_columns(summary: Subspace, who: str = "A summary") -> np.ndarray:
    """Sum of squares of each column about the mean, or raise where it is not known."""
    if summary.column_scatter is not None:
        return summary.column_scatter
    if lacks_directions(summary):
        raise ValueError(
            f"{who} was cut and has column_scatter=None, as those of other libraries' estimators: "
            "scale=True, partial_out and parallel analysis need the sum of squares of each column. "
            "Summaries of StreamingPCA know them."
        )
    rows = summary._rows
    return np.einsum("ij,ij->j", rows, rows)


def deviations(scatter: np.ndarray, mean: np.ndarray, n_samples: float) -> np.ndarray:
    """Of columns with such sums of squares; zero where rounding explains them."""
    deviation = np.sqrt(scatter / n_samples)
    return np.where(is_rounding(deviation, mean), 0.0, deviation)


def shares_cut(summary: Subspace) -> tuple[float, np.ndarray]:
    """Shares of the scatter that the directions lack: of all columns, and of each one."""
    columns, explained = scatter_of_columns(summary), np.square(summary._rows).sum(axis=0)
    varies = deviations(columns, summary.mean, summary.n_samples) > 0
    lost = np.zeros(len(columns))
    lost[varies] = (1 - explained[varies] / columns[varies]).clip(0, 1)
    return max(1 - float(explained.sum()) / summary.scatter, 0.0), lost


def rescaled(summary: Subspace, factors: np.ndarray) -> Subspace:
    """The summary of the same rows with each column multiplied by a factor.

    What was cut stays cut. Directions are those in the units in which they were found, until
    somebody reads those of the new ones.
    """
    columns, leading = summary.column_scatter, summary._leading
    if leading is None:
        leading = Scaled(summary.components, summary.singular_values, np.ones(len(factors)))
    leading = leading.scaled(factors)
    columns = None if columns is None else columns * factors**2
    scatter = leading.energy if columns is None else float(columns.sum())
    low, mean = summary._mean_low * factors, summary.mean * factors
    moments = {"mean": mean, "_mean_low": low, "scatter": scatter, "column_scatter": columns}
    if isinstance(leading, Scaled) and (leading.units == 1).all():
        return summary._replace(components=leading.V, singular_values=leading.s, **moments)
    return summary._replace(_leading=leading, **moments)


def with_directions(
    summary: Subspace,
    V: np.ndarray,
    s: np.ndarray,
    mean: np.ndarray,
    columns: np.ndarray | None,
) -> Subspace:
    """A summary of as many rows with other directions, in the same dtype."""
    energy = float(s @ s)
    return summary._replace(
        components=V.astype(summary._dtype, copy=False),
        singular_values=s,
        mean=mean,
        scatter=energy if columns is None else max(float(columns.sum()), energy),
        column_scatter=columns,
    )


def select_columns(subspace: Subspace, columns: Sequence[int]) -> Subspace:
    """Summary of the same rows in other columns.

    Parameters
    ----------
    subspace : Subspace
    columns : sequence of int
        Positions of the columns to keep, each once, in the order of the result.

    Returns
    -------
    selected : Subspace
        Exact where nothing was cut; else the scatter of the columns is exact, and the directions
        are below it as they were before.

    Raises
    ------
    ValueError
        If directions were cut and the scatter of single columns is not known.
    """
    chosen = np.asarray(columns)
    names = subspace.feature_names
    of_columns = subspace.column_scatter
    kept = {
        "mean": subspace.mean[chosen],
        "column_scatter": None if of_columns is None else of_columns[chosen],
        "feature_names": None if names is None else tuple(names[j] for j in columns),
    }
    parts = subspace.components[:, chosen]
    if len(chosen) == subspace.n_features:
        return subspace._replace(components=flip_signs(np.array(parts)), **kept)
    if of_columns is None and was_truncated(subspace):
        raise ValueError("it lacks the scatter of its columns, so that none can be left out.")
    scaled = subspace.singular_values[:, None] * parts.astype(np.float64)
    _, s, V = np.linalg.svd(scaled, full_matrices=False)
    rank = numerical_rank(s)
    s, V = s[:rank], flip_signs(V[:rank]).astype(parts.dtype, copy=False)
    energy = float(s @ s)
    scatter = energy if of_columns is None else max(energy, float(of_columns[chosen].sum()))
    return subspace._replace(components=V, singular_values=s, scatter=scatter, **kept)


# Share of its deviation up to which a confounder, or a column, is explained by confounders: what is
# left are rounding errors. The first is a singular value of confounders of unit length, over the
# largest one; a full set of dummy variables has one of about 1e-15.
_DEPENDENT = {np.dtype(np.float64): 1e-8, np.dtype(np.float32): 1e-4}
_EXPLAINED = {np.dtype(np.float64): 1e-11, np.dtype(np.float32): 1e-5}

# Of what is known of a column: directions that have more of it are not those of rows.
_MORE = 1.01

# Columns from which on it takes less time to count eigenvalues than to find them.
_FEW = 64

Found = tuple[np.ndarray, np.ndarray]


class Adjusting(NamedTuple):
    """What is done with rows before their PCA.

    Attributes
    ----------
    scale : bool
        Whether columns are divided by their deviations.
    confounders : tuple of int
        Columns whose linear effects are taken out of the others, before that.
    averaged : bool
        Whether directions may have more of a column than the rows, as averages of sites' have.
    """

    scale: bool = False
    confounders: tuple[int, ...] = ()
    averaged: bool = False

    def __bool__(self) -> bool:
        return self.scale or bool(self.confounders)


@dataclass(frozen=True, eq=False)
class Adjustment:
    """How rows x about their mean become y = (x[others] - x[confounders] @ effects) / scale.

    Attributes
    ----------
    confounders, others : ndarray of int
        Columns.
    effects : ndarray of shape (c, o)
        What one unit of each confounder adds to each of the others.
    scale : ndarray of shape (o,)
    """

    confounders: np.ndarray
    others: np.ndarray
    effects: np.ndarray
    scale: np.ndarray

    def loadings(self, V: np.ndarray) -> np.ndarray:
        """Rows T, of which ``T @ x`` is ``V @ y``."""
        scaled = V / self.scale
        result = np.empty((len(V), len(self.confounders) + len(self.others)))
        result[:, self.others] = scaled
        result[:, self.confounders] = -(scaled @ self.effects.T)
        return result

    def adjust(self, rows: np.ndarray) -> np.ndarray:
        """The rows y of rows x about their mean."""
        Y = rows[:, self.others] - rows[:, self.confounders] @ self.effects
        Y /= self.scale
        return Y

    def back(self, rows: np.ndarray) -> np.ndarray:
        """Rows x of rows y, with confounders at their mean."""
        result = np.zeros((len(rows), len(self.confounders) + len(self.others)))
        result[:, self.others] = rows * self.scale
        return result


class Adjusted(NamedTuple):
    """A summary of adjusted rows about their mean, which is zero, and how they were adjusted.

    Attributes
    ----------
    model : Subspace
    adjustment : Adjustment
    confounder_rows : ndarray of shape (r, d)
        Rows of the summary that the confounders explain.
    is_cut : bool
        Whether the summary has cut confounders, so that their effects are not those of all rows.
    """

    model: Subspace
    adjustment: Adjustment
    confounder_rows: np.ndarray
    is_cut: bool = False

    def restored(self, model: Subspace, before: Subspace) -> Subspace:
        """A summary of the rows themselves, whose adjusted summary has a model's directions."""
        rows = np.concatenate([self.confounder_rows, self.adjustment.back(model._rows)])
        return before._replace(_leading=Factor(rows, before._dtype))


class _Columns(NamedTuple):
    """Columns of rows that are adjusted, of which ``constant`` have rounding errors only."""

    confounders: np.ndarray
    others: np.ndarray
    constant: np.ndarray
    scatter: np.ndarray
    mean: np.ndarray
    n_samples: float

    def scale_of(self, scatter: np.ndarray, effects: np.ndarray) -> np.ndarray:
        """Deviations of the others, whose sums of squares are left by the confounders' effects.

        1 where only rounding errors are left of the numbers that were subtracted.
        """
        deviation, sizes = np.sqrt(scatter / self.n_samples), np.abs(self.mean)
        subtracted = sizes[self.others] + sizes[self.confounders] @ np.abs(effects)
        nothing = self.constant[self.others] | is_rounding(deviation, subtracted)
        return np.where(nothing, 1.0, deviation)

    def in_place(self, of_confounders: np.ndarray, of_others: np.ndarray) -> np.ndarray:
        """Rows of the confounders and of the others as rows of all columns."""
        rows = np.zeros((len(of_others), len(self.scatter)))
        rows[:, self.confounders], rows[:, self.others] = of_confounders, of_others
        return rows


class _Left(NamedTuple):
    """What confounders leave of the other columns: the Schur complement of a scatter matrix.

    Attributes
    ----------
    effects : ndarray of shape (c, o)
        See `Adjustment`; of least norm for confounders in units of their deviations.
    along, is_cut
        See `Adjusted`.
    scatter : ndarray of shape (o,)
        Its diagonal, and at most as much as confounders leave of what the summary has cut.
    find : callable
        Takes the scales of the columns; leading directions and singular values of scaled columns,
        or None where these are not certain to ten digits.
    over : callable
        Takes the scales of the columns; the scatter matrix of scaled columns, and the energy that
        was taken off it.
    """

    effects: np.ndarray
    confounder_rows: np.ndarray
    is_cut: bool
    scatter: np.ndarray
    find: Callable[[np.ndarray], Found | None]
    over: Any = None


def adjusted(summary: Subspace, adjusting: Adjusting, most: int | None = None) -> Adjusted:
    """Take confounders out and scale the columns of what is left: a summary of one.

    Exact where nothing was cut from the summary. Else its directions never exceed the scatter
    matrix of the adjusted rows, as those of the summary do not that of the rows.

    Parameters
    ----------
    summary : Subspace
        With at least one row, about the mean.
    adjusting : Adjusting
    most : int, default=None
        Directions to find; None: all.

    Raises
    ------
    ValueError
        If the sums of squares of the columns are not known, or the summary is about the origin.
    """
    unit = unit_of(summary.n_samples)
    if unit < 1:
        found = adjusted(summary.decay(1 / unit), adjusting, most)
        return found._replace(
            model=found.model.decay(unit), confounder_rows=found.confounder_rows * unit**0.5
        )
    if not summary.centered:
        raise ValueError("scale=True and partial_out need rows about their mean, center=True.")
    columns = _columns(summary, adjusting)
    if isinstance(summary._leading, ScatterMatrix):
        summary._leading.is_read = True
    found = _by_scatter(summary, columns, adjusting, most)
    if found is None:
        left = _left_of_rows(summary._rows, columns, most, summary._dtype)
        found = _directions(left, columns, adjusting.scale)
    (effects, confounder_rows, is_cut, scatter), scale, V, s = found
    names, o = summary.feature_names, columns.others
    model = with_directions(summary, V, s, np.zeros(len(o)), scatter / scale**2)
    if names is not None:
        model = model._replace(feature_names=tuple(names[i] for i in o))
    how = Adjustment(columns.confounders, o, effects, scale)
    return Adjusted(model, how, confounder_rows, is_cut)


def is_certain(
    summary: Subspace, adjusting: Adjusting, most: int | None, read_next: bool = True
) -> bool:
    """Whether the scatter matrix that a summary holds tells so many adjusted directions.

    Counting eigenvalues often tells it in a tenth of the time in which directions are found. Where
    these are few, or are read next and not likely to be in vain, they are found at once.
    """
    matrix, columns = summary._leading, _columns(summary, adjusting)
    if not isinstance(matrix, ScatterMatrix):
        return False
    if matrix.precision == np.float32 or not (read_next or len(matrix.G) < _FEW):
        with threads_for(16 * len(matrix.G) ** 2):
            left = _left_of_scatter(matrix, columns, most)
            if left is None:
                return False
            G, lost = left.over(_scale(left, columns, adjusting.scale))
            count = min(int(np.count_nonzero(G.diagonal())), len(G) if most is None else most)
            if not count:
                return False
            sizes = bounds_of_largest(G)
            least, enough = (least_certain(size, lost, matrix.precision) for size in sizes)
            if n_above(G, enough) >= count:
                return True
            if n_above(G, least) < count:
                return False
    return _by_scatter(summary, columns, adjusting, most) is not None


def _by_scatter(
    summary: Subspace, columns: _Columns, adjusting: Adjusting, most: int | None
) -> Any:
    """What `_directions` finds by the scatter matrix of a summary; None where it has none."""
    matrix = summary._leading
    if not isinstance(matrix, ScatterMatrix):
        return None

    def find() -> Any:
        with threads_for(16 * len(matrix.G) ** 2):
            left = _left_of_scatter(matrix, columns, most)
            return None if left is None else _directions(left, columns, adjusting.scale)

    return matrix.once((adjusting, most), find)


def _columns(summary: Subspace, adjusting: Adjusting) -> _Columns:
    n, scatter, matrix = summary.n_samples, scatter_of_columns(summary), summary._leading
    known = isinstance(matrix, ScatterMatrix)
    squares = matrix.G.diagonal() if known else np.square(summary._rows).sum(axis=0)
    # directions have rounding errors in a constant column
    tiny = 0.0 if known else _EXPLAINED[summary._dtype] ** 2 * summary.scatter
    # a client that states less would have a column that outweighs all columns of the others
    more = (squares > _MORE * scatter) & (not adjusting.averaged)
    stated = np.where(more & (squares > tiny), squares, scatter)
    constant = deviations(stated, summary.mean, n) == 0
    scatter = np.where(more & ~constant, squares, scatter)
    confounders = np.array(adjusting.confounders, dtype=int)
    others = np.delete(np.arange(len(scatter)), confounders)
    return _Columns(confounders, others, constant, scatter, summary.mean, n)


def with_scatter_shown(summary: Subspace) -> Subspace:
    """The summary with its column scatter raised to that of its directions, if it is less."""
    scatter = _columns(summary, Adjusting()).scatter
    unchanged = np.array_equal(scatter, scatter_of_columns(summary))
    return summary if unchanged else summary._replace(column_scatter=scatter)


def _scale(left: _Left, columns: _Columns, scaled: bool) -> np.ndarray:
    """That of the columns that are left."""
    if not scaled:
        return np.ones(len(columns.others))
    return columns.scale_of(left.scatter, left.effects)


def _directions(left: _Left, columns: _Columns, scaled: bool) -> Any:
    """What confounders leave, the scales, and leading directions and singular values."""
    scale = _scale(left, columns, scaled)
    found = left.find(scale)
    return None if found is None else (left[:4], scale, *found)


def _left_of_rows(rows: np.ndarray, columns: _Columns, most: int | None, dtype: np.dtype) -> _Left:
    """What confounders leave, from at most d rows R of a summary.

    With the columns C and O, of C = U s W^T the directions above the tolerance, O - U U^T O is what
    is left: no matrix is squared or inverted, and confounders may depend on each other. R^T R never
    exceeds the rows' scatter matrix S = R^T R + E, of which E has a known diagonal; the Schur
    complement of the sum is between that of R^T R and the same with (sqrt(E_jj) + sum_c |B_cj|
    sqrt(E_cc))^2 added to the diagonal, by the triangle inequality in the norm of E.
    """
    c, o, constant, total, *_ = columns
    C, O = np.where(constant[c], 0.0, rows[:, c]), rows[:, o]  # noqa: E741
    O[:, constant[o]] = 0.0
    if not len(c):
        none = np.zeros((0, len(o)))
        return _Left(none, none, False, total, lambda scale: leading(O / scale, most))
    squares_C, squares_O = (np.einsum("ij,ij->j", M, M) for M in (C, O))
    size = np.sqrt(np.where(squares_C > 0, squares_C, 1.0))
    U, s, Wt = np.linalg.svd(C / size, full_matrices=False)
    r = int(np.sum(s > _DEPENDENT[dtype] * s.max(initial=0.0)))
    U, W = U[:, :r], Wt[:r].T
    fitted = U.T @ O
    O -= U @ fitted  # noqa: E741
    again = U.T @ O  # twice is enough
    O -= U @ again  # noqa: E741
    fitted += again
    effects = (W / s[:r]) @ fitted / size[:, None]
    O[:, np.square(O).sum(axis=0) <= _EXPLAINED[dtype] ** 2 * squares_O] = 0
    cut_C, cut_O = (
        np.sqrt(
            np.where(total[at] - squares > _EXPLAINED[dtype] * total[at], total[at] - squares, 0)
        )
        for at, squares in ((c, squares_C), (o, squares_O))
    )
    scatter = np.einsum("ij,ij->j", O, O) + (cut_O + cut_C @ np.abs(effects)) ** 2
    confounder_rows = columns.in_place((s[:r, None] * W.T) * size, fitted)
    return _Left(
        effects, confounder_rows, bool(cut_C.any()), scatter, lambda scale: leading(O / scale, most)
    )


def _left_of_scatter(matrix: ScatterMatrix, columns: _Columns, most: int | None) -> _Left | None:
    """What confounders leave, from the scatter matrix of all rows; None where it is not certain.

    An entry of a scatter matrix is right to eps of the roots of its two squares on the diagonal,
    whatever the sizes of the others: with the columns divided by their sizes all of it is right to
    eps. What is left of a column is certain where confounders leave a share of 1e-5 of its square.
    None as well where confounders were cut from rows before, whose effects the scatter hides.
    """
    c, o, constant, total, *_ = columns
    cut = total - matrix.G.diagonal()
    cut[cut <= _EXPLAINED[np.dtype(np.float64)] * total] = 0.0  # of rows before
    if cut[c].any():
        return None
    size, S, v = matrix.sizes, matrix.G, c[~constant[c]]
    effects, confounder_rows = np.zeros((len(c), len(o))), np.zeros((0, len(size)))
    least = rounding_of_scatter(1.0, dtype=matrix.precision) / ORTHONORMALITY_TOL[matrix.precision]
    if len(c):
        C = np.tril(matrix.over(size))
        C += np.tril(C, -1).T
        lam, W = np.linalg.eigh(C[np.ix_(v, v)])
        if not len(v) or lam[0] <= least * lam[-1]:
            return None
        root = np.sqrt(lam)
        half = (W / root).T @ C[np.ix_(v, o)]
        S = C[np.ix_(o, o)] - half.T @ half
        if np.any((S.diagonal() <= least) & ~constant[o]):
            return None
        effects[~constant[c]] = (W / root) @ half * size[o] / size[v, None]
        of_confounders = np.zeros((len(v), len(c)))
        of_confounders[:, ~constant[c]] = root[:, None] * W.T * size[v]
        confounder_rows = columns.in_place(of_confounders, half * size[o])
        S = S * size[o] * size[o, None]

    def over(scale: np.ndarray) -> tuple[np.ndarray, float]:
        scaled = np.divide(S / scale, scale[:, None], order="F")
        return scaled, float(np.sum(matrix.lost[o] / scale**2))

    def find(scale: np.ndarray) -> Found | None:
        G, lost = over(scale)
        few = len(o) if most is None else min(most, len(o))
        found = leading_directions(
            G, few, lambda s: min(few, len(s)), lost=lost, dtype=matrix.precision
        )
        return None if found is None else (flip_signs(np.array(found[0], order="C")), found[1])

    scatter = S.diagonal().clip(0) + cut[o]
    return _Left(effects, confounder_rows, False, scatter, find, over)
