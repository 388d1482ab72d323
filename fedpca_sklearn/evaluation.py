"""How well an estimator follows a stream: error and rank over time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.utils import check_array

from ._base.adjusting import adjusts
from ._kernels.sizes import slices_of
from ._validation.arrays import in_numpy
from ._validation.checks import check_integer, check_rows
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
        Squared Frobenius norm of the residuals of all rows so far from the present components, over
        the number of rows: Err^mse of [1]_. Times ``n_samples`` it is Err^F, which has no 1 / t.
    best_errors : ndarray
        The same for the best subspace of the same rank for the rows so far.
    prequential_errors : ndarray
        Mean squared residual, per entry, of the rows since the last checkpoint, each outside the
        components before its batch; NaN for the first batch.
    seconds : ndarray
        Time in `partial_fit` so far.
    accumulated_errors : ndarray or None
        The same as ``errors`` for the projected data that are kept from batch to batch, eq. 5 and
        15 of [1]_; None in a result that was made without.

    References
    ----------
    .. [1] A. Grammenos, R. Mendoza-Smith, C. Mascolo, J. Crowcroft, "Federated PCA with adaptive
       rank estimation", arXiv:1907.08059v1, 2019.
    """

    n_samples: np.ndarray
    ranks: np.ndarray
    errors: np.ndarray
    best_errors: np.ndarray
    prequential_errors: np.ndarray
    seconds: np.ndarray
    accumulated_errors: np.ndarray | None = None

    @property
    def excess(self) -> np.ndarray:
        """Error over the best one of the same rank, minus one; infinite where only that is 0."""
        best = self.best_errors
        none = np.where(self.errors > 0, np.inf, 0.0)
        return np.where(best > 0, self.errors / np.where(best > 0, best, 1) - 1, none)


def evaluate_stream(
    estimator: Any, X: Any, X_full: Any = None, *, batch_size: int = 50, n_checkpoints: int = 20
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
    TypeError
        If the estimator has no ``partial_fit``.
    ValueError
        If ``batch_size`` or ``n_checkpoints`` is not a positive integer, if X has missing entries
        and no ``X_full`` is there, or if their shapes differ.

    Notes
    -----
    Errors are Err^mse of Grammenos et al. (2019), squared Frobenius norms over the number of rows,
    measured about ``mean_``, or about the origin for an estimator that does not centre, from the R
    factor of the rows so far: O(d^2) memory, O(n d^2) time and O(d^3) a checkpoint.

    ``errors`` project every row on the components of the checkpoint. ``accumulated_errors`` are of
    the projected data of eq. 5 there: after each batch its rows and the projections of all earlier
    ones are projected on the components of that time, but for those that have just been added and
    whose singular value is 0. For SPCA and SAPCA, `StreamingPCA` without centring and oversampling
    and with batches as its blocks, they are the scatter less the squared singular values. They are
    measured without keeping the projections, in O(d k) memory and O(d k^2) time a batch for k
    components.

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
        check_integer(name, value)
    if not hasattr(estimator, "partial_fit"):
        raise TypeError(f"estimator must have partial_fit, got {estimator!r}.")
    if adjusts(estimator):
        raise ValueError(
            "estimator must have scale=False and partial_out=None, as errors are those of the rows "
            f"as they are, got {estimator!r}."
        )
    X = check_rows(in_numpy(X), allow_nan=True)
    if X_full is None and np.isnan(X.data if sp.issparse(X) else X).any():
        raise ValueError("X contains NaN, so errors need the complete rows: give X_full.")
    full = X
    if X_full is not None:
        full = check_array(in_numpy(X_full), dtype=np.float64, input_name="X_full")
        if full.shape != X.shape:
            raise ValueError(f"X_full must have the shape of X, {X.shape}, got {full.shape}.")
    n, d = X.shape
    model = clone(estimator)
    batches = list(slices_of(n, batch_size))
    ends = np.linspace(0, len(batches), min(n_checkpoints, len(batches)) + 1).astype(int)
    shown = set((ends[1:] - 1).tolist())
    triangle = triangle_of_rows(full[:0])
    seconds, squares, predicted = 0.0, 0.0, 0
    rows = []
    projected = _ProjectedData(d)
    for i, at in enumerate(batches):
        if i:
            batch = _dense(full[at])
            squares += _left(batch - getattr(model, "mean_", 0.0), model.components_)
            predicted += len(batch)
        begin = time.perf_counter()
        model.partial_fit(X[at])
        seconds += time.perf_counter() - begin
        projected.take(_dense(full[at]), model)
        if i not in shown:
            continue
        new = triangle_of_rows(full[triangle.n_rows : at.stop])
        triangle = pooled(merge_factors(triangle.factor, new.factor), [triangle, new])
        error, best = _errors(triangle, model)
        mse = squares / (predicted * d) if predicted else np.nan
        kept = projected.error / at.stop
        rows.append((at.stop, len(model.components_), error, best, mse, seconds, kept))
        squares, predicted = 0.0, 0
    return StreamEvaluation(*map(np.array, zip(*rows, strict=True)))


class _ProjectedData:
    """Error of the data that a model has projected batch by batch, without the data.

    The projections of n rows are Z B, with the coordinates Z, n x (k + 1), whose last column is
    ones, and B of the components and the mean. Projected again they are Z T B', so that the
    residuals E of the rows become E + Z W with W = B - T B'. Only ``error``, the squared norm of E,
    Z^T Z and E^T Z are kept.
    """

    def __init__(self, d: int):
        self.error = 0.0
        self._basis = np.zeros((1, d))
        self._squares = np.zeros((1, 1))
        self._products = np.zeros((d, 1))

    def take(self, rows: np.ndarray, model: Any) -> None:
        """Project the projections so far, and more rows, on the components of a model."""
        V = model.components_.astype(np.float64)
        V = V[np.asarray(getattr(model, "singular_values_", np.ones(len(V)))) > 0]
        mean = np.broadcast_to(getattr(model, "mean_", 0.0), (V.shape[1],))
        old, G, A = self._basis, self._squares, self._products
        onto = np.zeros((len(old), len(V) + 1))
        onto[:, :-1] = old @ V.T
        onto[-1, :-1] -= mean @ V.T
        onto[-1, -1] = 1
        basis = np.concatenate([V, mean[None]])
        W = old - onto @ basis
        new = np.column_stack([(rows - mean) @ V.T, np.ones(len(rows))])
        rest = rows - new @ basis
        before = self.error + 2 * float(np.einsum("ij,ji->", A, W)) + float(np.sum(W * (G @ W)))
        self.error = max(before, 0.0) + float(np.einsum("ij,ij->", rest, rest))
        self._basis = basis
        self._products = (A + W.T @ G) @ onto + rest.T @ new
        self._squares = onto.T @ G @ onto + new.T @ new


def _errors(triangle: Triangle, model: Any) -> tuple[float, float]:
    """Err^mse of a model, and of the best subspace of its rank, from all rows' R factor."""
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
