"""Sizes of a summary, and what follows from its fields."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from . import _codec
from ._in_files import InFiles

# Sums of squares below which a square loses digits.
_FEW_DIGITS = np.finfo(np.float64).tiny / np.finfo(np.float64).eps


class DerivedValues(InFiles):
    """Properties of a summary that are not stored."""

    components: np.ndarray
    singular_values: np.ndarray
    mean: np.ndarray
    n_samples: float
    scatter: float
    column_scatter: np.ndarray | None
    _leading: ClassVar[Any]

    @property
    def n_components(self) -> int:
        """Number of directions kept."""
        if self._leading is not None:
            return self._leading.n_components
        return self.components.shape[0]

    @property
    def _rows(self) -> np.ndarray:
        """Rows R with the scatter matrix R^T R of the directions, at most d; not to be written."""
        if self._leading is not None:
            return self._leading.rows
        return self.singular_values[:, None] * self.components.astype(np.float64)

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return len(self.mean)

    @property
    def _dtype(self) -> np.dtype:
        """That of the components."""
        return (self.components if self._leading is None else self._leading).dtype

    @property
    def n_floats(self) -> int:
        """Floats that a message with this summary carries.

        They are k d + k + 2 d + 2, or d fewer where ``column_scatter`` is not known.
        """
        k, d = self.n_components, self.n_features
        return k * d + k + d + (0 if self.column_scatter is None else d) + 2

    @property
    def nbytes(self) -> int:
        """Length of `to_bytes`, without building it."""
        entries = self.n_components * self.n_features
        frame = _codec.HEADER.size + _codec.CHECKSUM.size + len(_codec.labels_of(self))
        return frame + self._dtype.itemsize * entries + 8 * (self.n_floats - 2 - entries)

    @property
    def degrees_of_freedom(self) -> float:
        """Divisor of variances: n - 1 as in scikit-learn, n / 2 below two (effective) samples."""
        return max(self.n_samples - 1, self.n_samples / 2)

    @property
    def explained_variance(self) -> np.ndarray:
        """Variance along each component."""
        return self.singular_values**2 / (self.degrees_of_freedom or 1.0)

    @property
    def total_variance(self) -> float:
        """Sum of the variances of all features."""
        return self.scatter / (self.degrees_of_freedom or 1.0)

    @property
    def explained_variance_ratio(self) -> np.ndarray:
        """Share of the total variance along each component; zero where there is no variance."""
        with np.errstate(over="ignore"):  # numpy 1.25 warns where nothing overflows
            s = self.singular_values
            if len(s) and s[0] > 0 and self.scatter < _FEW_DIGITS:
                squares = (s / s[0]) ** 2
                return squares / max(self.scatter / s[0] / s[0], squares.sum())
            return s**2 / (self.scatter or 1.0)
