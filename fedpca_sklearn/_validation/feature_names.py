"""Names of columns: read off data frames, checked, and compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from .texts import check_text, composed


def composed_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names in Unicode's composed form (NFC)."""
    return tuple(map(composed, names))


def names_of(X: Any) -> tuple[str, ...] | None:
    """Column names of a data frame, if all are strings, as scikit-learn takes them."""
    arrow = type(X).__module__.startswith("pyarrow")  # its columns are arrays
    names = getattr(X, "column_names" if arrow else "columns", None)
    names = () if names is None else tuple(names)
    known = names and all(isinstance(name, str) for name in names)
    return composed_names(names) if known else None


def check_names(names: Any, d: int) -> tuple[str, ...] | None:
    """Names of d columns as a tuple of strings."""
    if names is None:
        return None
    names = tuple(names)
    if len(names) != d or not all(isinstance(name, str) for name in names):
        raise ValueError(f"feature_names must be {d} strings, got {len(names)} values.")
    names = tuple(check_text("feature_names", name) for name in names)
    if len(set(names)) < d:
        ((name, _),) = Counter(names).most_common(1)
        raise ValueError(f"feature_names must differ, got {name!r} twice.")
    return names


def names_known(parts: Iterable[Any]) -> Any:
    """Names of the columns of all parts, by the first of them that has names; None without any."""
    return next((part.feature_names for part in parts if part.feature_names is not None), None)


def check_same_names(expected: Any, got: Any, who: str) -> None:
    """Raise a ValueError that tells by name how the columns differ, where both are known."""
    if expected is None or got is None or tuple(expected) == tuple(got):
        return
    ours, theirs = set(expected), set(got)
    missing = [name for name in expected if name not in theirs]
    extra = [name for name in got if name not in ours]
    if missing or extra:
        parts = [
            f"{word} {_listed(names)}"
            for word, names in (("lacks", missing), ("has", extra))
            if names
        ]
        raise ValueError(f"{who} {' and '.join(parts)}; features must be the same.")
    i = next(i for i, pair in enumerate(zip(expected, got, strict=True)) if pair[0] != pair[1])
    raise ValueError(
        f"{who} has the same features in another order: {got[i]!r} at position {i}, where "
        f"{expected[i]!r} is expected."
    )


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
