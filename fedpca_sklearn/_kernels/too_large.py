"""The error for finite values whose sums or products are not finite."""

from __future__ import annotations

from typing import Any


class TooLargeError(ValueError):
    """Sums overflow; over several parties ``reason`` does not say whose part is too large."""

    def __init__(self, message: str, reason: str | None = None):
        super().__init__(message)
        self.reason = message if reason is None else reason


def too_large(what: str, dtype: Any = "float64", holder: str = "X") -> TooLargeError:
    """Return the error for rows of which ``what``, like their variance, overflows."""
    return TooLargeError(
        f"{holder} holds values that are too large: their {what} overflows {dtype}."
    )
