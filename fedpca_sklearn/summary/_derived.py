"""What follows from the fields of a summary, and what is stored of them."""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dpotrf

from .._kernels.threads import threads_for
from .._kernels.tolerances import RANK_EPS
from ._codec import CENTRED, COLUMNS, LAYOUTS, SINGLE, SUMMARY, TRIANGLE, InFiles
from ._exact import ScatterMatrix
from ._labels import encode_labels
from ._provenance import check_stored_names

# Sums of squares below which a square loses digits.
_FEW_DIGITS = np.finfo(np.float64).tiny / np.finfo(np.float64).eps


# Share by which the sums of squares of a column may differ that are added up in two ways.
_SAME_SQUARES = 1e-6
_TINY, _EPS = np.finfo(np.float64).tiny, np.finfo(np.float64).eps
# A Subspace, whose own methods call this module
Summary: TypeAlias = Any


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
    feature_names: tuple[str, ...] | None
    site: str | None
    sites: tuple[str, ...]
    privacy: Any
    model: Any
    _leading: ClassVar[Any]

    @property
    def n_components(self) -> int:
        """Number of directions kept."""
        return len(self.components) if self._leading is None else self._leading.n_components

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

        They are d (d + 1) / 2 + 2 d + 2 where all d directions are kept in float64, k d + k + 2 d +
        2 for k others, or d fewer where ``column_scatter`` is not known.
        """
        return self._size()[0]

    @property
    def nbytes(self) -> int:
        """Length of `to_bytes`, without building it."""
        return self._size()[1]

    def _size(self) -> tuple[int, int]:
        """Floats and bytes of a message with this summary."""
        k = self.n_components
        return self._size_with(k, k == len(self.mean) and is_whole(self))

    def _size_with(self, k: int, whole: bool | None = None) -> tuple[int, int]:
        """Floats and bytes of a message like this with k directions, a triangle if ``whole``."""
        d, single = len(self.mean), self._dtype == np.float32
        whole = k == d and not single if whole is None else whole
        n_floats = d * (d + 1) // 2 if whole else k * (d + 1)
        n_floats += (d if self.column_scatter is None else 2 * d) + 2
        n_bytes = LAYOUTS[SUMMARY].frame + 8 * n_floats - 4 * k * d * single + len(self._labels())
        return n_floats, n_bytes

    def _head(self) -> tuple[int, dict[str, Any]]:
        flags = CENTRED * bool(self.centered) + COLUMNS * (self.column_scatter is not None)
        flags += SINGLE * (self._dtype == np.float32)
        flags += TRIANGLE * (self.n_components == self.n_features and is_whole(self))
        sizes = {"d": self.n_features, "k": self.n_components, "sites": len(self.sites)}
        sums = {"n_samples": self.n_samples, "scatter": self.scatter}
        return flags, sizes | sums

    def _labels(self) -> bytes:
        return encode_labels(self.feature_names, self.site, self.sites, self.privacy, self.model)

    def _stored(self) -> dict[str, Any]:
        check_stored_names(self)
        if self.n_components == self.n_features and is_whole(self):
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


def fits_columns(squares: np.ndarray, columns: np.ndarray | None) -> bool:
    """Whether sums of squares of a factor's columns are those that are known, if any are."""
    return columns is None or bool((np.abs(squares - columns) <= _SAME_SQUARES * columns).all())


def is_whole(summary: Summary) -> bool:
    """Whether a triangle stands for a summary of d directions: in float64, and all are certain.

    Given directions are where none is a rounding error beside the largest.
    """
    d, held = len(summary.mean), summary._leading
    if (summary.components if held is None else held).dtype != np.float64:
        return False
    if isinstance(held, ScatterMatrix):
        squares = held.G.diagonal()
    else:
        rows = summary._rows
        with np.errstate(over="ignore", under="ignore"):
            squares = np.einsum("ij,ij->j", rows, rows)
    if held is None:
        s = summary.singular_values
        if not s[-1] > d * RANK_EPS * _EPS * s[0]:
            return False
    return bool(squares.min() > _TINY) and fits_columns(squares, summary.column_scatter)


def triangle_of(summary: Summary) -> np.ndarray:
    """Upper triangle R, with a positive diagonal, of the scatter matrix R^T R of all directions."""
    held, d = summary._leading, summary.n_features
    with threads_for(d**3):
        if isinstance(held, ScatterMatrix):
            L, failed = dpotrf(held.G, lower=1, clean=1)
            if not failed:
                return L.T
        rows = summary._rows
        below = np.tri(d, k=-1, dtype=bool)
        if len(rows) == d and (rows.diagonal() > 0).all() and not rows[below].any():
            return rows
        (R,) = scipy.linalg.qr(rows, mode="r", check_finite=False)
    R = R[:d]
    return np.where(R.diagonal() < 0, -1.0, 1.0)[:, None] * R
