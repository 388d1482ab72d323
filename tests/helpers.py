"""What several test files share: spans and their angles, data, messages, and the use of memory.

A helper is here when two files mean the same by it, tolerance included; oracles stay beside the
tests which they decide.
"""

import tracemalloc
from contextlib import contextmanager

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from fedpca_sklearn._kernels import scatter, stack

# Trackers of batches as in Narayanamurthy et al. (2022): about the origin, by least squares, by the
# last batch alone.
PAPER = {"forgetting_factor": 0.0, "fill": "subspace", "center": False}

# ------------------------------------------------------------------------------ spans


def random_basis(rng, k, d):
    """Orthonormal rows that span a random k-dimensional subspace."""
    return np.linalg.qr(rng.standard_normal((d, k)))[0].T


def leading(X, k):
    """The k leading right singular vectors."""
    return np.linalg.svd(X, full_matrices=False)[2][:k]


def sine(A, B):
    """Sine of the largest angle between the spans of two sets of as many rows."""
    A, B = (np.linalg.qr(np.asarray(M, np.float64).T)[0].T for M in (A, B))
    assert A.shape == B.shape, (A.shape, B.shape)
    return sine_of_orthonormal(A, B)


def sine_of_orthonormal(A, B):
    """Sine of the largest angle from a span to another, which may be larger; rows as they are."""
    A, B = np.asarray(A, np.float64), np.asarray(B, np.float64)
    return np.linalg.norm(A - A @ B.T @ B, 2)


# ------------------------------------------------------------------------------ data

client_sizes = st.lists(st.one_of(st.just(1), st.integers(1, 30)), min_size=1, max_size=40)


def as_dense(X):
    """Dense or sparse rows as a dense array in double precision."""
    return np.asarray(X.toarray() if sp.issparse(X) else X, dtype=np.float64)


def rows_of_decay(rng, n, d, decay=0.6, least=0.05):
    """Gaussian rows in general position with a decaying spectrum."""
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    return (rng.standard_normal((n, d)) * np.maximum(decay ** np.arange(d), least)) @ Q


def unlike_sites(rng, sizes, d):
    """Rows and labels of clients at +5 and -5, in shuffled order."""
    clients = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    X = rows_of_decay(rng, len(clients), d)
    return X + np.where(clients % 2, 5.0, -5.0)[:, None], clients


def with_holes(X, share, seed=0):
    """Rows of which this share of the entries is missing."""
    return np.where(np.random.default_rng(seed).random(X.shape) < share, np.nan, X)


def centred(X, weight=None, center=True):
    """Weighted rows about their mean, and the mean; relative to a row first, in long double."""
    X = as_dense(X).astype(np.longdouble)
    w = np.ones(len(X)) if weight is None else np.asarray(weight, dtype=np.float64)
    D = X - X[0] * center
    offset = center * (w @ D) / w.sum(dtype=np.longdouble)
    Z = np.sqrt(w.astype(np.longdouble))[:, None] * (D - offset)
    return Z.astype(np.float64), (X[0] * center + offset).astype(np.float64)


def svd_of(X, weight=None, center=True):
    """Mean, singular values and right singular vectors of weighted rows, by largest loadings."""
    Z, mean = centred(X, weight, center)
    s, V = np.linalg.svd(Z, full_matrices=False)[1:]
    return mean, s, V * np.sign(V[np.arange(len(V)), np.abs(V).argmax(axis=1)])[:, None]


# ------------------------------------------------------------------------------ models


def assert_same_summary(a, b, tol=1e-9):
    """Two fits keep the same subspace, singular values, mean and noise; signs are not compared."""
    assert_allclose(a.singular_values_, b.singular_values_, rtol=tol)
    assert_allclose(a.mean_, b.mean_, rtol=tol, atol=tol)
    assert_allclose(a.noise_variance_, b.noise_variance_, rtol=tol)
    angle = sine(a.components_, b.components_)
    assert angle <= tol, angle


def assert_finite_and_orthonormal(model, *more):
    """The fitted attributes and more arrays are finite, and the components orthonormal."""
    for name in ("components_", "mean_", "singular_values_", "explained_variance_ratio_"):
        assert np.isfinite(getattr(model, name)).all(), name
    assert np.isfinite(model.noise_variance_)
    V = model.components_
    assert_allclose(V @ V.T, np.eye(len(V)), atol=1e-10)
    for array in more:
        assert np.isfinite(array).all()


def f1_score(found, true):
    """Harmonic mean of the precision and the recall of a mask."""
    return 2 * np.sum(found & true) / (np.sum(found) + np.sum(true))


# ------------------------------------------------------------------------------ messages and memory


def floats_of(k, d):
    """Numbers in a summary of k directions: basis and values, moments of columns and of all."""
    return k * (d + 1) + 2 * d + 2


def arrays_in(value, seen=None):
    """All arrays that can be reached from an object."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from arrays_in(item, seen)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from arrays_in(item, seen)
    elif hasattr(value, "__dict__"):
        yield from arrays_in(vars(value), seen)
    else:
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        yield from arrays_in([getattr(value, name, None) for name in slots], seen)


def fitted_attributes(model):
    """Public attributes that a fit has set, those that are computed when read as well."""
    names = {*vars(model), *(model._values() if hasattr(model, "_values") else ())}
    return {n: getattr(model, n) for n in names if n.endswith("_") and not n.startswith("_")}


def peak_bytes(function):
    """The most memory that a call holds at once, beyond what was held before."""
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        function()
        return tracemalloc.get_traced_memory()[1] - start
    finally:
        tracemalloc.stop()


def noted_precisions(monkeypatch):
    """Precisions of the scatter matrices that are made from now on."""
    made, make = [], scatter.row_scatter

    def noted(*args):
        made.append(args[4])
        return make(*args)

    monkeypatch.setattr(stack, "row_scatter", noted)
    return made


@contextmanager
def naming(case):
    """Name the case of a loop beside the error that it ends in."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {case}")
        raise


def kind_of_error(words):
    """That which one of the words names, or ValueError."""
    kinds = {kind.__name__: kind for kind in (TypeError, KeyError, AttributeError)}
    return next((kinds[word] for word in words if word in kinds), ValueError)


def assert_refused(table, values):
    """Hold that calls are refused by name and change nothing: lines "model | call | words ..."."""
    for row in table.strip().splitlines():
        code, call, *words = row.split(" | ")
        with naming(row):
            model = eval(code, dict(values))
            before = None if isinstance(model, type) else joblib.hash(vars(model))
            with pytest.raises(kind_of_error(words)) as error:
                eval(f"model.{call}", {**values, "model": model})
            for word in words:
                assert word in error.exconly()
            assert before is None or joblib.hash(vars(model)) == before
