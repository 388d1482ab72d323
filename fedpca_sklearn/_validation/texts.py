"""Names of columns and sites in files: in composed form, without invisible characters."""

from __future__ import annotations

import unicodedata

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
