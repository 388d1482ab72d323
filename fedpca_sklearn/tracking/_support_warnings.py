"""Warnings of supports that say little: empty though much is left, or almost full."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np

from .._kernels import linalg
from .._kernels.missing import coordinates
from .._kernels.tolerances import MAX_GAIN_IN_SVD
from ._outliers import search_batch

# Rows from which on a batch is judged.
_ROWS = 10
# Share of entries up to which a support is empty, and from which on others are missed.
_EMPTY = 1e-4
_MISSED = 1e-3
# Share of outliers that is little beside half of the entries.
_FEW = 0.01
# Share of a batch's squares about the mean that is much, and how many times as large as that of
# noise the largest singular value, squared, of what is left then is.
_MUCH = 0.05
_STRUCTURE = 2.0
# Share of the squares about the origin of half of the columns from which on the subspace says
# nothing of the rows.
_MOST = 0.75
# Fourth moment over the second squared below which values are in two heaps: 3 of normal ones, 2 of
# outliers in 3 of 5 entries.
_HEAPS = 2.5


def warn_of_support(
    mask: np.ndarray,
    Z: np.ndarray,
    V: np.ndarray,
    mean: np.ndarray,
    threshold: float | Literal["auto"],
) -> None:
    """Warn of a batch whose support is empty or almost full, though it should not be."""
    seen = ~np.isnan(Z)
    if len(Z) < _ROWS or not len(V) or not seen.any():
        return
    share = mask.sum() / seen.sum()
    if threshold == "auto":
        _warn_of_rest(mask, Z, V, mean, share)
    elif share <= _EMPTY:
        _warn_of_empty(Z, V, threshold)
    if share > 0.5:
        _warn_of_full(mask, Z, V, threshold)


def _warn_of_rest(
    mask: np.ndarray, Z: np.ndarray, V: np.ndarray, mean: np.ndarray, share: float
) -> None:
    unit = -np.frexp(np.nanmax(np.abs(Z)))[1]  # fourth powers may overflow or vanish
    Z, mean = np.ldexp(Z, unit), np.ldexp(mean, unit)
    kept = np.where(mask, np.nan, Z)
    C, _ = coordinates(kept, V)
    R = kept - C @ V
    if share <= _FEW and _two_heaps(R, kept + mean):
        _warn(
            f"n_components={len(V)} explains little of what is no outlier in a batch: it is too "
            "small, or about half of the entries are outliers or more, which only "
            "support_threshold can tell apart."
        )
    elif share <= _EMPTY and _much_structure(R, kept) and _lacks(kept, C @ V, len(V)):
        _warn(
            f"No entry of a batch is an outlier, though n_components={len(V)} leaves a part of it "
            "that is no noise: thresholds follow what is left. Raise n_components, or set "
            "support_threshold."
        )


def _two_heaps(R: np.ndarray, X: np.ndarray) -> bool:
    """Whether most of most columns is left, and values near zero are rarer than in noise.

    Columns of zeros say nothing.
    """
    left, total = np.nansum(R**2, axis=0), np.nansum(X**2, axis=0)
    some = total > 0
    if not some.any() or np.median(left[some] / total[some]) <= _MOST:
        return False
    R, left = R[:, some], left[some]
    n = np.maximum((~np.isnan(R)).sum(axis=0), 1)
    fourth = n * np.nansum(R**4, axis=0) / np.where(left > 0, left, 1.0) ** 2
    return bool(np.median(fourth) < _HEAPS)


def _warn_of_empty(Z: np.ndarray, V: np.ndarray, threshold: float | Literal["auto"]) -> None:
    missed = search_batch(Z, V, coordinates(Z, V)[0])[0].sum() / np.sum(~np.isnan(Z))
    if missed > _MISSED:
        _warn(
            f"No entry of a batch is above support_threshold={threshold}, though some are far "
            'above what is left of the others: lower support_threshold, or leave it at "auto".'
        )


def _lacks(Z: np.ndarray, fit: np.ndarray, k: int) -> bool:
    """Whether k directions of a batch's own leave more of it than noise."""
    Z = np.where(np.isnan(Z), fit, Z)
    _, W = linalg.eigh_top(Z @ Z.T, k)
    W = W[:, :k]
    rest = Z - W @ (W.T @ Z)
    return _much_structure(rest, Z)


def _much_structure(R: np.ndarray, Z: np.ndarray) -> bool:
    """Whether what is left of rows is much, with a direction of more variance than noise has."""
    if not np.nansum(R**2) > _MUCH * np.nansum(Z**2):
        return False
    R = np.nan_to_num(R)
    size = np.sqrt(np.einsum("ij,ij->j", R, R) / len(R))
    R = R / np.where(size > 0, size, 1.0)
    m, d = np.count_nonzero(R.any(axis=1)), np.count_nonzero(size)
    largest = np.linalg.norm(R @ R.T if len(R) <= R.shape[1] else R.T @ R, 2)
    return bool(largest > _STRUCTURE * (np.sqrt(m) + np.sqrt(d)) ** 2)


def _warn_of_full(
    mask: np.ndarray,
    Z: np.ndarray,
    V: np.ndarray,
    threshold: float | Literal["auto"],
) -> None:
    _, before = coordinates(Z, V)
    _, after = coordinates(np.where(mask, np.nan, Z), V)
    lost = np.mean((before <= MAX_GAIN_IN_SVD) & (after > MAX_GAIN_IN_SVD))
    if lost > 0.5:
        change = "set" if threshold == "auto" else "raise"
        _warn(
            "Almost all entries of a batch are outliers, so that what is left of most rows does "
            f"not determine their coordinates: {change} support_threshold (now {threshold!r}), or "
            "raise n_components."
        )


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=2)
