"""Rows that are drawn, and numpy's SVD of them, which a summary is compared with."""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from helpers import as_dense, svd_of
from hypothesis import settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from fedpca_sklearn import Subspace, subspace_distance

EPS = np.finfo(np.float64).eps
# Data have condition numbers up to about 30. A Gram matrix costs the square of it, a subspace
# another factor of 20 (see MIN_GAP) and sums a few hundred roundings: 900 * 20 * 200 eps < 1e-9.
# float32: products are rounded to 6e-8, and cond^2 / gap is kept below a few thousand.
TOL = {np.dtype(np.float64): 1e-9, np.dtype(np.float32): 2e-3}
ORTHONORMAL = {np.dtype(np.float64): 1e-10, np.dtype(np.float32): 1e-5}
MIN_GAP = 0.05  # relative gap of two squared singular values between which subspaces are compared
METHODS = ["auto", "gram", "qr", "svd", "orthogonal"]
CONTAINERS = {
    "dense": np.ascontiguousarray,
    "fortran": np.asfortranarray,
    "csr": sp.csr_array,
    "csc": sp.csc_matrix,
}
# by route: small d x d Gram; wide stack; several blocks above 256 features; several column chunks
SHAPES = [(90, 20), (300, 40), (30, 200), (60, 300), (700, 300), (40, 7000)]
FIELDS = ("components", "singular_values", "mean", "n_samples", "scatter")


def examples(most):
    return settings(max_examples=most, derandomize=True, deadline=None, database=None)


def fields_of(summary, *more, **changes):
    """Arguments of the constructor that make a summary again, with changes."""
    return {name: getattr(summary, name) for name in (*FIELDS, *more)} | changes


def make_rows(n, d, *, cond=5.0, mean=3.0, density=1.0, seed=0, dtype=np.float64):
    """Rows about a random mean, with prescribed singular values where density is 1."""
    rng = np.random.default_rng(seed)
    r = min(n - 1, d)
    U = rng.standard_normal((n, r))
    U = np.linalg.qr(U - U.mean(axis=0))[0]
    V = np.linalg.qr(rng.standard_normal((d, r)))[0]
    X = (U * (np.sqrt(n) * np.geomspace(1, 1 / cond, r))) @ V.T
    X += mean * rng.standard_normal(d)
    if density < 1:
        X *= rng.random((n, d)) < density
    return X.astype(dtype)


class Drawn(NamedTuple):
    """Rows as numpy takes them and as they are given, with weights and what is asked of them."""

    X: np.ndarray
    given: object
    weight: np.ndarray | None
    center: bool
    unit: float
    tol: float


@st.composite
def tables(draw, shapes=SHAPES, **fixed):
    """Rows of any shape, container, dtype, mean, sparsity, unit and weights; all are read-only."""

    def one(name, *values):
        return fixed[name] if name in fixed else draw(st.sampled_from(values), label=name)

    n, d = one("shape", *shapes)
    dtype, container = np.dtype(one("dtype", "f8", "f4")), one("container", *CONTAINERS)
    center, weights = one("center", True, False), one("weights", None, "counts", "parts", "zeros")
    far = one("far", 0, 0, 1) * center * (1e8 if dtype == "f8" else 1e3)
    unit = 1 if far else one("unit", 1, 1, 1e20)
    seed = draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    density = 0.5 if "cs" in container and not far else 1.0
    X = make_rows(n, d, cond=3.0, density=density, seed=seed, mean=one("mean", 0.0, 1.0))
    X = ((X + far) * unit).astype(dtype)
    w = {
        None: None,
        "counts": rng.integers(0, 4, n).astype(float),
        "parts": rng.uniform(0.1, 2, n),
        "zeros": (rng.random(n) < 0.8).astype(float),
    }[weights]
    if weights == "zeros":
        X[w == 0] = 1e20  # without influence, however large
    given = CONTAINERS[container](X)
    for array in (X, w, *arrays_of(given)):
        if array is not None:
            array.flags.writeable = False
    return Drawn(
        X, given, w, center, unit, max(TOL[dtype], 100 * EPS * far if dtype == "f8" else 0)
    )


def arrays_of(X):
    return (X.data, X.indices, X.indptr) if sp.issparse(X) else (X,)


def oracle(X, w=None, center=True):
    """Count, mean, scatter, singular values and right singular vectors by numpy's SVD."""
    X = as_dense(X)
    w = np.ones(len(X)) if w is None else np.asarray(w, dtype=np.float64)
    X, w = X[w > 0], w[w > 0]
    mean, s, Vt = svd_of(X, w, center)
    return w.sum(), mean, s @ s, s, Vt


def column_squares(X, w=None, center=True):
    """Sum of squares of each column about the mean, by the definition."""
    X = as_dense(X)
    w = np.ones(len(X)) if w is None else w
    X, w = X[w > 0], w[w > 0]
    mean = w @ X / w.sum() if center else 0
    return w @ (X - mean) ** 2


def assert_orthonormal(components):
    V = components.astype(np.float64)
    assert_allclose(V @ V.T, np.eye(len(V)), atol=ORTHONORMAL[components.dtype])


def assert_mean(subspace, X, w, mean):
    """Off by roundings of itself and of deviations from it."""
    largest = np.abs(as_dense(X)[slice(None) if w is None else w > 0] - mean).max()
    eps = max(np.finfo(kind).eps for kind in (subspace.components.dtype, np.result_type(X, "f4")))
    atol = 100 * EPS * np.abs(mean).max() + 10 * eps * largest
    assert_allclose(subspace.mean, mean, rtol=0, atol=atol)


def assert_summarises(subspace, X, w=None, *, center=True, n_components=None, tol=None):
    """Subspace, orthonormality, singular values, mean, count and scatter, all together."""
    n, mean, scatter, s, Vt = oracle(X, w, center)
    V, k = subspace.components, subspace.n_components
    tol = TOL[V.dtype] if tol is None else tol
    if n_components is None:  # nothing but rounding errors may be left out
        assert np.all(s[k:] <= tol * s[0])
    else:
        assert k == n_components
    assert subspace.centered == center
    assert_orthonormal(V)
    assert_allclose(subspace.singular_values, s[:k], rtol=tol / 10, atol=tol * s[0] / 10)
    assert_allclose(subspace.n_samples, n, rtol=1e-12)
    assert_allclose(subspace.scatter, scatter, rtol=tol / 10)
    assert_mean(subspace, X, w, mean)
    squares = np.append(np.where(s > tol * s[0], s, 0), 0.0) ** 2
    cuts = [r for r in range(1, k + 1) if squares[r - 1] - squares[r] > MIN_GAP * squares[r - 1]]
    assert cuts, "these data compare no subspaces"
    for r in {cuts[0], cuts[len(cuts) // 2], cuts[-1]}:
        assert subspace_distance(V[:r], Vt[:r]) <= tol
    loadings = V[np.arange(k), np.abs(V).argmax(axis=1)]
    assert np.all(loadings > 0), "signs are not fixed"


def in_chunks(X, sizes, start=None, **kwargs):
    """Update with chunks of the sizes, in turn, until all rows are used."""
    weight = kwargs.pop("sample_weight", None)
    subspace = Subspace.empty(X.shape[1], dtype=X.dtype) if start is None else start
    for rows in chunks_of(X.shape[0], sizes):
        w = None if weight is None else weight[rows]
        subspace = subspace.update(X[rows], sample_weight=w, **kwargs)
    return subspace


def chunks_of(n, sizes):
    at, i = 0, 0
    while at < n:
        yield slice(at, at + sizes[i % len(sizes)])
        at, i = at + sizes[i % len(sizes)], i + 1
