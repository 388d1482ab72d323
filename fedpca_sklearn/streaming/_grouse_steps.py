"""Which direction of the subspace a row turns, and by how much."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ._memory import EMPTY, Memory, relative_residual
from ._recursive_least_squares import inverse_covariance, recent_power

# First value of the covariance of the coordinates, relative to the mean square of the first rows.
_REGULARIZATION = 1e-2


class Steps(ABC):
    """Rule for the steps of GROUSE; its values do not change."""

    def at(self, Z: np.ndarray, k: int) -> Steps:
        """Steps for a block of rows, not all zero, and a basis of k."""
        return self

    def turned(self, R: np.ndarray) -> Steps:
        """Steps where coordinates a have become R a."""
        return self

    @abstractmethod
    def turn(
        self, w: np.ndarray, residual: float, size: float, n_seen: int, d: int
    ) -> tuple[np.ndarray, float, Steps]:
        """Direction that turns, in coordinates, the angle towards the residual, and later steps.

        Parameters
        ----------
        w : ndarray of shape (k,)
            Coordinates of the row, not zero.
        residual, size : float
            Norms of the residual and of the row, where it is seen; above 0.
        n_seen, d : int
            Entries of the row that are there, and of a whole one.
        """


@dataclass(frozen=True)
class RowSteps(Steps):
    """From this row alone: "greedy", or in proportion to residual and projection."""

    size: float | Literal["greedy"]

    def turn(self, w, residual, size, n_seen, d):
        """Turn the projection of the row; see the base class."""
        projection = float(np.linalg.norm(w))
        if self.size == "greedy":
            angle = float(np.arctan2(residual, projection))
        else:
            angle = self.size * residual * projection
        return w / projection, angle, self


@dataclass(frozen=True)
class AveragedSteps(Steps):
    """From all rows, by recursive least squares; P is the inverse covariance of coordinates."""

    P: np.ndarray  # empty until a row is not zero
    memory: Memory = EMPTY

    @classmethod
    def of(cls, C: np.ndarray, d: int) -> AveragedSteps:
        """After rows of d entries with coordinates C, if any."""
        if not C.any():
            return cls(np.zeros((0, 0)))
        power = float(np.sum(C**2)) / (len(C) * d)
        return cls(inverse_covariance(C, power), Memory(len(C)))

    def at(self, Z, k):
        """Steps for a block of rows; P begins small against them, and stays symmetric."""
        if len(self.P):
            return replace(self, P=(self.P + self.P.T) / 2)
        return replace(self, P=np.eye(k) / (_REGULARIZATION * recent_power(0.0, Z, 1.0)))

    def turned(self, R):
        """P turns as well; see the base class."""
        if not len(self.P):
            return self
        back = np.linalg.inv(R)
        return replace(self, P=back.T @ self.P @ back)

    def turn(self, w, residual, size, n_seen, d):
        """Turn the direction of the gain; see the base class."""
        share = relative_residual(residual**2, size**2, n_seen, len(w))
        f, memory = self.memory.after(share, n_seen / d)
        h = self.P @ w
        gain = h / (f + w @ h)
        P = (self.P - gain[:, None] * h) / f
        length = float(np.linalg.norm(gain))
        angle = float(np.arctan(length * residual))
        return gain / length, angle, AveragedSteps(P, memory)
