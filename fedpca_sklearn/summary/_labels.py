"""Labels of a stored summary: JSON of scalars and lists of scalars, read piece by piece.

`json.loads` builds the whole document before it can be checked: 20 MB of ``[],[],`` are 700 MB of
lists. Here a value is built once its place and length are known to be allowed, and the first error
ends the reading.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from .._validation.texts import NAME_BYTES
from .._version import VERSION

# The most names that a file holds, of columns or of sites; a Python string takes 50 bytes and more.
MAX_NAMES = 2**20
MAX_SITES = 2**16 - 1
# Beyond names and sites: keys, version, the site's name once more, what is said of privacy, and
# the numbers of a model.
_OTHER_BYTES = 8 * NAME_BYTES
# The position of a column, up to MAX_NAMES, and what stands between two.
_POSITION_BYTES = 10
_MODEL_NUMBERS = 3  # before the positions
_MAX_KEYS = 16
_UNREADABLE = "Corrupt subspace summary: its labels cannot be read."

_TEXT = rb'"(?:[^"\\]{0,%d}|(?:[^"\\]|\\.){0,%d})"' % ((2 * NAME_BYTES,) * 2)
_TOKEN = re.compile(rb" {0,8}(" + _TEXT + rb"|[{}\[\]:,]|null|-?[0-9.eE+-]{1,30})", re.DOTALL)
_PUNCTUATION = {b"{", b"}", b"[", b"]", b":", b","}


def max_bytes_of_labels(n_features: int, n_sites: int) -> int:
    """The most bytes that the labels of so many columns and sites take; a name may be escaped."""
    names = (2 * NAME_BYTES + 4) * (n_features + n_sites)
    return _OTHER_BYTES + names + _POSITION_BYTES * n_features


def encode_labels(feature_names, site, sites, privacy, model=None) -> bytes:
    """Serialise names, sites, privacy and a model; nothing if there are none."""
    if feature_names is None and not sites and privacy is None and model is None:
        return b""
    if privacy is not None:
        privacy = [x if isinstance(x, str) or _is_finite(x) else None for x in privacy]
    labels = {
        "library": f"fedpca_sklearn {VERSION}",
        "feature_names": feature_names,
        "site": site,
        "sites": sites,
        "privacy": privacy,
    }
    if model is not None:
        bound = model.error_bound if _is_finite(model.error_bound) else None
        labels["model"] = [model.n_components, int(model.scale), bound, *model.partial_out]
    return json.dumps(labels, ensure_ascii=False).encode()


def _is_finite(x: float | None) -> bool:
    return x is not None and math.isfinite(x)


def decode_labels(data: Any, n_features: int, n_sites: int) -> dict[str, Any]:
    """Read what `encode_labels` wrote; anything else is a ValueError.

    Parameters
    ----------
    data : bytes-like
    n_features, n_sites : int
        Bounds on the lengths of lists.

    Returns
    -------
    labels : dict
    """
    if not data:
        return {}
    labels = _read_object(_tokens(data), max(n_features + _MODEL_NUMBERS, n_sites, 5))
    names, site = labels.get("feature_names"), labels.get("site")
    sites, privacy = labels.get("sites") or [], labels.get("privacy")
    model = labels.get("model")
    fits = isinstance(names, list | None) and isinstance(site, str | None)
    fits = fits and isinstance(model, list | None) and isinstance(privacy, list | None)
    if not (fits and isinstance(sites, list)):
        raise ValueError("Corrupt subspace summary: its labels are not names and sites.")
    return {
        "feature_names": names,
        "site": site,
        "sites": sites,
        "privacy": privacy,
        "model": None if model is None else _model(model),
    }


def _model(model: list[Any]) -> tuple[Any, ...]:
    """The fields of a stated model, not yet checked."""
    if len(model) < _MODEL_NUMBERS:
        raise ValueError("Corrupt subspace summary: its labels are those of no model.")
    n_components, scale, error_bound, *partial_out = model
    return n_components, scale, partial_out, error_bound


def _tokens(data: Any) -> Iterator[str | tuple[Any]]:
    """Punctuation as it stands, and each scalar in a tuple of its own."""
    at = 0
    while at < len(data):
        match = _TOKEN.match(data, at)
        if match is None:
            raise ValueError(_UNREADABLE)
        at, token = match.end(), bytes(match[1])
        try:
            yield token.decode() if token in _PUNCTUATION else (json.loads(token),)
        except ValueError:
            raise ValueError(_UNREADABLE) from None


def _read_object(tokens: Iterator[Any], max_items: int) -> dict[str, Any]:
    _expect(tokens, "{")
    found: dict[str, Any] = {}
    while True:
        key, _ = next(tokens, None), _expect(tokens, ":")
        if not isinstance(key, tuple) or key[0] in found or len(found) == _MAX_KEYS:
            raise ValueError(_UNREADABLE)
        token = next(tokens, None)
        found[key[0]] = _read_list(tokens, max_items) if token == "[" else _scalar(token)
        if _expect(tokens, ",}") == "}":
            break
    if next(tokens, None) is not None:
        raise ValueError(_UNREADABLE)
    return found


def _read_list(tokens: Iterator[Any], max_items: int) -> list[Any]:
    """The rest of a list."""
    items: list[Any] = []
    token = next(tokens, None)
    while token != "]":
        if len(items) == max_items:
            raise ValueError(f"Corrupt subspace summary: a list in its labels exceeds {max_items}.")
        items.append(_scalar(token))
        token = _expect(tokens, ",]")
        if token == ",":
            token = next(tokens, None)
    return items


def _scalar(token: Any) -> Any:
    if not isinstance(token, tuple):
        raise ValueError(_UNREADABLE)
    return token[0]


def _expect(tokens: Iterator[Any], marks: str) -> str:
    token = next(tokens, None)
    if not isinstance(token, str) or token not in marks:
        raise ValueError(_UNREADABLE)
    return token
