"""How well an estimator follows a stream: error and rank over time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.utils import check_array

from ._kernels.slices import slices_of
from .summary._triangle import Triangle, merge_factors, pooled, triangle_of_rows

__all__ = ["StreamEvaluation", "evaluate_stream"]


@dataclass(frozen=True)
class StreamEvaluation:
    """Result of `evaluate_stream`: one value for each checkpoint.

    Attributes
    ----------
    n_samples : ndarray of int
        Rows seen.
    ranks : ndarray of int
        Components of the estimator.
    errors : ndarray
        Err_F: squared Frobenius norm of the residuals of all rows so far, per row.
    best_errors : ndarray
        The same for the best subspace of the same rank for the rows so far.
    prequential_errors : ndarray
        Mean squared residual, per entry, of the rows since the last checkpoint, each outside the
        components before its batch; NaN for the first batch.
    seconds : ndarray
        Time in `partial_fit` so far.
    """

    n_samples: np.ndarray
    ranks: np.ndarray
    errors: np.ndarray
    best_errors: np.ndarray
    prequential_errors: np.ndarray
    seconds: np.ndarray

    @property
    def excess(self) -> np.ndarray:
        """Error over the best one of the same rank, minus one; infinite where only that is 0."""
        best = self.best_errors
        none = np.where(self.errors > 0, np.inf, 0.0)
        return np.where(best > 0, self.errors / np.where(best > 0, best, 1) - 1, none)


def evaluate_stream(
    estimator: Any,
    X: Any,
    X_full: Any = None,
    *,
    batch_size: int = 50,
    n_checkpoints: int = 20,
) -> StreamEvaluation:
    """Stream rows through a copy of an estimator, and record its error and rank.

    Parameters
    ----------
    estimator : estimator
        With ``partial_fit`` and ``components_``; not changed.
    X : {array-like, sparse matrix} of shape (n, d)
        Rows that the estimator gets; float32 is kept.
    X_full : array-like of shape (n, d), default=None
        The rows without missing entries (NaN in X) and outliers, from which errors are measured.
        None: X.
    batch_size : int, default=50
        Rows per `partial_fit`.
    n_checkpoints : int, default=20
        Points in time, evenly spread over the batches, at which the error is measured.

    Returns
    -------
    evaluation : StreamEvaluation
        Errors and ranks, one of each for every checkpoint.

    Raises
    ------
    ValueError
        If ``batch_size`` or ``n_checkpoints`` is not a positive integer, if X has missing entries
        and no ``X_full`` is there, or if their shapes differ.

    Notes
    -----
    Err_F is the squared Frobenius error of Grammenos et al. (2020) over the number of rows. It is
    measured about ``mean_``, or about the origin for an estimator that does not centre, from the R
    factor of the rows so far: O(d^2) memory, O(n d^2) time and O(d^3) a checkpoint.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import FrequentDirections, evaluate_stream
    >>> stream = evaluate_stream(FrequentDirections(5), load_digits().data, n_checkpoints=3)
    >>> stream.n_samples
    array([ 600, 1200, 1797])
    >>> stream.excess.round(4)
    array([0.0074, 0.01  , 0.0068])
    """
    for name, value in (("batch_size", batch_size), ("n_checkpoints", n_checkpoints)):
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} must be a positive integer, got {value!r}.")
    X = check_array(
        X,
        accept_sparse="csr",
        dtype=[np.float64, np.float32],
        ensure_all_finite="allow-nan",
        input_name="X",
    )
    if X_full is None and np.isnan(X.data if sp.issparse(X) else X).any():
        raise ValueError("X contains NaN, so errors need the complete rows: give X_full.")
    full = X
    if X_full is not None:
        full = check_array(X_full, dtype=np.float64, input_name="X_full")
        if full.shape != X.shape:
            raise ValueError(f"X_full must have the shape of X, {X.shape}, got {full.shape}.")
    n, d = X.shape
    model = clone(estimator)
    batches = list(slices_of(n, batch_size))
    n_shown = min(n_checkpoints, len(batches))
    ends = np.unique(np.linspace(0, len(batches), n_shown + 1).astype(int))
    shown = set((ends[1:] - 1).tolist())
    triangle = triangle_of_rows(full[:0])
    seconds, squares, predicted = 0.0, 0.0, 0
    rows = []
    for i, at in enumerate(batches):
        if i:
            batch = _dense(full[at])
            squares += _left(batch - getattr(model, "mean_", 0.0), model.components_)
            predicted += len(batch)
        begin = time.perf_counter()
        model.partial_fit(X[at])
        seconds += time.perf_counter() - begin
        if i not in shown:
            continue
        new = triangle_of_rows(full[triangle.n_rows : at.stop])
        triangle = pooled(merge_factors(triangle.factor, new.factor), [triangle, new])
        error, best = _errors(triangle, model)
        mse = squares / (predicted * d) if predicted else np.nan
        rows.append((at.stop, len(model.components_), error, best, mse, seconds))
        squares, predicted = 0.0, 0
    columns = list(map(np.array, zip(*rows, strict=True)))
    return StreamEvaluation(*columns)


def _errors(triangle: Triangle, model: Any) -> tuple[float, float]:
    """Err_F of a model per row, and of the best subspace of its rank, from all rows' R factor."""
    n, A, V = triangle.n_rows, triangle.factor, model.components_.astype(np.float64)
    off = (triangle.mean - getattr(model, "mean_", 0.0))[None]
    if not hasattr(model, "mean_") or not np.any(model.mean_):
        A = np.concatenate([A, np.sqrt(n) * off])
        off = np.zeros_like(off)
    s = np.linalg.svd(A, compute_uv=False)
    rounding = (A.shape[1] * np.finfo(np.float64).eps) ** 2 * float(s @ s)
    errors = _left(A, V) + n * _left(off, V), float(np.sum(s[len(V) :] ** 2))
    error, best = (value / n if value > rounding else 0.0 for value in errors)
    return error, best


def _left(rows: np.ndarray, V: np.ndarray) -> float:
    """Squared norm of the rows less their projection on a basis."""
    rest = rows - (rows @ V.T) @ V
    return float(np.einsum("ij,ij->", rest, rest))


def _dense(rows: Any) -> np.ndarray:
    rows = rows.toarray() if sp.issparse(rows) else rows
    return rows.astype(np.float64, copy=False)
