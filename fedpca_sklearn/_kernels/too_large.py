"""The error for finite values whose sums or products are not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

# Weights up to here leave values of 1e100 whose weighted squares are finite.
_LARGEST_WEIGHT = 1e100


class TooLargeError(ValueError):
    """Sums overflow; over several parties ``reason`` does not say whose part is too large."""

    def __init__(self, message: str, reason: str | None = None):
        super().__init__(message)
        self.reason = message if reason is None else reason


# A sum of squares up to this share of the largest float has room for products of such rows.
_ROOM = 1 / 64


def check_squares(X: Any) -> None:
    """Raise unless the sum of squares of the entries of X that are there is finite, with room."""
    values = X.data if sp.issparse(X) else X.ravel()
    with np.errstate(over="ignore"):
        total = float(np.einsum("i,i->", values, values, dtype=np.float64))
        if np.isnan(total):
            total = float(np.nansum(np.square(values, dtype=np.float64)))
    if not total <= _ROOM * np.finfo(np.float64).max:
        raise too_large("sum of squares")


def too_large(
    what: str, dtype: Any = "float64", holder: str = "X", weight: np.ndarray | None = None
) -> TooLargeError:
    """Return the error for rows of which ``what``, like their variance, overflows.

    ``weight``: of each row; if sums of ordinary values overflow by it, the error is about it.
    """
    if weight is not None and not weight.max(initial=0.0) <= _LARGEST_WEIGHT:
        return TooLargeError(
            f"sample_weight holds values that are too large, up to {weight.max():.1e}: "
            f"the weighted {what} of X overflows {dtype}."
        )
    return TooLargeError(
        f"{holder} holds values that are too large: their {what} overflows {dtype}."
    )
