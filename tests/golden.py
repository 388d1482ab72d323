"""Golden fits: what every estimator found before the code was changed, and how near that is kept.

``python -m tests.golden`` makes `golden.npz` anew, ``python -m tests.golden 'GROUSE(*'`` the fits
with such names and those that it lacks. Kept are, of each fit of `golden_cases.fits`,
the components, all other numbers that are fitted, what is counted exactly (numbers of components,
rows, iterations, bytes sent), and the text of warnings and errors.

**Margins** are stored beside the values, one for each component and one for each other attribute.
Each is the largest of these:

- 1e-12 of the largest entry (of the largest variance, for variances);
- what the condition of the fit allows: all rows are moved at random by 1e-9 of their columns'
  deviations, three times; the largest change of a value over 1e-9 is its condition; ten times that
  is granted for an error of the rows of 1e-13 of a deviation, or of 2 eps of their distance from
  the origin, if that is more. So a tracker whose steps enlarge an error 1,000 times is granted as
  much, and a component whose eigenvalue is near the next one what their gap allows;
- 1e-7 of `PersonalizedPCA`, which stops where its components move by less than 1e-7;
- twice ``subspace_error_bound_``, where it is stated: the sum of two certificates. The error of
  reconstruction then has to be as good as it was.

Fits of float32 rows are compared with the fit of the same rows in float64; the margin is twice the
distance at which the float32 fit was from it, and 8 eps of float32 at least, so that they are no
further off than they were. A bound that is stated has to be above their distance.

Components are compared up to sign, and those of equal eigenvalues up to a rotation. Of many
features a fixed projection onto 24 vectors is kept. Numbers in warnings may differ by 2 %.

A message that is changed on purpose is listed in `golden_changes.json`, with the reason.
"""

import json
import re
import sys
import traceback
import warnings
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator

sys.path.insert(0, str(Path(__file__).resolve().parent))

import golden_cases as cases

import fedpca_sklearn

FILE = Path(__file__).with_name("golden.npz")
CHANGES = Path(__file__).with_name("golden_changes.json")
PACKAGE = str(Path(fedpca_sklearn.__file__).parent)
# Share of the largest value that exact fits may differ by, and error of rows that is granted.
EXACT, OF_ROWS = 1e-12, 1e-13
# The same of rounds that stop at a tolerance.
STOPS_AT = {"PersonalizedPCA": 1e-7}
MOVED, TIMES, SPARE = 1e-9, 3, 10.0
# Shares of the largest value from which a margin is named when the file is made.
LOOSE = 1e-6
# Eigenvalues nearer than this share of the largest one are taken for equal.
EQUAL = 1e-6
# Features above which projections onto so many vectors are kept, and entries of other arrays.
FEATURES, PROJECTIONS, ENTRIES = 64, 24, 400
# What is compared up to sign, entry by entry.
UP_TO_SIGN = ("eigenvectors_", "factors_", "sketch_", "r_factor_", "client_components_")
UP_TO_SIGN += ("local_components_", "subspaces_")
# Values whose scale is that of the variances.
VARIANCES = ("explained_variance_", "noise_variance_", "explained_variance_interval_")
# Of which less is as good.
ONE_SIDED = ("excess", "subspace_error_bound_")
SENT = ("bytes_up", "bytes_down", "floats_busiest", "messages_up", "messages_down", "rounds")
# Methods that are asked about three rows, of which one lacks an entry where that may be.
ASKED = ("inverse_transform", "score", "score_samples", "get_covariance", "get_precision", "impute")
ASKED += ("decompose", "statistics", "contributions", "decision_function")
# Copies of rows, and objects that say nothing that is not in other attributes.
LEFT_OUT = {"clients_", "n_features_in_", "low_rank_", "sparse_", "landmarks_", "feature_groups_"}
# What makes components those of other rows than the ones that are given.
OTHER_ROWS = ("scale", "partial_out", "forgetting", "half_life", "center=False")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


