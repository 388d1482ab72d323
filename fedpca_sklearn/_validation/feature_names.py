"""Names of columns, and texts in files: composed, without invisible characters, compared."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Any

# The most bytes of UTF-8 in one name.
NAME_BYTES = 500
# Characters beyond which no text is as short when it is composed: a letter is at most four of them.
_LONGEST = 4 * NAME_BYTES
# Controls, formats (bidi marks, zero-width joiners), surrogates, private use, line separators.
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
# Characters of other categories that fonts do not draw either: joiner, fillers, selectors, blank.
_NOT_DRAWN = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0}
_NOT_DRAWN |= {*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0000, 0xE1000)}
# Not assigned, and not to be drawn if they ever are; and those that never are.
_NOT_DRAWN |= {0x2065, *range(0xFFF0, 0xFFF9), *range(0xFDD0, 0xFDF0)}
_NOT_DRAWN |= {plane << 16 | last for plane in range(17) for last in (0xFFFE, 0xFFFF)}


def composed(text: str) -> str:
    """The text in Unicode's composed form (NFC), so that what looks alike compares equal.

    Marks on one letter are sorted in a time that grows with the square of their number, minutes
    for a megabyte: a text that is too long for a name is left as it is.
    """
    is_composed = text.isascii() or len(text) > _LONGEST
    return text if is_composed else unicodedata.normalize("NFC", text)


def check_text(what: str, text: str) -> str:
    """Name in composed form, or a ValueError for one with invisible characters.

    Parameters
    ----------
    what : str
        Named in the error.
    text : str

    Returns
    -------
    text : str
    """
    text = composed(str(text))
    if len(text) > NAME_BYTES:
        raise _too_long(what, text, f"{len(text)} characters")
    if not (text.isascii() and text.isprintable()):
        for character in text:
            if unicodedata.category(character) in _INVISIBLE or ord(character) in _NOT_DRAWN:
                raise ValueError(
                    f"{what} must be valid text without control, bidi or other invisible "
                    f"characters, got {character!a} in {text[:NAME_BYTES]!a}."
                )
    if (size := len(text.encode())) > NAME_BYTES:
        raise _too_long(what, text, str(size))
    return text


def _too_long(what: str, text: str, size: str) -> ValueError:
    return ValueError(f"{what} must have at most {NAME_BYTES} bytes, got {size}: {text[:40]!a}...")


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
