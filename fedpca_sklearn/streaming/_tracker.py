"""The shell of the one-stream trackers: everything but the update rule."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import assert_all_finite, check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted, validate_data

from .._callbacks import CallbackSupportMixin, progress, with_callbacks
from .._checks import check_at_most_features
from .._projections import along
from ..base import SubspaceTransformer
from ..subspace import Subspace
from ._blocks import float_dtype, is_stream, validated_batches
from ._innovations import Features, innovations

# Rows that a tracker sees at once unless its rule needs another number.
ROWS_AT_ONCE = 32


@dataclass(frozen=True)
class _State:
    """What a stream leaves behind.

    ``rule`` is the tracker's own; ``factor.T @ factor`` the scatter matrix of the rows within
    ``basis``; ``waiting`` holds rows that do not fill a block yet.
    """

    rule: Any
    basis: np.ndarray
    factor: np.ndarray
    known: Features
    n_rows: int
    waiting: np.ndarray
    dtype: np.dtype


class Tracker(CallbackSupportMixin, SubspaceTransformer):
    """Base of the estimators that follow the principal subspace of one stream.

    A subclass implements the rule on centred rows, which come in blocks of the same number of rows
    however the stream is cut:

    - ``_begin(d, rng)`` returns the state of the rule before the first row;
    - ``_update(rule, Z)`` returns the state after a block and changes nothing;
    - ``_basis(rule)`` returns the orthonormal rows that span the subspace now.

    The shell validates, centres (see `innovations`), and measures what a rule does not estimate:
    variances, from the coordinates of the rows of each block in the basis before it, turned along
    with the basis.
    """

    _parameter_constraints: dict = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "center": ["boolean"],
    }
    _allows_missing = False
    forgetting_factor = 1.0
    random_state = None

    @with_callbacks
    def fit(self, X: Any, y: Any = None) -> Any:
        """Fit from scratch.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d), or iterable of such batches
            Sparse rows are densified block by block.
        y : Ignored

        Returns
        -------
        self : object
        """
        return self._consume(X, None)

    @with_callbacks
    def partial_fit(self, X: Any, y: Any = None) -> Any:
        """Go on with more rows; how the stream is cut does not matter.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d), or iterable of such batches
        y : Ignored

        Returns
        -------
        self : object
            Unchanged if an error is raised.
        """
        return self._consume(X, getattr(self, "_state", None))

    # ---------------------------------------------------------------- what a rule supplies

    @abstractmethod
    def _begin(self, d: int, rng: np.random.RandomState) -> Any:
        """State of the rule before the first row."""

    @abstractmethod
    def _update(self, rule: Any, Z: np.ndarray) -> Any:
        """State after a block of centred rows."""

    @abstractmethod
    def _basis(self, rule: Any) -> np.ndarray:
        """Orthonormal rows that span the subspace."""

    def _rows_at_once(self, d: int) -> int:
        return ROWS_AT_ONCE

    def _show(self, rule: Any) -> None:
        """Set the fitted attributes that only this tracker has."""

    # ---------------------------------------------------------------- the stream

    def _consume(self, X: Any, state: _State | None) -> Any:
        self._validate_params()
        first = state is None
        with self._unchanged_on_error():
            batches = validated_batches(self, X, first, self._rows_at_once)
            n_batches = None if is_stream(X) else 1
            for batch in progress(self, batches, n_batches, "batches"):
                d = batch.shape[1]
                if state is None:
                    check_at_most_features(self.n_components, d)
                    state = self._start(d, float_dtype(batch))
                state = self._take(state, batch)
            self._state = state
            shown = self._absorb(state, state.waiting) if len(state.waiting) else state
            self._set_fitted(self._summary(shown), len(shown.basis), state.n_rows)
            self._show(shown.rule)
        return self

    def _start(self, d: int, dtype: np.dtype) -> _State:
        rule = self._begin(d, check_random_state(self.random_state))
        basis = self._basis(rule)
        k = len(basis)
        return _State(rule, basis, np.zeros((k, k)), Features.empty(d), 0, np.empty((0, d)), dtype)

    def _take(self, state: _State, batch: Any) -> _State:
        """Go through the full blocks of the rows that wait and a batch; the rest waits."""
        n, d = batch.shape
        size = self._rows_at_once(d)
        known = len(state.waiting)
        for start in range(-known, n, size):
            rows = batch[max(start, 0) : start + size]
            rows = rows.toarray() if sp.issparse(rows) else rows
            rows = rows.astype(np.float64)
            assert_all_finite(
                rows,
                allow_nan=self._allows_missing,
                estimator_name=type(self).__name__,
                input_name="X",
            )
            if start < 0:
                rows = np.concatenate([state.waiting, rows])
            if len(rows) == size:
                state = self._absorb(state, rows)
                rows = rows[:0]
        n_rows = state.n_rows + n
        return _State(**{**vars(state), "waiting": rows, "n_rows": n_rows})

    def _absorb(self, state: _State, Y: np.ndarray) -> _State:
        f = self.forgetting_factor
        Z, known = innovations(state.known, Y, self.center, f)
        rule = self._update(state.rule, Z)
        V = self._basis(rule)
        # in the basis before, except for the first rows: a basis fits the rows it has just seen
        first = not np.any(state.known.weight)
        C = coordinates(Z, V if first else state.basis)
        if f < 1:
            C *= (f ** (np.arange(len(C) - 1, -1, -1) / 2))[:, None]
        if first:
            factor = np.linalg.qr(C, mode="r")
        else:
            before = state.factor * f ** (len(C) / 2)
            factor = np.linalg.qr(np.concatenate([before, C]), mode="r") @ _turn(state.basis, V)
        return _State(rule, V, factor, known, state.n_rows, state.waiting, state.dtype)

    def _summary(self, state: _State) -> Subspace:
        known = state.known
        weight = np.broadcast_to(known.weight, known.mean.shape)
        n = float(weight.max())
        # a feature that was missing at times counts as if it had always been there
        scatter = float((known.squares * (n / np.where(weight > 0, weight, np.inf))).sum())
        empty = np.zeros((0, len(known.mean)), state.dtype)
        total = Subspace._trusted(empty, np.zeros(0), known.mean, n, scatter, self.center)
        return along(total, state.basis, state.factor)

    # ---------------------------------------------------------------- rows with missing entries

    def _check_X(self, X: Any) -> Any:
        if not self._allows_missing:
            return super()._check_X(X)
        check_is_fitted(self, "components_")
        return validate_data(
            self,
            X,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            ensure_all_finite="allow-nan",
            reset=False,
        )

    def _project(self, X: Any, squared_norms: np.ndarray | None = None) -> np.ndarray:
        values = X.data if sp.issparse(X) else X
        if not np.isnan(values).any():
            return super()._project(X, squared_norms)
        X = X.toarray() if sp.issparse(X) else X
        V, mean = self.components_, self.mean_
        Z = np.empty((len(X), len(V)), dtype=np.result_type(X, V))
        for start in range(0, len(X), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            D = X[rows].astype(np.float64) - mean
            Z[rows] = coordinates(D, V.astype(np.float64))
            if squared_norms is not None:
                raise ValueError("X has missing entries: the likelihood needs whole rows.")
        return Z

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._allows_missing
        return tags


def _turn(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Coordinates in a basis to those in the next one, by the rotation between the two.

    Not by projection, which would lose the energy of earlier rows whenever the basis moves.
    """
    U, _, Vt = np.linalg.svd(old @ new.T, full_matrices=False)
    return U @ Vt


def coordinates(Z: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Least-squares coordinates of rows in an orthonormal basis, from the entries that are there.

    The smallest ones where these entries do not determine them.
    """
    seen = ~np.isnan(Z)
    if seen.all():
        return Z @ V.T
    C = np.where(seen, Z, 0.0) @ V.T
    holes = np.flatnonzero(~seen.all(axis=1))
    k = len(V)
    upper = np.triu_indices(k)
    G = np.empty((len(holes), k, k))
    G[:, upper[0], upper[1]] = seen[holes].astype(np.float64) @ (V[upper[0]] * V[upper[1]]).T
    G[:, upper[1], upper[0]] = G[:, upper[0], upper[1]]
    C[holes] = (np.linalg.pinv(G, hermitian=True, rcond=1e-10) @ C[holes][:, :, None])[:, :, 0]
    return C
