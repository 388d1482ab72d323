"""A progress bar, where somebody looks and tqdm is there."""

from __future__ import annotations

import sys
from typing import Any


class _NoBar:
    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, n: int) -> None:
        """Count rows, and show nothing."""


def progress_bar(what: str, n_rows: int | None) -> Any:
    """Context manager with ``update(n)``; without a terminal or tqdm it shows nothing."""
    if not on_terminal():
        return _NoBar()
    try:
        from tqdm import tqdm
    except ImportError:
        return _NoBar()
    return tqdm(total=n_rows, desc=what, unit=" rows", unit_scale=True, leave=False)


def on_terminal() -> bool:
    """Whether somebody looks."""
    return sys.stderr.isatty()
