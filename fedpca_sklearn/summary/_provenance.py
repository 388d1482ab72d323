"""What is stated of a summary (sites, privacy, model of its file), and its labels in a file."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from .._validation.checks import is_real, nonnegative_float
from .._validation.containers import NAME_BYTES, check_names, check_text, composed

VERSION = "0.1.0"  # of the library

# The most names that a file holds, of columns or of sites; a Python string takes 50 bytes and more.
MAX_NAMES = 2**20
MAX_SITES = 2**16 - 1
# Beyond names and sites: keys, version, the site's name once more, what is said of privacy, and
# the numbers of a model.
_OTHER_BYTES = 8 * NAME_BYTES
# The position of a column, up to MAX_NAMES, and what stands between two.
_POSITION_BYTES = 10
_MODEL_NUMBERS = 3  # before the positions
_UNREADABLE = "Corrupt subspace summary: its labels cannot be read."
# One JSON object of at most 16 keys, whose values are scalars or lists of at most so many scalars.
# It is checked before `json.loads` builds it, of which 20 MB of ``[],[],`` would make 700 MB.
_TEXT = rb' {0,8}"(?>(?:[^"\\]|\\.){0,%d}+)"' % (2 * NAME_BYTES)
_SCALAR = rb"(?>" + _TEXT + rb"| {0,8}(?:null|-?[0-9.eE+-]{1,30}))"
_LIST = rb" {0,8}\[(?:" + _SCALAR + rb"(?: {0,8}," + _SCALAR + rb"){0,MOST}+)?+ {0,8}\]"
_ENTRY = _TEXT + rb" {0,8}:(?>" + _SCALAR + rb"|" + _LIST + rb")"
_LABELS = rb" {0,8}\{" + _ENTRY + rb"(?: {0,8}," + _ENTRY + rb"){0,15}+ {0,8}\}"


def max_bytes_of_labels(n_features: int, n_sites: int) -> int:
    """The most bytes that the labels of so many columns and sites take; a name may be escaped."""
    names = (2 * NAME_BYTES + 4) * (n_features + n_sites)
    return _OTHER_BYTES + names + _POSITION_BYTES * n_features


def encode_labels(feature_names, site, sites, privacy, model=None) -> bytes:
    """Serialise names, sites, privacy and a model; nothing if there are none."""
    if feature_names is None and not sites and privacy is None and model is None:
        return b""
    if privacy is not None:
        privacy = [None if x == math.inf else x for x in privacy]
    labels = {
        "library": f"fedpca_sklearn {VERSION}",
        "feature_names": feature_names,
        "site": site,
        "sites": sites,
        "privacy": privacy,
    }
    if model is not None:
        bound = None if model.error_bound == math.inf else model.error_bound
        labels["model"] = [model.n_components, int(model.scale), bound, *model.partial_out]
    return json.dumps(labels, ensure_ascii=False).encode()


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
    labels = _flat_object(data, max(n_features + _MODEL_NUMBERS, n_sites, 5))
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


def _flat_object(data: Any, max_items: int) -> dict[str, Any]:
    """The JSON object of scalars and lists of scalars that data is."""
    most = str(max_items - 1).encode()
    if re.fullmatch(_LABELS.replace(b"MOST", most), data, re.DOTALL) is None:
        raise ValueError(_UNREADABLE)
    try:
        pairs = json.loads(bytes(data), object_pairs_hook=list)
    except ValueError:
        raise ValueError(_UNREADABLE) from None
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(_UNREADABLE)
    return found


# A Subspace, whose own methods call this module
Summary: TypeAlias = Any


class StatedPrivacy(NamedTuple):
    """What the maker of a summary states about the privacy of each row in it.

    ``row_norm`` is the bound on the norms of the rows, None where it was taken from the data;
    ``mechanism`` the name of its class, and ``trust`` that of `AnalyzeGauss`. In a merged summary
    the two list what its parts state.
    """

    epsilon: float
    delta: float
    row_norm: float | None
    mechanism: str
    trust: str


def check_privacy(privacy: Any) -> StatedPrivacy | None:
    """Five values that state privacy, or None."""
    if privacy is None:
        return None
    epsilon, delta, row_norm, mechanism, trust = _fields("privacy", StatedPrivacy, privacy)
    epsilon = math.inf if epsilon is None else epsilon  # a file has no infinity
    if not is_real(epsilon) or not epsilon >= 0:
        raise ValueError(f"privacy.epsilon must be a number of at least 0, got {epsilon!r}.")
    delta = nonnegative_float("privacy.delta", delta)
    if delta > 1:
        raise ValueError(f"privacy.delta must be at most 1, got {delta!r}.")
    if row_norm is not None:
        row_norm = nonnegative_float("privacy.row_norm", row_norm)
    for name, value in (("mechanism", mechanism), ("trust", trust)):
        if not isinstance(value, str):
            raise ValueError(f"privacy.{name} must be a string, got {value!r}.")
    mechanism = check_text("privacy.mechanism", mechanism)
    return StatedPrivacy(
        float(epsilon), delta, row_norm, mechanism, check_text("privacy.trust", trust)
    )


class StatedModel(NamedTuple):
    """The model that a file is of: how components are computed from the summary.

    ``partial_out`` has the positions of the confounders. ``error_bound`` is the
    ``subspace_error_bound_`` of the model, which cannot be computed from the summary once
    directions are cut; inf where nothing is known. It is a statement, not a proof.
    """

    n_components: int
    scale: bool
    partial_out: tuple[int, ...]
    error_bound: float

    @property
    def adjusts(self) -> bool:
        """Whether components are those of other columns than the summary's."""
        return self.scale or bool(self.partial_out)


