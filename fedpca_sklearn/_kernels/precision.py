"""Precisions in which the products of rows are made, one after the other."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .device_rows import DeviceRows
from .linalg import least_certain
from .scatter import dense
from .sizes import MOST_APART

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
# Rows of a sample for each of its eigenvalues, and further ones; and how many times as many
# multiplications as theirs all rows take.
_ROWS_FOR_EACH, _ROWS_AND_MORE, _SHARE_OF_SAMPLE = 4, 32, 256
# Eigenvalues of a sample from which on they are taken to go on as a power law.
_FEWEST = 4
# Directions whose parts may be taken off the rows; a few more hardly take longer. Of fewer columns
# products in float64 take no longer than that.
_FEW, _LEAST_COLUMNS = (4, MOST_APART), 64
# Factor by which a sample's ratios of eigenvalues may be off: with 4 rows for each, power laws have
# up to 1.5 times the ratio of a small one to the largest.
_OFF = 1.5


class Precision(NamedTuple):
    """That of products, and directions whose parts are taken off the rows before."""

    dtype: np.dtype
    deflation: np.ndarray | None = None


class Sample:
    """Eigenvalues of the scatter of some rows, in decreasing order, and the first directions."""

    def __init__(self, rows: np.ndarray):
        self._rows = rows
        self._of_columns = len(rows) > rows.shape[1]
        self._G = rows.T @ rows if self._of_columns else rows @ rows.T
        self.is_finite = bool(np.isfinite(self._G.trace()))

    def eigenvalues(self) -> np.ndarray:
        return np.linalg.eigvalsh(self._G)[::-1]

    def directions(self, q: int) -> np.ndarray:
        W = np.linalg.eigh(self._G)[1][:, : -q - 1 : -1]
        return (W if self._of_columns else np.linalg.qr(self._rows.T @ W)[0]).T


def precisions(
    Y: Any, dtype: np.dtype, count: int, V: np.ndarray, s: np.ndarray
) -> list[Precision]:
    """Those in which the scatter matrix of rows may be made for so many directions.

    In float32 unless that would most likely be in vain, by what the directions of the past or else
    some of the rows say of the eigenvalues that must be certain. Nothing is known of these where
    ``count`` is zero, or the past has fewer.
    """
    exact, plain = Precision(_FLOAT64), Precision(_FLOAT32)
    if dtype == _FLOAT64:
        return [exact]
    deflation = not isinstance(Y, DeviceRows) and Y.shape[1] >= _LEAST_COLUMNS
    share, off, known = least_certain(1.0, dtype=_FLOAT32), 1.0, count
    sample, lam = None, s**2
    if count and not len(s):
        m = _rows_of_sample(Y.shape, _ROWS_FOR_EACH * count + _ROWS_AND_MORE)
        known = min(count, (m - _ROWS_AND_MORE) // _ROWS_FOR_EACH)
        if known >= min(count, _FEWEST):
            sample = _sample_of(Y, m)
        if sample is not None:
            lam, off = sample.eigenvalues(), _OFF if deflation else 1.0
    if not 0 < known <= len(lam):
        return [plain, exact]
    least, largest = lam[known - 1], lam[0]
    if least > 0 and known < count:
        fall = math.log2(lam[known // 2 - 1] / least)
        least *= (known / count) ** fall
    if least > off * share * largest:
        return [plain, exact]
    if deflation and least > off * share**2 * largest:
        for q in _FEW:
            if q < len(lam) and least > off * share * lam[q]:
                return [Precision(_FLOAT32, sample.directions(q) if sample else V[:q]), exact]
    return [exact]


def _rows_of_sample(shape: tuple[int, int], most: int) -> int:
    """The most rows of a sample which do not take long beside the scatter of all rows."""
    n, d = shape
    m = int((n * d * d / _SHARE_OF_SAMPLE) ** (1 / 3))
    return min(n, most, m if m < d else most)


def _sample_of(Y: Any, m: int) -> Sample | None:
    """That of about so many rows; None where it is not finite."""
    some = dense(Y[:: Y.shape[0] // m]).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # of which others tell
        some -= some.mean(axis=0)  # exactly zero of few float32 that do not vary
        sample = Sample(some)
    return sample if sample.is_finite else None
