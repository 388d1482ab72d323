"""A summary made better by products of the scatter matrix of all rows with its directions."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import scipy.linalg

from .._kernels import linalg
from .._kernels.certificates import (
    N_PROBES,
    Certificate,
    certificate_of_cut,
    certificate_of_products,
    rounding_of,
)
from .._kernels.linalg import flip_signs
from .._kernels.row_moments import RowMoments, RowsAtHand
from .._kernels.subspace_passes import ProductSpace, nystrom
from .._kernels.too_large import too_large
from .._validation.checks import check_rows
from ._adjusted import (
    Adjusted,
    Adjusting,
    Adjustment,
    adjusted,
    scatter_of_columns,
    with_directions,
)
from ._merging import in_float64
from ._subspace import Subspace

# Shares by which number, mean and scatter of the rows may differ from those of a summary: far above
# rounding errors, also those of sums in float32 for the last.
_SAME_COUNT, _SAME_MEAN, _SAME_SCATTER = 1e-9, 1e-7, 1e-5
_TOO_MUCH = "X must hold the rows of the fit: their products exceed the sum of squares."


def products_of(
    own: RowMoments, mean: np.ndarray, V: np.ndarray, weight: np.ndarray | None = None
) -> np.ndarray:
    """Scatter matrix of rows about a mean times directions; deviation of their sum, scatter, count.

    One after the other in a vector of k d + d + 2 numbers, of which those of all rows are the sum.
    The weights of the rows are for errors.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        sums = [*own.deviation(mean), own.scatter_about(mean), own.n_samples]
        answer = np.append(own.products(mean, V), sums)
    if not np.isfinite(answer).all():
        raise too_large("sum of products", weight=weight)
    return answer


def local_products(
    label: Any, rows: Any, weight: np.ndarray | None, mean: np.ndarray, V: np.ndarray
) -> np.ndarray:
    """Local work of a client: `products_of` its rows."""
    return products_of(RowsAtHand(check_rows(rows), weight), mean, V, weight)


def check_same_rows(before: Subspace, count: float, deviation: np.ndarray, scatter: float) -> None:
    """Raise unless rows have the weight, mean and sum of squares of a summary of them."""
    if not abs(count - before.n_samples) <= _SAME_COUNT * before.n_samples:
        raise ValueError(
            f"X must hold the rows of the fit, which have a weight of {before.n_samples:.15g}, "
            f"got rows of weight {count:.15g}."
        )
    with np.errstate(over="ignore"):  # as liars can make it
        off = float(np.linalg.norm(deviation / count))
    size = np.sqrt(before.scatter / count) + float(np.linalg.norm(before.mean))
    if before.centered and not off <= _SAME_MEAN * size:
        raise ValueError(
            f"X must hold the rows of the fit, whose mean is another: it is {off:.1e} away."
        )
    if not abs(scatter - before.scatter) <= _SAME_SCATTER * before.scatter:
        raise ValueError(
            f"X must hold the rows of the fit, whose sum of squares is {before.scatter:.7g}, "
            f"got {scatter:.7g}."
        )


class Refinement:
    """Rounds of products that take a summary towards that of a decomposition of all rows.

    A round multiplies the scatter matrix of all rows with a block of k directions and eight vectors
    at random; the block of the first round are the directions of the summary. The summary that
    comes out is the best of the block Krylov space of all rounds, by Nystroem's approximation.

    Parameters
    ----------
    summary : Subspace
        With a positive scatter. Its mean, count and scatter are those of all rows.
    off : float, default=0.0
        How far each number of a product may be off by more than rounding errors, as where messages
        are rounded to integers. Directions in which the products are no larger are left out, and
        what is certain allows for it.

    Attributes
    ----------
    rows : Subspace
        That of the rows which are multiplied.
    block : ndarray of shape (b, d)
        Orthonormal rows whose products are wanted next; none where nothing is left to find.
    """

    def __init__(self, summary: Subspace, off: float = 0.0):
        self.before = self.rows = summary
        self.off = off
        start = in_float64(summary).components
        k, d = start.shape
        self.n_start = k
        self.probes = _rng_of(summary).standard_normal((min(N_PROBES, d - k), d))
        self._space = ProductSpace(np.concatenate([start, self.probes]))

    @property
    def block(self) -> np.ndarray:
        """Directions whose products are wanted."""
        return self._space.block

    @property
    def n_rounds(self) -> int:
        """Products so far."""
        return self._space.n_products

    @property
    def _off(self) -> float:
        """How far all products together may be off, in units of the scatter."""
        return self.off / self.before.scatter * float(np.sqrt(self._space.products.size))

    def add(self, answer: np.ndarray) -> None:
        """Take the sum of `products_of` all rows with the block, or raise for other rows."""
        products, deviation, (scatter, count) = np.split(answer, [self.block.size, -2])
        check_same_rows(self.rows, float(count), deviation, float(scatter))
        products = self._products(products.reshape(self.block.shape))
        # in units of the scatter, so that nothing overflows
        products = products / self.before.scatter
        with np.errstate(over="ignore"):  # as liars can make it
            size = float(np.linalg.norm(products))
        off = self.off / self.before.scatter * float(np.sqrt(products.size))
        if not size <= 1 + _SAME_SCATTER + off:  # directions are orthonormal
            raise ValueError(_TOO_MUCH)
        self._space.add(products)

    def _products(self, products: np.ndarray) -> np.ndarray:
        """Products of the scatter matrix that is approximated, from those of the rows."""
        return products

    def summary(self) -> Subspace:
        """The summary of all rows with as many directions as before.

        Raises
        ------
        ValueError
            If the products say of the rows that they have more variance than they have.
        """
        before = self.before
        V, s = nystrom(self._space.basis, self._space.products, self._off)
        if s @ s > 1 + _SAME_SCATTER:
            raise ValueError(_TOO_MUCH)
        k = min(self.n_start or len(s), len(s))
        V = flip_signs(np.array(V[:k])).astype(before.components.dtype, copy=False)
        s = s[:k] * np.sqrt(before.scatter)
        scatter = max(before.scatter, float(s @ s))
        columns = before.column_scatter
        return before._replace(
            components=V, singular_values=s, scatter=scatter, column_scatter=columns
        )

    def certificate(self, rank: int) -> Certificate:
        """What is certain about the first directions of the summary, a number of them."""
        before, space = self.before, self._space
        found = certificate_of_products(
            space.basis,
            space.products,
            self.n_start,
            self.probes,
            space.n_products,
            rank,
            1.0,
            rounding_of(1.0, before.n_samples, np.dtype(np.float64)),
            self._off,
        )
        stored = float(np.finfo(before.components.dtype).eps) * np.sqrt(rank)
        return Certificate(found.sine + stored, found.eigenvalues * before.scatter)


