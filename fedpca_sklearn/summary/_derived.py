"""Sizes of a summary, and what follows from its fields."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ._codec import CENTRED, COLUMNS, SINGLE, SUMMARY, TRIANGLE
from ._in_files import InFiles
from ._labels import encode_labels
from ._origin import check_stored_names
from ._whole import is_whole, triangle_of

# Sums of squares below which a square loses digits.
_FEW_DIGITS = np.finfo(np.float64).tiny / np.finfo(np.float64).eps


_LABELS = ("feature_names", "site", "sites", "privacy", "model")


class DerivedValues(InFiles):
    """What is stored of a summary, and properties that are not."""

    _kind = SUMMARY

    components: np.ndarray
    singular_values: np.ndarray
    mean: np.ndarray
    n_samples: float
    scatter: float
    column_scatter: np.ndarray | None
    centered: bool
    sites: tuple[str, ...]
    _leading: ClassVar[Any]

    @property
    def n_components(self) -> int:
        """Number of directions kept."""
        return len(self.components) if self._leading is None else self._leading.n_components

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

        They are d (d + 1) / 2 + 2 d + 2 where all d directions are kept in float64, k d + k + 2 d +
        2 for k others, or d fewer where ``column_scatter`` is not known.
        """
        k, d = self.n_components, self.n_features
        directions = d * (d + 1) // 2 if is_whole(self) else k * (d + 1)
        return directions + (d if self.column_scatter is None else 2 * d) + 2

    def _head(self) -> tuple[int, dict[str, Any]]:
        flags = CENTRED * bool(self.centered) + COLUMNS * (self.column_scatter is not None)
        flags += TRIANGLE * is_whole(self) + SINGLE * (self._dtype == np.float32)
        sizes = {"d": self.n_features, "k": self.n_components, "sites": len(self.sites)}
        sums = {"n_samples": self.n_samples, "scatter": self.scatter}
        return flags, sizes | sums

    def _labels(self) -> bytes:
        return encode_labels(*(getattr(self, name) for name in _LABELS))

    def _stored(self) -> dict[str, Any]:
        check_stored_names(self)
        if is_whole(self):
            directions = {"triangle": triangle_of(self)}
        else:
            names = "singular_values", "components"
            directions = {name: getattr(self, name) for name in names}
        return {"mean": self.mean, "column_scatter": self.column_scatter, **directions}

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