def check_model(model: Any, d: int, centered: bool) -> StatedModel | None:
    """Four values that state the model of a summary of d columns, or None."""
    if model is None:
        return None
    n_components, scale, partial_out, error_bound = _fields("model", StatedModel, model)
    positions = [_whole("model.partial_out", column, d - 1) for column in partial_out]
    if len(set(positions)) < len(positions) or len(positions) >= max(d, 1):
        raise ValueError(
            f"model.partial_out must hold none of {d} columns twice, and leave one, got "
            f"{len(positions)}."
        )
    if scale not in (False, True):
        raise ValueError(f"model.scale must be True or False, got {scale!r}.")
    error_bound = math.inf if error_bound is None else error_bound  # a file has no infinity
    if error_bound != math.inf:
        error_bound = nonnegative_float("model.error_bound", error_bound)
    n_components = _whole("model.n_components", n_components, d - len(positions))
    stated = StatedModel(n_components, bool(scale), tuple(positions), error_bound)
    if stated.adjusts and not centered:
        raise ValueError("model.scale and model.partial_out need a summary with centered=True.")
    return stated


def _fields(name: str, kind: Any, stated: Any) -> Any:
    """Values of the fields of a named tuple, or an error: they are others."""
    if isinstance(stated, str) or len(stated) != len(kind._fields):
        raise ValueError(f"{name} must be {kind._fields}, got {stated!r}.")
    return stated


def _whole(name: str, value: Any, most: int) -> int:
    """An integer from 0 to the largest, which may be a float as JSON has it."""
    if not is_real(value) or value != value // 1 or not 0 <= value <= most:
        raise ValueError(f"{name} must be an integer from 0 to {most}, got {value!r}.")
    return int(value)


def pooled_privacy(subspaces: Sequence[Summary]) -> StatedPrivacy | None:
    """What holds for every row of summaries of disjoint rows, if all of them state something.

    A row is in one of the summaries, and the others do not depend on it: the largest epsilon and
    the largest delta are stated for it. They do not add up.
    """
    stated = [s.privacy for s in subspaces]
    if not stated or None in stated:
        return None
    epsilons, deltas, row_norms, mechanisms, trusts = zip(*stated, strict=True)
    row_norm = None if None in row_norms else max(row_norms)
    return StatedPrivacy(max(epsilons), max(deltas), row_norm, _listed(mechanisms), _listed(trusts))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(sorted({part for name in names for part in name.split(", ")}))


def check_sites(site: Any, sites: Any) -> tuple[str | None, tuple[str, ...]]:
    """The one site of all rows, if it is known, and the sorted sites of which rows are known."""
    if not isinstance(site, str | None):
        raise TypeError(f"site must be a string or None, got {site!r}.")
    if isinstance(sites, str):
        raise TypeError(f"sites must be a collection of strings, got {sites!r}.")
    given = list(sites or ())  # of an iterator, too
    for other in given:
        if not isinstance(other, str):
            raise ValueError(f"sites must be strings, got {other!r}.")
    if site is not None:
        site = check_text("site", site)
    sites = {check_text("sites", other) for other in given}
    if len(sites) > MAX_SITES:
        raise ValueError(f"sites must be at most {MAX_SITES}, got {len(sites)}.")
    if site is not None and sites not in (set(), {site}):
        raise ValueError(f"site={site!r} must be the only one of sites, got {sorted(sites)}.")
    return site, (site,) if site is not None else tuple(sorted(sites))


def pooled_sites(subspaces: Sequence[Summary]) -> tuple[str, ...]:
    """Sites of the rows of several summaries."""
    return tuple(sorted(set().union(*map(attrgetter("sites"), subspaces))))


def check_each_site_once(subspaces: Sequence[Summary], what: str = "subspaces") -> None:
    """Raise where a site is in two summaries, and warn where that cannot be known of some."""
    owner: dict[str, int] = {}
    for i, subspace in enumerate(subspaces):
        for site in map(composed, subspace.sites):
            if site in owner:
                raise ValueError(
                    f"{what}[{i}] is of site {site!r}, as is {what}[{owner[site]}]: its rows "
                    "would be counted twice."
                )
            owner[site] = i
    if not owner:
        return
    unknown = [i for i, s in enumerate(subspaces) if not s.sites and s.n_samples > 0]
    if unknown:
        site, i = next(iter(owner.items()))
        warnings.warn(
            f"{what}[{unknown[0]}] has no site, unlike {what}[{i}] of site {site!r}: whether "
            "rows are counted twice cannot be checked.",
            UserWarning,
            stacklevel=3,
        )


def check_stored_names(value: Any) -> None:
    """Raise unless names of columns and sites may stand in a file: a data frame has any."""
    d = value.n_features
    if value.feature_names is not None and d > MAX_NAMES:
        raise ValueError(f"feature_names must be at most {MAX_NAMES} in a file, got {d}.")
    check_names(value.feature_names, d)
    check_sites(value.site, value.sites)