# ---------------------------------------------------------------------- what a fit found


def found(code, how, X, given):
    """Messages and numbers of a fit: texts, whole numbers, and arrays by name."""
    fit = SimpleNamespace(warnings=[], error=None, whole={}, arrays={})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model = cases.fitted(code, how, X, given)
        except Exception as error:
            fit.error = text_of(error)
        else:
            look_at(model, fit) if how != "call" else look_into(model, fit)
            if how not in ("ties", "call"):  # where components may be turned
                note("transformed", np.abs(scores(model, X[:2].copy())), fit)
                ask(model, X[:3].copy(), fit)
            stated = how != "call" and np.isfinite(bound_of(fit))
            if stated and not any(word in code for word in OTHER_ROWS):
                fit.arrays["excess"] = excess(X, given, model)
    fit.warnings = sorted({f"{w.category.__name__}: {w.message}" for w in caught})
    return fit


def ask(model, rows, fit):
    """Note what the methods of a model say of rows: a sum of what they return over the rows."""
    if not sp.issparse(rows) and model.__sklearn_tags__().input_tags.allow_nan:
        rows[0, 3] = np.nan
    given = {"inverse_transform": (scores(model, rows),), "get_covariance": (), "get_precision": ()}
    for name in ASKED:
        if hasattr(model, name):
            try:
                value = getattr(model, name)(*given.get(name, (rows,)))
            except Exception as error:
                fit.whole[name] = text_of(error)
                continue
            for i, part in enumerate(value if isinstance(value, tuple) else (value,)):
                part = np.atleast_1d(part.toarray() if sp.issparse(part) else part)
                note(f"{name}.{i}", (1 / np.arange(1.0, 1 + len(part))) @ part, fit)


def look_into(value, fit, name=""):
    """Note all numbers and texts of what a call returned."""
    if isinstance(value, BaseEstimator):
        look_at(value, fit, name)
    elif isinstance(value, (str, bool, type(None))):
        fit.whole[name] = str(value)
    elif isinstance(value, (int, float, np.generic, np.ndarray)):
        note(name or "value", np.asarray(value), fit)
    elif isinstance(value, Mapping) or not isinstance(value, (list, tuple)):
        public = [a for a in dir(value) if not a.startswith("_")]
        parts = value if isinstance(value, Mapping) else {a: getattr(value, a) for a in public}
        for key, part in parts.items():
            if not callable(part):
                look_into(part, fit, f"{name}.{key}_".lstrip("."))
    else:
        for key, part in enumerate(value):
            look_into(part, fit, f"{name}.{key}".lstrip("."))


def scores(model, rows):
    """What a model makes of rows."""
    found = getattr(model, "transform" if hasattr(model, "transform") else "score_samples")(rows)
    return found.toarray() if sp.issparse(found) else found


def text_of(error):
    """Of an error of the package, and the kind alone of one from another library."""
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    return f"{type(error).__name__}: {error}" if last.startswith(PACKAGE) else type(error).__name__


def look_at(model, fit, before=""):
    """Note all that is fitted."""
    names = [n for n in dir(model) if n.endswith("_") and not n.startswith("_")]
    for name in names:
        value = None if name in LEFT_OUT else getattr(model, name, None)
        if isinstance(value, Mapping):
            value = list(value.values())
        if isinstance(value, list) and all(isinstance(v, (np.ndarray, float)) for v in value):
            value = np.concatenate([np.ravel(v) for v in value]) if value else np.zeros(0)
        if name == "estimator_":
            look_at(value, fit, "estimator.")
        elif name == "communication_":
            fit.whole |= {kind: value.totals.get(kind, 0) for kind in SENT}
        elif isinstance(value, (float, np.ndarray)):
            note(before + name, np.asarray(value), fit)
        elif isinstance(value, (int, str, np.integer)):
            fit.whole[before + name] = value if isinstance(value, str) else int(value)


