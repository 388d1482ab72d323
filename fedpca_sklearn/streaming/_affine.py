"""Trackers of rows with missing entries: the mean is a part of the subspace."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg

from .._base.missing_entries import impute, score
from .._kernels.observed import noise_ridge
from ._forgetting import Features
from ._tracker import START, Tracked, Tracker, first_basis

# The constant entry of a row over the root of the total variance.
_CONSTANT = 2.0


@dataclass(frozen=True)
class Frame:
    """What the rows of a rule are of a row y: ``[y - origin, constant]``.

    ``constant`` is 0, and rows are zero, until rows have come that differ.
    """

    origin: np.ndarray
    constant: float = 0.0

    def after(self, known: Features) -> Frame:
        """Frame at the mean of the observed entries, with a constant of the size of the rows.

        It does not fall, as rows may fade until nothing is left.
        """
        weight = np.broadcast_to(known.weight, known.mean.shape)
        variances = known.squares / np.where(weight > 0, weight, np.inf)
        size = _CONSTANT * math.sqrt(float(variances.sum()))
        return Frame(known.mean, max(size, self.constant))

    def model(self, B: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Affine subspace of a basis: directions, a point, and the factor of their scatter."""
        b, B = B[:, -1], B[:, :-1]
        square = float(b @ b)
        N = np.linalg.svd(b[None])[2][1:]  # coordinates of rows whose constant is 0
        point = self.origin + (self.constant / square * (b @ B) if square > 0 else 0.0)
        u = factor @ b
        length = float(scipy.linalg.norm(u, check_finite=False))  # squares may overflow
        if length > 0:  # about the mean of the coordinates
            u /= length
            factor = factor - u[:, None] * (u @ factor)
        return N @ B, point, factor @ N.T


@dataclass(frozen=True)
class Move:
    """Linear map of rows with a constant entry about one origin to those about another.

    Attributes
    ----------
    shift : ndarray of shape (d,)
        What is added to the features for each unit of the constant.
    scale : float
        Factor of the constant.
    """

    shift: np.ndarray
    scale: float

    def of(self, B: np.ndarray) -> np.ndarray:
        """Rows after the move.

        Parameters
        ----------
        B : ndarray of shape (m, d + 1)
            Features and the constant.

        Returns
        -------
        moved : ndarray of shape (m, d + 1)
            A new array.
        """
        moved = np.empty_like(B)
        moved[:, :-1] = B[:, :-1] + B[:, -1:] * self.shift
        moved[:, -1] = B[:, -1] * self.scale
        return moved

    def of_basis(self, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Orthonormal basis of the moved rows of another.

        Parameters
        ----------
        V : ndarray of shape (k, d + 1)
            Orthonormal rows.

        Returns
        -------
        W : ndarray of shape (k, d + 1)
            Orthonormal rows.
        R : ndarray of shape (k, k)
            Coordinates a in V become R a in W.
        """
        Q, R = np.linalg.qr(self.of(V).T)
        return Q.T, R


class AffineTracker(Tracker):
    """Base of the trackers that take rows with missing entries.

    With ``center`` the mean is a part of what the rule finds, as running means of observed entries
    are not in the affine hull of the rows. An affine subspace of dimension k of d features is a
    linear one of dimension k + 1 of d + 1 features, of which one is constant: the rule takes rows
    with a constant entry, which is never missing, and one component more. The origin of the
    features is the running mean, and the rule's state moves with it: a subclass writes
    `_moved` besides `_begin_at`, `_updated` and `_basis` of a `Tracker` with ``init``, and takes
    its number of components from the basis that it is given.

    Missing entries are predicted by their conditional means, given the noise of recent rows.
    """

    _parameter_constraints: dict = {**Tracker._parameter_constraints, **START}
    _fixed = (*Tracker._fixed, "init")
    _takes_missing = True
    impute = impute
    score = score

    def _block_rows(self, d: int, first: bool = True) -> int:
        more = bool(first and self.center and self._from_rows)
        return super()._block_rows(d, first) + more

    def _start(self, d: int) -> Tracked:
        frame = Frame(np.zeros(d)) if self.center else None
        return replace(super()._start(d), frame=frame)

    def _begin(self, d: int, rng: np.random.RandomState) -> Any:
        if not self.center:
            return super()._begin(d, rng)
        k = self._rank(d)
        lifted = np.zeros((k + 1, d + 1))
        lifted[:k, :d] = first_basis(self.init, k, d, rng)
        lifted[k, d] = 1.0
        return self._begin_at(lifted, np.empty((0, d + 1)))

    @abstractmethod
    def _moved(self, state: Any, move: Move) -> Any:
        """State of the rule as if all rows so far had been moved.

        Parameters
        ----------
        state : object
            What `_begin_at`, `_updated` or `_moved` returned; it is not changed.
        move : Move
            From the rows so far to those to come; ``move.of(B)`` are the rows of B moved.

        Returns
        -------
        state : object
            A new one.
        """

    def _in_frame(
        self, before: Tracked, Y: np.ndarray, known: Features
    ) -> tuple[Tracked, np.ndarray]:
        frame = before.frame.after(known)
        constant = before.frame.constant
        if constant and frame.constant:
            old = np.broadcast_to(before.known.weight, known.mean.shape) > 0  # others stay
            shift = np.where(old, before.frame.origin - frame.origin, 0.0)
            move = Move(shift / constant, frame.constant / constant)
            V, R = move.of_basis(before.basis)
            before = replace(
                before,
                rule_state=self._moved(before.rule_state, move),
                basis=V,
                factor=before.factor @ R.T,
            )
        Z = np.zeros((len(Y), Y.shape[1] + 1))
        if frame.constant:
            Z[:, :-1], Z[:, -1] = Y - frame.origin, frame.constant
        return replace(before, frame=frame), Z

    def _found(self, tracked: Tracked) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if not self.center:
            return super()._found(tracked)
        known = tracked.known
        V, point, factor = tracked.frame.model(tracked.basis, tracked.factor)
        if np.allclose(known.weight, known.n_rows, rtol=1e-12, atol=0):  # nothing was missing
            return V, known.mean, factor
        mean = point + (known.mean - point) @ V.T @ V
        return V, np.where(known.weight > 0, mean, 0.0), factor

    def _show(self, tracked: Tracked, n_rows: int, dtype: np.dtype) -> None:
        super()._show(tracked, n_rows, dtype)
        self._entry_noise = tracked.noise

    def _ridge(self) -> np.ndarray | None:
        return noise_ridge(self.explained_variance_, self._entry_noise, self.n_features_in_)
