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
# Entries of an inverse from which on a row's entries count as too few for all its coordinates.
_ILL_CONDITIONED = 1e10
# Amplification of noise from which on a row with holes does not count in the variances.
_MAX_GAIN = 10.0
# Share of the rows below which a feature has been missing for too long to tell its variance.
_FORGOTTEN = 1e-12


@dataclass(frozen=True)
class _State:
    """What a stream leaves behind.

    ``rule`` is the tracker's own; ``factor.T @ factor`` the scatter matrix of rows of the weight
    ``measured`` within ``basis``; ``waiting`` holds rows that do not fill a block yet.
    """

    rule: Any
    basis: np.ndarray
    factor: np.ndarray
    measured: float
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
        waiting = np.empty((0, d))
        return _State(rule, basis, np.zeros((k, k)), 0.0, Features.empty(d), 0, waiting, dtype)

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
        first = state.measured == 0
        C, gain = coordinates(Z, V if first else state.basis)
        root = f ** (np.arange(len(C) - 1, -1, -1) / 2)
        root[gain > _MAX_GAIN] = 0.0
        C *= root[:, None]
        if first:
            factor = np.linalg.qr(C, mode="r")
        else:
            before = state.factor * f ** (len(C) / 2)
            factor = np.linalg.qr(np.concatenate([before, C]), mode="r") @ _turn(state.basis, V)
        measured = state.measured * f ** len(C) + float(root @ root)
        return _State(rule, V, factor, measured, known, state.n_rows, state.waiting, state.dtype)

    def _summary(self, state: _State) -> Subspace:
        known = state.known
        n = known.n_rows
        # a feature that was missing at times counts as if it had always been there
        share = np.broadcast_to(known.weight, known.mean.shape) / n
        there = share > _FORGOTTEN
        scatter = float((known.squares[there] / share[there]).sum())
        factor = state.factor * np.sqrt(n / state.measured if state.measured > 0 else 0.0)
        energy = float(np.einsum("ij,ij->", factor, factor))
        if energy > scatter:  # coordinates of rows with holes are uncertain, their entries are not
            factor *= np.sqrt(scatter / energy)
        empty = np.zeros((0, len(known.mean)), state.dtype)
        total = Subspace._trusted(empty, np.zeros(0), known.mean, n, scatter, self.center)
        return along(total, state.basis, factor)

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
            Z[rows] = coordinates(D, V.astype(np.float64))[0]
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


def coordinates(Z: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least-squares coordinates of rows in an orthonormal basis, from the entries that are there.

    The smallest ones where these entries do not determine them. A k x k system a row, all rows at
    once; O(d k^2) memory. Also returns by how much each row's coordinates amplify the variance of
    noise, 1 for whole rows.
    """
    seen = ~np.isnan(Z)
    gain = np.ones(len(Z))
    if seen.all():
        return Z @ V.T, gain
    C = np.where(seen, Z, 0.0) @ V.T
    holes = np.flatnonzero(~seen.all(axis=1))
    k = len(V)
    rows, cols = np.triu_indices(k)
    lost = (~seen[holes]).astype(np.float64) @ (V[rows] * V[cols]).T
    G = np.empty((len(holes), k, k))
    G[:, rows, cols] = -lost
    G[:, cols, rows] = -lost
    G[:, np.arange(k), np.arange(k)] += 1
    try:
        inverse = np.linalg.inv(G)
        gain[holes] = np.abs(inverse).max(axis=(1, 2))
        bad = ~(gain[holes] < _ILL_CONDITIONED)
    except np.linalg.LinAlgError:
        inverse, bad = np.empty_like(G), np.ones(len(G), dtype=bool)
    if bad.any():
        inverse[bad] = np.linalg.pinv(G[bad], hermitian=True, rcond=1 / _ILL_CONDITIONED)
        gain[holes[bad]] = np.inf
    C[holes] = (inverse @ C[holes][:, :, None])[:, :, 0]
    return C, gain