def note(name, value, fit):
    """Note an array: whole numbers, components, or what does not depend on signs."""
    if value.dtype.kind in "bui":
        fit.whole[name] = [*map(int, value.shape), int(value.sum())]
        return
    fit.whole[name] = f"{value.dtype} {value.shape}"
    value = value.astype(np.float64)
    if name.endswith("components_") and name.partition(".")[2] in ("", "components_"):
        value = value if name in UP_TO_SIGN else projected(value)
    if name in UP_TO_SIGN:
        value = np.abs(value)
    if value.size > ENTRIES and "components_" not in name:
        value = np.sqrt(np.mean(value**2, axis=0))
    fit.arrays[name] = value if value.size <= ENTRIES else np.sqrt(np.mean(value**2))[None]


@cache
def projection(d):
    """Vectors of plus and minus one, scaled, onto which components of many features are taken."""
    signs = np.random.default_rng(d).integers(2, size=(d, PROJECTIONS)) * 2 - 1
    return signs / np.sqrt(PROJECTIONS)


def projected(V):
    """Components, or their projections if there are many features."""
    return V @ projection(V.shape[1]) if V.shape[1] > FEATURES else V


def excess(X, given, model):
    """Error of reconstruction beyond the least possible one, as a share of all."""
    X = np.asarray(X.toarray() if sp.issparse(X) else X, np.float64)
    w = np.ones(len(X)) if given.weight is None else given.weight
    Z = (X - np.average(X, axis=0, weights=w)) * np.sqrt(w)[:, None]
    s = np.linalg.svd(Z, compute_uv=False) ** 2
    kept = np.sum((Z @ model.components_.T.astype(np.float64)) ** 2)
    return np.maximum(s[: len(model.components_)].sum() - kept, 0.0) / s.sum()


def bound_of(fit):
    """Certificate of the subspace; infinite where there is none."""
    return float(fit.arrays.get("subspace_error_bound_", np.inf))


# ---------------------------------------------------------------------- comparing


def distances(name, ours, theirs, values):
    """How far an array is from another: a number, or one for each component."""
    if not name.endswith("components_") or name in UP_TO_SIGN or ours.ndim < 2:
        with np.errstate(invalid="ignore"):
            far = np.abs(ours - theirs)
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        return np.where(same, 0.0, far).max(initial=0.0)
    far, groups = np.zeros(len(ours)), groups_of(values, len(ours))
    for group in groups:
        U, _, Vt = np.linalg.svd(ours[group] @ theirs[group].T)
        far[group] = np.linalg.norm((U @ Vt).T @ ours[group] - theirs[group], axis=1)
    return far


def groups_of(values, k):
    """Indices of components with equal singular values."""
    squares = values**2 if values is not None and len(values) == k else np.arange(k, 0.0, -1)
    new = np.diff(squares) < -EQUAL * squares[:1].sum()
    return np.split(np.arange(k), 1 + np.flatnonzero(new))


def scale_of(name, fit):
    """The largest value that an attribute of this kind has; 1 at least, but for variances."""
    before, _, last = name.rpartition(".")
    first = "explained_variance_" if last in VARIANCES else last
    value = fit.arrays.get(".".join(filter(None, (before, first))), 1.0)
    largest = float(np.nan_to_num(np.abs(value)).max(initial=0.0))
    return largest if last in VARIANCES else max(largest, 1.0)


def singular_values(name, fit):
    return fit.arrays.get(name.replace("components_", "singular_values_"))


def differences(before, now):
    """Lines of what differs more than its margin: what, before, now."""
    lines = []
    if before.error != now.error:
        lines.append(("error", before.error, now.error))
    if not same_texts(before.warnings, now.warnings):
        lines.append(("warnings", before.warnings, now.warnings))
    if before.error or now.error:
        return lines
    for key in sorted(before.whole | now.whole):
        old, new = before.whole.get(key), now.whole.get(key)
        if old != new and not (key in before.spread and abs(old - new) <= before.spread[key]):
            lines.append((key, old, new))
    named = {key for key, *_ in lines}
    for key in sorted(before.arrays.keys() - named):
        line = difference(key, before, now)
        if line:
            lines.append(line)
    if beyond_bound(before, now):
        lines.append(("certificate", f"sine {beyond_bound(before, now):.2g}", bound_of(now)))
    return lines


