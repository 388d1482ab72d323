"""What a question says of the estimator that it is asked for, and what a site compares it with."""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import joblib
import numpy as np

from .. import communication, federated, privacy, rounds, streaming, summary, tracking, vertical
from ._messages import Message, shown
from ._site_policy import RefusedError

# Rooms whose public classes are constructed.
_ROOMS = communication, federated, privacy, rounds, streaming, summary, tracking, vertical
# Characters of a text that is read.
_LONGEST_OF_ALL = 1_000_000
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
    kind = type(value)
    if public_class(kind.__name__, known) is not kind:
        raise ValueError(
            f"a parameter is a {kind.__name__}, expected constants, lists, or objects of the "
            "public classes of fedpca_sklearn, or of known ones."
        )
    parameters, changed = inspect.signature(kind).parameters, []
    given = vars(value) if isinstance(value, _VALUES) else value.get_params(deep=False)
    for name in filter(lambda name: name not in _OWN, given):
        default, text = parameters[name].default, construction_of(given[name], known)
        if default is inspect.Parameter.empty or text != construction_of(default):
            changed.append(f"{name}={text}")
    return f"{kind.__name__}({', '.join(changed)})"


def public_class(name: str, known: Iterable[type] = ()) -> Any:
    """A public class with parameters, or a known one; None for any other name."""
    for kind in known:
        if kind.__name__ == name:
            return kind
    for room in _ROOMS:
        found = getattr(room, name, None) if name in room.__all__ else None
        if hasattr(found, "get_params") or found in _VALUES:
            return found
    return None


def constructed(text: str, known: Iterable[type] = ()) -> Any:
    """The object that a text constructs, or a ValueError.

    Only public classes of the package and known ones are called, with constants, lists and other
    such objects.
    """
    if len(text) > _LONGEST_OF_ALL:
        raise ValueError(
            f"a text that constructs an estimator has at most {_LONGEST_OF_ALL} characters."
        )
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
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)[:80]!r} is no constant, list or object.") from None


# Version of the questions: another one where a question, or its answer, means something else.
PROTOCOL = 3
# Parameters of a process, and those that play no part over a network, also of what an estimator is
# made of. The file of a ledger is the site's own.
_OF_A_PROCESS = {*_OWN, "random_state"}
# Those that no task of a site reads, by class. Each other one must be the same, new ones included.
_OF_THE_SERVER: dict[type, set[str]] = {
    federated.FederatedPCA: {"merge"},  # but what it asks of a summary
    federated.TruncatedDistributedPCA: {"n_components"},
    federated.DistributedPCA: {"n_components"},
    rounds.FederatedPowerPCA: {"acceleration", "init", "tol"},
    rounds.FederatedHeteroscedasticPCA: {"tol"},
    federated.FederatedScaler: {"copy", "with_mean", "with_std"},
    federated.OnlineDistributedPCA: {"average", "weighting"},
    rounds.FederatedSubspaceTracker: {
        *("detect_changes", "fill", "forgetting_factor"),
        *("half_life", "init__n_rows", "store_subspaces"),
    },
}
# Characters of the text of a value, beyond which its hash stands for it; of the parameters of a
# question; and of a value, and parameters, that a refusal names.
_LONGEST, _MOST = 120, 200
_SHOWN, _NAMED = 40, 3


def stated(estimator: Any) -> dict[str, Any]:
    """What each question for an estimator says of it."""
    texts = [f"{name}={text}" for name, text in sorted(parameters_of(estimator).items())]
    return {"protocol": PROTOCOL, "estimator": type(estimator).__name__, "parameters": texts}


def check_same_estimator(
    message: Message, estimator: Any, of_site: Mapping[str, Any], secure: bool
) -> None:
    """Raise unless a question is for the estimator of the site, as far as its tasks read it.

    ``of_site`` is what is `stated` of that estimator.

    Raises
    ------
    RefusedError
        That names the version, the class or the parameters that differ.
    """
    config = message.config
    protocol = config.get("protocol")
    if protocol != PROTOCOL or isinstance(protocol, bool):
        got = "no version" if protocol is None else f"version {shown(repr(protocol))}"
        raise RefusedError(
            f"the question is of {got} of the protocol, the site speaks version {PROTOCOL}: the "
            "releases of fedpca_sklearn differ"
        )
    name, asked = of_site["estimator"], config.get("estimator")
    if asked != name:
        raise RefusedError(f"the estimator must be {name}, got {_shortened(asked)}")
    own, theirs = _read(of_site["parameters"]), _read(config.get("parameters"))
    of_server = _of_the_server(estimator, own, secure)
    names = own.keys() | theirs.keys()
    differ = {name for name in names - of_server if own.get(name) != theirs.get(name)}
    whole = differ | of_server  # not named where what it is a part of is
    differ = {n for n in differ if not whole & {n[: m.start()] for m in re.finditer("__", n)}}
    if differ:
        named = "; ".join(
            f"{name} is {_shortened(own.get(name))}, got {_shortened(theirs.get(name))}"
            for name in sorted(differ)[:_NAMED]
        )
        more = f" and {len(differ) - _NAMED} more" if len(differ) > _NAMED else ""
        raise RefusedError(f"the parameters must be those of the site: {named}{more}")


def parameters_of(estimator: Any) -> dict[str, str]:
    """Text of each parameter, or its hash, also of what the estimator is made of, by name."""
    given = estimator.get_params(deep=True)
    if isinstance(estimator, federated.FederatedPCA):
        given["directions of its merge"] = estimator._directions_needed()
    found = {}
    for name, value in given.items():
        if _OF_A_PROCESS & {*name.split("__")}:
            continue
        if hasattr(value, "get_params"):  # whose parameters are listed by themselves
            text = f"{type(value).__name__}()"
        elif callable(value):
            text = str(getattr(value, "__qualname__", type(value).__name__))
        else:
            try:
                text = construction_of(value)
            except ValueError:  # it is no constant, and of no public class
                text = ""
        if not 0 < len(text) <= _LONGEST:
            text = f"{type(value).__name__} {joblib.hash(text or value)}"
        found[name] = text
    return found


def _of_the_server(estimator: Any, own: Iterable[str], secure: bool) -> set[str]:
    """Names of parameters that the tasks of a site do not read."""
    found = set[str]().union(
        *(names for kind, names in _OF_THE_SERVER.items() if isinstance(estimator, kind))
    )
    if isinstance(getattr(estimator, "missing", None), federated.AvailablePairs):
        return {*own} - {"missing"}
    if isinstance(estimator, federated.DistributedPCA) and not secure:
        found |= {"partial_out", "scale"}
    if isinstance(estimator, federated.OnlineDistributedPCA) and secure:
        found -= {"weighting"}
    return found


def _read(parameters: Any) -> Mapping[str, str]:
    """The parameters of a question by name, or a refusal."""
    if not isinstance(parameters, list) or len(parameters) > _MOST:
        raise RefusedError(f"a question states at most {_MOST} parameters, as texts")
    found = {}
    for parameter in parameters:
        name, mark, text = str(parameter).partition("=")
        if not mark or len(text) > _LONGEST:
            raise RefusedError(f"a parameter is a name, = and at most {_LONGEST} characters")
        found[name] = text
    return found


def _shortened(text: Any) -> str:
    """What a refusal shows of a name or a value."""
    return "nothing" if text is None else shown(str(text), _SHOWN)
