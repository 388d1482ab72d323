"""Estimators as text, as a person writes their construction, read without running any of it."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from .. import communication, federated, privacy, rounds, streaming, summary, tracking, vertical

# Rooms whose public classes are constructed.
_ROOMS = communication, federated, privacy, rounds, streaming, summary, tracking, vertical
# Characters of a text that is read.
_LONGEST = 1_000_000
# Public classes whose parameters are their fields.
_VALUES = (privacy.DiscreteGaussian, privacy.PrivateCenter, privacy.PrivateNorm)
# Parameters of one process, and files of one party.
_OWN = {"clients", "feature_groups", "ledger", "n_clients", "n_jobs"}


def construction_of(value: Any, known: Iterable[type] = ()) -> str:
    """Text that constructs an equal object: a constant, a list, or a public class of the package.

    Parameters that have their defaults, or belong to one process, are left out. Classes of others
    are constructed where they are ``known``.
    """
    known = tuple(known)
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            raise ValueError("a parameter is NaN, which no text constructs.")
        return "1e999" if value > 0 else "-1e999"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, list | tuple):
        inside = ", ".join(construction_of(one, known) for one in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside},)" if value else "()"
    if isinstance(value, dict):
        pairs = (f"{construction_of(k)}: {construction_of(v, known)}" for k, v in value.items())
        return f"{{{', '.join(pairs)}}}"
    kind = type(value)
    if public_class(kind.__name__, known) is not kind:
        raise ValueError(
            f"a parameter is a {kind.__name__}, expected constants, lists, or objects of the "
            "public classes of fedpca_sklearn, or of known ones."
        )
    parameters = inspect.signature(kind).parameters
    parts = (
        (name, construction_of(given, known))
        for name, given in _parameters_of(value).items()
        if name not in _OWN
    )
    changed = (
        f"{name}={text}" for name, text in parts if text != _default(parameters[name].default)
    )
    return f"{kind.__name__}({', '.join(changed)})"


def _parameters_of(value: Any) -> dict[str, Any]:
    return vars(value) if isinstance(value, _VALUES) else value.get_params(deep=False)


def _default(value: Any) -> str | None:
    return None if value is inspect.Parameter.empty else construction_of(value)


def public_class(name: str, known: Iterable[type] = ()) -> Any:
    """A public class with parameters, or a known one; None for any other name."""
    for kind in known:
        if kind.__name__ == name:
            return kind
    for room in _ROOMS:
        found = getattr(room, name, None) if name in room.__all__ else None
        if inspect.isclass(found) and (hasattr(found, "get_params") or found in _VALUES):
            return found
    return None


def constructed(text: str, known: Iterable[type] = ()) -> Any:
    """The object that a text constructs, or a ValueError.

    Only public classes of the package and known ones are called, with constants, lists and other
    such objects.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"a text that constructs an estimator has at most {_LONGEST} characters.")
    try:
        return _built(ast.parse(text.strip(), mode="eval").body, tuple(known))
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text[:80]!r} constructs no estimator: {error}.") from None


def _built(node: ast.expr, known: tuple[type, ...]) -> Any:
    if isinstance(node, ast.Call):
        kind = public_class(node.func.id, known) if isinstance(node.func, ast.Name) else None
        if kind is None:
            raise ValueError(
                f"{ast.unparse(node.func)[:80]!r} is no public class of fedpca_sklearn that has "
                "parameters."
            )
        if any(keyword.arg is None for keyword in node.keywords):
            raise ValueError("parameters are written one by one, not as **.")
        named = {str(keyword.arg): _built(keyword.value, known) for keyword in node.keywords}
        given = inspect.signature(kind).bind(*(_built(one, known) for one in node.args), **named)
        if own := given.arguments.keys() & _OWN:
            raise ValueError(f"{min(own)} is of one process, and plays no part by files.")
        return kind(*given.args, **given.kwargs)
    if isinstance(node, ast.List | ast.Tuple):
        made = [_built(one, known) for one in node.elts]
        return made if isinstance(node, ast.List) else tuple(made)
    if isinstance(node, ast.Dict) and None not in node.keys:
        pairs = zip(node.keys, node.values, strict=True)
        return {_built(key, known): _built(value, known) for key, value in pairs if key is not None}
    return ast.literal_eval(node)