def beyond_bound(before, now):
    """Sine from components of float32 to those of float64, if their certificate is below it."""
    V, W = (fit.arrays.get("components_") for fit in (now, before))
    single = str(now.whole.get("components_")).startswith("float32")
    if not single or V.shape != W.shape or V.shape[1] == PROJECTIONS:
        return 0.0
    sine = float(np.linalg.norm(V - (V @ W.T) @ W, 2)) if len(V) < V.shape[1] else 0.0
    return sine if bound_of(now) < sine else 0.0


def difference(key, before, now):
    """A line of an array that differs more than its margin, or None."""
    old, new, margin = before.arrays[key], now.arrays.get(key), before.margins[key]
    if new is None or new.shape != old.shape:
        return key, "kept", "missing" if new is None else f"of shape {new.shape}"
    if key.endswith(ONE_SIDED):
        far = new - old if np.isfinite(old) or np.isfinite(new) else np.zeros(())
    else:
        far = distances(key, new, old, singular_values(key, before))
    if np.all(far <= margin):
        return None
    far, margin = np.broadcast_arrays(np.atleast_1d(far), margin)
    worst = np.argmax(np.where(np.isnan(far), np.inf, far) / margin)
    return key, f"margin {margin[worst]:.2g}", f"is off by {far[worst]:.2g}"


def same_texts(ours, theirs):
    """Whether texts are the same but for numbers, which may differ by 2 %."""
    if [NUMBER.sub("#", t) for t in ours] != [NUMBER.sub("#", t) for t in theirs]:
        return False
    numbers = ([float(x) for t in texts for x in NUMBER.findall(t)] for texts in (ours, theirs))
    return np.allclose(*numbers, rtol=0.02, atol=0.0)


# ---------------------------------------------------------------------- making


def made(name):
    """What a fit finds today, with its margins."""
    code, how, kind = name.split(" | ")
    given = cases.rows(cases.size_of(how), kind)
    now = found(code, how, given.X, given)
    now.margins, now.spread = {}, {}
    if now.error:
        return now
    X, truth = given.X, now
    if kind == "float32":
        X = X.astype(np.float64)
        truth = found(code, how, X, given)
    rng = np.random.default_rng(0)
    moved = [found(code, how, moved_rows(X, rng), given) for _ in range(TIMES)]
    deviation = cases.FAR if kind == "far" else 0.0
    granted = SPARE * max(OF_ROWS, 2 * np.finfo(float).eps * deviation) / MOVED
    bound = bound_of(now)
    for key in now.arrays:
        values = singular_values(key, now)
        margin = STOPS_AT.get(code.partition("(")[0], EXACT) * scale_of(key, now)
        for other in moved:
            far = np.inf
            if key in other.arrays and other.arrays[key].shape == truth.arrays[key].shape:
                far = distances(key, other.arrays[key], truth.arrays[key], values)
            margin = np.maximum(margin, granted * far)
        now.margins[key] = margin
    for key, value in now.whole.items():
        ints = [other.whole.get(key) for other in moved if isinstance(value, int)]
        spread = max((abs(other - truth.whole[key]) for other in ints), default=0)
        if spread:
            now.spread[key] = spread
    if kind == "float32":
        compared_with_float64(now, truth)
    if np.isfinite(bound):
        by_certificate(now, bound, 1e-6 if kind == "float32" else EXACT)
    return now


