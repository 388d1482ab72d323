"""Errors that name the client or summary whose values overflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .._kernels.too_large import TooLargeError


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
