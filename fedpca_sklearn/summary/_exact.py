"""The exact state of a summary: a scatter matrix, or its factor. Directions are read off it."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dpocon

from .._kernels.linalg import (
    all_certain,
    bounds_of_largest,
    eigh_top,
    flip_signs,
    leading_of_factor,
    n_above,
    norm_of_scatter,
    numerical_rank,
    right_singular,
    rounding_of_scatter,
    within_used,
)
from .._kernels.scatter import add_rows, leading_directions
from .._kernels.sizes import few_of_all
from .._kernels.threads import computed_once, threads_for
from .._kernels.tolerances import ORTHONORMALITY_TOL
from ._directions import all_directions

Found = tuple[np.ndarray, np.ndarray]

# Reciprocal condition of R^T R, in units in which columns have length 1, above which no singular
# value of a triangle R is taken for a rounding error.
_CERTAIN = 1e-16
# Error up to which a direction of a dtype is certain: a float32 entry has seven digits.
_DIGITS = {np.dtype(np.float64): 1e-10, np.dtype(np.float32): 1e-8}
# Times the least certain eigenvalue that is looked for, so that more rows need no other look; and
# columns for each eigenvalue which often have it: those of all columns are no smaller.
_AHEAD, _MANY = 8.0, 12
# Columns from which on, and for each wanted eigenpair, these take less time than all: 3 of 96
# columns half of it, 13 of 160 three quarters.
_FEW, _FOR_EACH = 48, 12


class Moments:
    """Second moments of rows about their mean, of which directions are computed when read."""

    dtype: np.dtype  # of the directions
    # the wanted directions and their singular values; None where all are computed at once
    first: Any = None

    @property
    def rows(self) -> np.ndarray:
        """Rows R, at most d, with the scatter matrix R^T R; nobody writes to them."""
        raise NotImplementedError

    @property
    def energy(self) -> float:
        """Sum of the squared singular values."""
        return float(np.square(self.rows).sum())

    @property
    def components(self) -> np.ndarray:
        """All directions."""
        return self._made[0]

    @property
    def singular_values(self) -> np.ndarray:
        """All singular values."""
        return self._made[1]

    @computed_once
    def _made(self) -> Found:
        V, s = self._directions()
        V = V.astype(self.dtype, copy=False)
        V.flags.writeable = s.flags.writeable = False
        return V, s

    def _directions(self) -> Found:
        rows = self.rows
        with threads_for(16 * rows.size):
            return all_directions(rows)

    @computed_once
    def n_components(self) -> int:
        """Number of directions."""
        return len(self.singular_values)

    def scaled(self, factors: np.ndarray) -> Moments:
        """Those of the same rows with each column multiplied by a factor."""
        return Factor(self.rows * factors, self.dtype)

    def __getstate__(self):
        return {known.name: getattr(self, known.name) for known in fields(self)}  # type: ignore


@dataclass(eq=False)
class Factor(Moments):
    """Square-root factor R of a scatter matrix R^T R, in which each column has its digits.

    Parameters
    ----------
    R : ndarray of shape (m, d)
        Such as a triangle: at most d rows.
    dtype : dtype
        Of the directions.
    n_certain : int, default=0
        Number of leading directions that will be read; 0: those of the columns in other units.
    to_rounding : bool, default=True
        Whether these are to be as good as by an SVD; False: as those of a scatter matrix.
    """

    R: np.ndarray
    dtype: np.dtype
    n_certain: int = 0
    to_rounding: bool = True

    @property
    def rows(self) -> np.ndarray:
        """See `Moments`."""
        return self.R

    @computed_once
    def n_components(self) -> int:
        """Number of directions, of well-conditioned rows without an SVD."""
        R, d = self.R, self.R.shape[1]
        if "_made" in vars(self):
            return len(self.singular_values)
        with threads_for(16 * R.size):
            if not self.n_certain:  # in units in which columns have length 1
                sizes = np.sqrt(np.einsum("ij,ij->j", R, R))
                R = R / np.where(sizes > 0, sizes, 1.0)
                whole = len(R) == d and sizes.all() and not np.tril(R, -1).any()
                if whole and dpocon(R, d)[0] > _CERTAIN:  # of a norm of at most d
                    return d
            if len(R) < d and all_certain(R):
                return len(R)
            if self.n_certain:
                return numerical_rank(np.linalg.svd(R, compute_uv=False))
        return len(self.singular_values)

    def times(self, weight: float) -> Factor:
        """That of the same rows with another weight."""
        return replace(self, R=self.R * math.sqrt(weight))

    def _directions(self) -> Found:
        if not self.n_certain:
            return super()._directions()
        with threads_for(16 * self.R.size):
            return within_used(self.R, partial(right_singular, rank=vars(self).get("n_components")))

    @computed_once
    def first(self) -> Found | None:
        """See `Moments`."""
        if not few_of_all(self.n_certain, len(self.R)):
            return None
        with threads_for(16 * self.R.size):
            find = partial(leading_of_factor, count=self.n_certain, to_rounding=self.to_rounding)
            found = within_used(self.R, find)
        return None if found is None else (found[0].astype(self.dtype, copy=False), found[1])


@dataclass(eq=False)
class Scaled(Moments):
    """Leading directions of columns in other units, from which they were cut.

    Parameters
    ----------
    V, s : ndarray of shape (k, d) and (k,)
        Directions and singular values of columns divided by ``units``.
    units : ndarray of shape (d,)
    """

    V: np.ndarray
    s: np.ndarray
    units: np.ndarray

    @property
    def dtype(self) -> np.dtype:  # type: ignore[override]
        """See `Moments`."""
        return self.V.dtype

    @property
    def rows(self) -> np.ndarray:
        """See `Moments`."""
        return self.s[:, None] * self.V.astype(np.float64) * self.units

    def times(self, weight: float) -> Scaled:
        """See `Factor`."""
        return replace(self, s=self.s * math.sqrt(weight))

    def scaled(self, factors: np.ndarray) -> Scaled:
        """See `Moments`."""
        return replace(self, units=self.units * factors)


class Certainty(NamedTuple):
    """What is known of the eigenvalues of a sum of scatter matrices, without solving for them.

    Energies add up, and fade with the rows.

    Attributes
    ----------
    n_certain : int
        Number of leading directions that are certain; 0: those of the columns in other units.
    rounding : float
        Error of the eigenvalues.
    least : float
        Eigenvalues above it are certain: the roundings of the products, each over the tolerance of
        its precision.
    known : float
        At least the last of the first ``n_known`` eigenvalues, by the last look at them. More rows
        make none smaller.
    n_known : int
    """

    n_certain: int = 0
    rounding: float = 0.0
    least: float = 0.0
    known: float = 0.0
    n_known: int = 0

    def times(self, weight: float) -> Certainty:
        """The same of rows with another weight."""
        return self._replace(
            rounding=self.rounding * weight,
            least=self.least * weight,
            known=self.known * weight,
        )

    def with_products(
        self, largest: float, lost: float, precision: np.dtype, dtype: np.dtype
    ) -> Certainty:
        """The same with what products in a precision round, of a largest eigenvalue.

        To as many digits as directions of a dtype can have.
        """
        rounding = rounding_of_scatter(largest, lost, precision)
        least = rounding / max(ORTHONORMALITY_TOL[precision], _DIGITS[dtype])
        return self._replace(rounding=self.rounding + rounding, least=self.least + least)

    def with_part(self, other: Certainty) -> Certainty:
        """The same with the rows of another part."""
        rounding, least = self.rounding + other.rounding, self.least + other.least
        known = other if other.known > self.known and other.n_known >= self.n_known else self
        return known._replace(rounding=rounding, least=least)


_NOTHING_KNOWN = Certainty()


@dataclass(eq=False)
class ScatterMatrix(Moments):
    """Scatter matrix of rows about their mean.

    Each entry is right to rounding of the sizes of its two columns, however large others are. Its
    eigenvectors are right to rounding of the largest eigenvalue.

    Parameters
    ----------
    G : ndarray of shape (d, d), in Fortran's order
        Of which the lower triangle is read.
    lost : ndarray of shape (d,)
        Energy of each column that was in it and was taken off again.
    precision : dtype
        Of the products.
    dtype : dtype
        Of the directions.
    certainty : Certainty
    """

    G: np.ndarray
    lost: np.ndarray
    precision: np.dtype
    dtype: np.dtype
    certainty: Certainty = _NOTHING_KNOWN

    is_read = False  # whether its directions in other units have been asked for

    def times(self, weight: float) -> ScatterMatrix:
        """See `Factor`."""
        certainty = self.certainty.times(weight)
        return replace(self, G=self.G * weight, lost=self.lost * weight, certainty=certainty)

    @property
    def energy(self) -> float:
        """See `Moments`."""
        return float(self.G.trace())

    @computed_once
    def _columns(self) -> np.ndarray:
        """Those with scatter."""
        return np.flatnonzero(self.G.diagonal())

    # ---------------------------------------------------------------- directions of the rows

    @computed_once
    def _pairs(self) -> Found:
        """Leading eigenpairs within the columns with scatter: the wanted ones, or all."""
        m, n_certain = len(self._columns), self.certainty.n_certain
        few = n_certain > 0 and (few_of_all(n_certain, m) or _FOR_EACH * n_certain <= m >= _FEW)
        with threads_for(16 * m * m):
            return eigh_top(self._within(), n_certain if few else m, few=few)

    def _within(self) -> np.ndarray:
        """The scatter matrix of the columns that have some."""
        used = self._columns
        return self.G if len(used) == len(self.G) else self.G[np.ix_(used, used)]

    def judge(
        self,
        n_certain: int,
        before: Certainty,
        largest: float,
        lost: float,
        precision: np.dtype,
    ) -> bool:
        """Whether the wanted directions are certain with some rows more than ``before``.

        Parameters
        ----------
        n_certain : int
        before : Certainty
        largest : float
            At least the largest eigenvalue of the products of the new rows.
        lost : float
            Energy that was in them and was taken off again.
        precision : dtype
            In which they were made.
        """
        before = before._replace(n_certain=n_certain)
        self.certainty = before.with_products(largest, lost, precision, self.dtype)
        if before.n_known and self.is_certain:
            return True
        m, G = len(self._columns), self._within()
        count = min(n_certain, m)
        if not count:
            return False
        with threads_for(16 * m * m):
            number, some = _AHEAD * self.certainty.least, np.argsort(G.diagonal())[-_MANY * count :]
            of_some = G[np.ix_(np.sort(some), np.sort(some))]
            if n_above(of_some, number) >= count or n_above(G, number) >= count:
                self.certainty = self.certainty._replace(known=number, n_known=count)
                return True
            at_least = min(largest, bounds_of_largest(G)[0])
            known = before.with_products(at_least, lost, precision, self.dtype)
            if n_above(G, known.least) < count:  # even if rounding is as small as it may be
                return False
        lam = self._pairs[0]
        before = before._replace(known=float(lam[count - 1]), n_known=count)
        largest = min(largest, float(lam[0]))
        self.certainty = before.with_products(largest, lost, precision, self.dtype)
        return self.is_certain

    @property
    def is_certain(self) -> bool:
        """Whether what is known of the wanted eigenvalues is enough."""
        known = self.certainty
        enough = known.known > known.least
        return enough and (known.n_certain <= known.n_known or len(self._columns) <= known.n_known)

    @computed_once
    def first(self) -> Found | None:
        """See `Moments`."""
        if not self.certainty.n_certain:
            return None
        lam, W = self._pairs
        if W.shape[1] == len(W):  # all, in hardly more time, or as a few were not certain
            return None
        return self._shown(W.T), np.sqrt(lam.clip(0))

    def _rest(self) -> Found:
        """The other directions: those of the matrix with the first ones raised above all."""
        lam, W = self._pairs
        r, m = W.shape[1], len(W)
        unit = 2.0 ** min(-math.frexp(lam[0])[1], 1000)
        with threads_for(16 * m * m):
            raised = dsyrk(1.0, np.ascontiguousarray(W), beta=1.0, c=self._within() * unit, lower=1)
            more, others = eigh_top(raised, m, overwrite=True)
        more, others = more[r:] / unit, others[:, r:]
        p = self._rank(more)
        return self._shown(others[:, :p].T), np.sqrt(more[:p]).clip(max=np.sqrt(lam[r - 1]))

    def _rank(self, lam: np.ndarray) -> int:
        """How many eigenvalues are not rounding errors."""
        return int(np.sum(lam > len(self._columns) * self.certainty.rounding))

    def _wide(self, V: np.ndarray) -> np.ndarray:
        if V.shape[1] == len(self.G):
            return V
        wide = np.zeros((len(V), len(self.G)))
        wide[:, self._columns] = V
        return wide

    def _shown(self, V: np.ndarray) -> np.ndarray:
        return flip_signs(np.array(self._wide(V), dtype=self.dtype, order="C"))

    def _directions(self) -> Found:
        if not self.certainty.n_certain:
            return super()._directions()
        if self.first is not None:
            parts = zip(self.first, self._rest(), strict=True)
            V, s = (np.concatenate(pair) for pair in parts)
            return V, s
        lam, W = self._pairs
        vars(self).pop("_pairs", None)  # another thread may have done it
        p = self._rank(lam)
        return self._shown(W[:, :p].T), np.sqrt(lam[:p])

    # ---------------------------------------------------------------- and of columns in any units

    def once(self, how: Hashable, find: Callable[[], Any]) -> Any:
        """What was found last, if in the same way, or else what ``find`` returns."""
        last = vars(self).get("_last")
        if last is None or last[0] != how:
            last = vars(self)["_last"] = how, find()
        return last[1]

    @computed_once
    def sizes(self) -> np.ndarray:
        """Roots of the diagonal; 1 where it is zero."""
        squares = self.G.diagonal()
        return np.sqrt(np.where(squares > 0, squares, 1.0))

    def over(self, scale: np.ndarray) -> np.ndarray:
        """Lower triangle of the scatter matrix of columns divided by a scale."""
        return np.divide(self.G / scale, scale[:, None], order="F")

    def certificate(self, scale: np.ndarray) -> dict[str, Any]:
        """Arguments of `top_of_scatter` for columns divided by a scale."""
        return {"lost": float(np.sum(self.lost / scale**2)), "dtype": self.precision}

    @computed_once
    def rows(self) -> np.ndarray:
        """See `Moments`; by directions of the columns divided by their sizes."""
        if self.certainty.n_certain:
            return self.singular_values[:, None] * self.components.astype(np.float64)
        d, sizes = len(self.G), self.sizes
        none = np.empty((0, d)), np.empty(0)
        with threads_for(16 * d * d):
            known = self.certificate(sizes)
            V, s = leading_directions(self.over(sizes), d, len, forced=True, **known) or none
        return s[:, None] * V * sizes

    @computed_once
    def n_components(self) -> int:
        """Number of directions, in hardly more time than by Cholesky's method."""
        used = self._columns
        m = len(used)
        with threads_for(16 * m * m):
            if self.certainty.n_certain:
                C, low = self._within(), m * self.certainty.rounding
                high = low
            else:
                C, known = self.over(self.sizes)[np.ix_(used, used)], self.certificate(self.sizes)
                # the largest eigenvalue of a unit diagonal is between 1 and m
                low, high = (m * rounding_of_scatter(size, **known) for size in (1.0, m))
            # directions that are found may be counted differently within rounding of these
            least = n_above(C, 2 * high)
            if least == m or least == n_above(C, low / 2):
                return least
        return len(self.singular_values if self.certainty.n_certain else self.rows)


