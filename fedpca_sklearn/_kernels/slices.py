"""Rows, or columns, a block at a time: how many fit, and the slices they are cut into."""

from __future__ import annotations

from collections.abc import Iterator

# Entries of a temporary array: 2 MB of float64, which stay in the cache of most cores.
ENTRIES_AT_ONCE = 2**18


def rows_within(n_columns: int, entries: int = ENTRIES_AT_ONCE, least: int = 1) -> int:
    """Return how many rows have at most so many entries, though not fewer than ``least``."""
    return max(least, entries // max(n_columns, 1))


def slices_of(n: int, size: int) -> Iterator[slice]:
    """Yield consecutive slices of n things, ``size`` each; the last one may be shorter."""
    size = int(size)  # numpy's narrow integers overflow
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def row_slices(
    n_rows: int, n_columns: int, entries: int = ENTRIES_AT_ONCE, least: int = 1
) -> Iterator[slice]:
    """Yield consecutive slices of rows, each as large as `rows_within` says."""
    return slices_of(n_rows, rows_within(n_columns, entries, least))
