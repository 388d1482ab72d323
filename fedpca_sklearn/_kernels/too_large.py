"""The error for finite values whose sums or products are not finite, and whose they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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


@contextmanager
def largest_named(names: Callable[[], Sequence[str]], parts: Sequence[Any]) -> Iterator[None]:
    """Name the part with the largest values where the block raises a `TooLargeError`.

    Parameters
    ----------
    names : callable
        Returns a name for each part.
    parts : sequence of Subspace or Triangle
        With ``n_samples``, ``scatter`` and ``mean``.
    """
    try:
        yield
    except TooLargeError as error:
        i = _largest(parts)
        part, reach = parts[i], float(np.abs(parts[i].mean).max())
        raise TooLargeError(
            f"{names()[i]}: {error.reason} It has n_samples={part.n_samples:g}, "
            f"scatter={part.scatter:g} and a mean of up to {reach:g}.",
            error.reason,
        ) from None


def _largest(parts: Sequence[Any]) -> int:
    """Position of the part that makes the sum of counts, of scatters, or of squares overflow."""
    with np.errstate(over="ignore", divide="ignore"):
        counts = np.array([part.n_samples for part in parts])
        if not np.isfinite(counts.sum()):
            return int(np.argmax(counts))
        scatters = np.array([part.scatter for part in parts])
        if not np.isfinite(scatters.sum()):
            return int(np.argmax(scatters))
        squares = np.log([np.abs(part.mean).max() for part in parts]) * 2 + np.log(counts)
        return int(np.argmax(np.maximum(squares, np.log(scatters))))