def added(
    parts: Sequence[ScatterMatrix], more: np.ndarray, dtype: np.dtype, n_certain: int = 0
) -> ScatterMatrix | None:
    """The scatter matrix of the rows of several and of some more rows.

    None where the ``n_certain`` directions would not be certain; 0: whoever uses it finds out.
    """
    first, *others = parts
    G, lost, precision = add_rows(np.array(first.G, order="F"), more), first.lost, first.precision
    known = first.certainty
    for part in others:
        G += part.G
        lost, known = lost + part.lost, known.with_part(part.certainty)
        if part.precision.itemsize < precision.itemsize:
            precision = part.precision
    whole = ScatterMatrix(G, lost, precision, dtype)
    if n_certain:
        energy = float(np.square(more).sum())
        if not whole.judge(n_certain, known, energy, 0.0, np.dtype(np.float64)):
            return None
    return whole


def scatter_of_blocks(Z: np.ndarray, n_certain: int, dtype: np.dtype) -> dict[int, ScatterMatrix]:
    """Scatter matrices of blocks of centred rows, by the position of the block.

    Blocks are left out whose entries are not finite, or whose leading directions are not certain.

    Parameters
    ----------
    Z : ndarray of shape (c, n, d), float64
    n_certain : int
        Number of leading directions that must be certain.
    dtype : dtype
        Of the directions.
    """
    (_, n, d), double = Z.shape, np.dtype(np.float64)
    products = Z.transpose(0, 2, 1) @ Z
    usual = np.isfinite(products).all(axis=(1, 2))
    gone = n * d * float(np.finfo(double).tiny)
    found = {}
    for i in np.flatnonzero(usual).tolist():
        matrix = ScatterMatrix(products[i].T, np.zeros(d), double, dtype)
        if matrix.judge(n_certain, _NOTHING_KNOWN, norm_of_scatter(matrix.G), gone, double):
            found[i] = matrix
    return found