def moved_rows(X, rng):
    """Rows of which each entry is moved by a small share of its column's deviation."""
    if sp.issparse(X):
        X = X.copy()
        X.data = X.data + MOVED * X.data.std() * rng.uniform(-1, 1, X.data.shape)
        return X
    return X + MOVED * np.nanstd(X, axis=0) * rng.uniform(-1, 1, X.shape)


def compared_with_float64(now, truth):
    """Take the numbers of the fit in float64, and margins by how far float32 is from them."""
    eps = float(np.finfo(np.float32).eps)
    for key, value in now.arrays.items():
        if key.endswith(ONE_SIDED) or value.shape != truth.arrays[key].shape:
            continue
        far = distances(key, value, truth.arrays[key], singular_values(key, truth))
        least = 8 * eps * max(scale_of(key, now), scale_of(key, truth))
        now.margins[key] = np.maximum(now.margins[key], np.maximum(2 * far, least))
        now.arrays[key] = truth.arrays[key]


def by_certificate(now, bound, least):
    """Where a bound is stated components may differ by it, and variances by what that costs."""
    share = min(2 * bound, 2.0)
    for key, margin in now.margins.items():
        if key in ("components_", "transformed"):
            share = share if key == "components_" else share * scale_of(key, now)
            now.margins[key] = np.maximum(margin, share)
        elif key.endswith("subspace_error_bound_"):
            now.margins[key] = bound + 10 * least
        elif key == "excess":
            now.margins[key] = now.arrays[key] + least
        elif "variance" in key or key == "singular_values_":
            now.margins[key] = np.maximum(margin, share**2 * scale_of(key, now))


# ---------------------------------------------------------------------- the file


def written(fits):
    """Write fits to the file."""
    index, parts, at = {}, [], 0
    for name, fit in fits.items():
        entry = {"warnings": fit.warnings, "error": fit.error, "whole": fit.whole}
        entry |= {"spread": fit.spread, "arrays": {}}
        for key, value in fit.arrays.items():
            margin = np.atleast_1d(fit.margins[key])
            entry["arrays"][key] = [at, list(value.shape), [float(f"{m:.2g}") for m in margin]]
            parts.append(np.ravel(value))
            at += value.size
        index[name] = {what: value for what, value in entry.items() if value}
    text = np.frombuffer(json.dumps(index).encode(), np.uint8)
    np.savez_compressed(FILE, index=text, values=np.concatenate(parts))


@cache
def golden():
    """Fits of the file by name."""
    with np.load(FILE) as file:
        index, values = json.loads(file["index"].tobytes()), file["values"]
    fits = {}
    for name, entry in index.items():
        fit = SimpleNamespace(warnings=[], error=None, whole={}, spread={}, margins={})
        vars(fit).update(entry)
        fit.arrays = {}
        for key, (at, shape, margin) in entry.get("arrays", {}).items():
            fit.arrays[key] = values[at : at + int(np.prod(shape))].reshape(shape)
            fit.margins[key] = np.array(margin) if len(margin) > 1 else margin[0]
        fits[name] = fit
    return fits


def changes():
    """Changes of messages that are accepted: of which fits, what, its value now, and why."""
    return json.loads(CHANGES.read_text())


def main(patterns):
    """Make the file, or the fits in it whose names match, and name those it holds loosely."""
    before = golden() if patterns else {}
    fits = {}
    for name in (*cases.fits(), *cases.wrong_calls()):
        if name in before and not any(fnmatchcase(name, pattern) for pattern in patterns):
            fits[name] = before[name]
            continue
        fits[name] = fit = made(name)
        margins = {k: np.max(m) for k, m in fit.margins.items()}
        loose = {k: f"{m:.1g}" for k, m in margins.items() if m > LOOSE * scale_of(k, fit)}
        stated = np.isfinite(bound_of(fit)) or "float32" in name
        if fit.spread or (loose and not stated) or (fit.error and "| wrong |" not in name):
            print(name, fit.spread or "", loose or "", fit.error or "")
    written(fits)
    print(len(fits), "fits,", FILE.stat().st_size, "bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