def _rng_of(summary: Subspace) -> np.random.Generator:
    """Random numbers that are the same wherever a summary is refined, and others for another one.

    Those of a refined summary must not be those that it depends on. Components count to 2^-20, so
    that sums which were rounded in another order lead to the same numbers.
    """
    components = np.rint(summary.components * 2.0**20).astype(np.int32)
    digest = hashlib.blake2b(components.tobytes(), digest_size=32).digest()
    return np.random.default_rng(np.frombuffer(digest, "<u4"))


def certificate_of_summary(summary: Subspace, rank: int, off: float = 0.0) -> Certificate:
    """What is certain about the first directions of a summary that never exceeds its rows.

    That is so for directions that were cut from a decomposition, however often. ``off`` is how far
    the scatter matrix of the rows was off by more than rounding errors of the dtype.
    """
    rounding = rounding_of(summary.scatter, summary.n_samples, summary.components.dtype) + off
    values = summary.singular_values**2
    return certificate_of_cut(values, rank, summary.n_features, summary.scatter, rounding)


class AdjustedRefinement(Refinement):
    """Rounds of products for the summary of adjusted rows.

    Sites multiply the scatter matrix of their rows, as they are, with orthonormal directions that
    span those of the adjusted rows in the columns of the rows; scales and effects are those of the
    summary before. Where it has cut confounders, the first round asks about their columns as well,
    so that effects are those of all rows from then on, and the rounds begin again.

    Parameters
    ----------
    summary : Subspace
        Of the rows.
    adjusting : Adjusting
    """

    def __init__(self, summary: Subspace, adjusting: Adjusting):
        self._adjusting, self._rounds_before = adjusting, 0
        found = adjusted(summary, adjusting)
        self._begin(summary, _with_confounders(found, summary) if found.is_cut else found)

    def _begin(self, summary: Subspace, found: Adjusted) -> None:
        super().__init__(found.model)
        self.rows, self._adjusted = summary, found
        if found.is_cut:
            self.n_start = 0  # a cut of what comes out would cut confounders again
        self._asked: tuple[int, np.ndarray, np.ndarray] | None = None

    @property
    def n_rounds(self) -> int:
        """Products so far."""
        return self._rounds_before + self._space.n_products

    @property
    def block(self) -> np.ndarray:
        """Directions whose products are wanted, of the rows as they are; none without variance."""
        if not self.before.scatter or not len(super().block):
            return np.empty((0, self.rows.n_features))
        return self._question()[0]

    def _question(self) -> tuple[np.ndarray, np.ndarray]:
        """Orthonormal rows W and L, of which L W are the directions in the columns of the rows."""
        if self._asked is None or self._asked[0] != self.n_rounds:
            loadings = self._adjusted.adjustment.loadings(super().block)
            Q, R = scipy.linalg.qr(loadings.T, mode="economic")
            self._asked = self.n_rounds, np.ascontiguousarray(Q.T), R.T
        return self._asked[1:]

    def _products(self, products: np.ndarray) -> np.ndarray:
        return self._adjusted.adjustment.adjust(self._question()[1] @ products)

    def add(self, answer: np.ndarray) -> None:
        """Take the sum of `products_of` all rows with the block, or raise for other rows."""
        super().add(answer)
        if self._adjusted.is_cut:
            summary, self._rounds_before = self.summary(), self.n_rounds
            found = adjusted(summary, self._adjusting)
            self._begin(summary, found._replace(is_cut=False))

    def summary(self) -> Subspace:
        """The summary of the rows, of which that of the adjusted rows is refined."""
        if not self._space.n_products:
            return self.rows
        return self._adjusted.restored(super().summary(), self.rows)

    def certificate(self, rank: int) -> Certificate:
        """What is certain about the first directions of the summary, a number of them."""
        if not self._space.n_products:
            return certificate_of_summary(self.before, rank)
        return super().certificate(rank)


def _with_confounders(found: Adjusted, summary: Subspace) -> Adjusted:
    """Directions of adjusted rows and confounders, in columns divided by their deviations only."""
    d = summary.n_features
    scatter = scatter_of_columns(summary)
    scale = np.sqrt(scatter / summary.n_samples)
    scale[scale == 0] = 1.0
    how = found.adjustment
    start = np.concatenate(
        [np.eye(d)[how.confounders], how.loadings(found.model.components) * scale]
    )
    V = linalg.orthonormalised(start)
    joint = with_directions(summary, V, np.zeros(len(V)), np.zeros(d), scatter / scale**2)
    none = np.zeros(0, dtype=int)
    only_scaled = Adjustment(none, np.arange(d), np.zeros((0, d)), scale)
    return Adjusted(joint, only_scaled, np.zeros((0, d)), is_cut=True)
