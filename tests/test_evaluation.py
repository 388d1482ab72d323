"""evaluate_stream against errors computed from all rows at every checkpoint."""

import numpy as np
import pytest
import scipy.sparse as sp
from golden_cases import made
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import (
    GROUSE,
    ContributionBounds,
    OjaPCA,
    StreamingPCA,
    evaluate_stream,
    make_power_law,
)


def left(X, V, mean):
    D = X - mean
    return float(np.sum((D - D @ V.T @ V) ** 2))


def best(X, k, mean):
    return float(np.sum(np.linalg.svd(X - mean, compute_uv=False)[k:] ** 2))


CENTRED = ["OjaPCA(3, random_state=0)", "IncrementalPCA(5)"]
# about the origin, rows far from it are one direction
ABOUT_ORIGIN = ["FrequentDirections(4, center=False)", "SPIRIT(center=False)"]
TRUNCATED = "StreamingPCA(3, block_size=30, oversampling=0, center=False)"


@pytest.mark.parametrize(
    ("code", "far"),
    [*((c, 0.0) for c in [*CENTRED, *ABOUT_ORIGIN, TRUNCATED]), *((c, 1e6) for c in CENTRED)],
)
def test_errors_are_those_of_all_rows_so_far_and_of_projections_that_are_kept(code, far):
    X = make_power_law(430, 20, alpha=1.0, random_state=0) + 0.3 + far
    stream = evaluate_stream(made(code), X, batch_size=40, n_checkpoints=5)
    model, found, rest, n_rest, Yhat = made(code), [], 0.0, 0, np.zeros((0, 20))
    for start in range(0, 430, 40):
        batch, seen = X[start : start + 40], X[: start + 40]
        if start:
            rest += left(batch, model.components_, model.mean_)
            n_rest += len(batch)
        V, centre = model.partial_fit(batch).components_, model.mean_
        kept = V[model.singular_values_ > 0]  # SPIRIT adds some at a batch's end
        Yhat = centre + (np.concatenate([Yhat, batch]) - centre) @ kept.T @ kept
        if len(seen) in stream.n_samples:
            n, mean = len(seen), seen.mean(axis=0) if getattr(model, "center", True) else 0.0
            errors = left(seen, V, centre) / n, best(seen, len(V), mean) / n
            kept_error = np.sum((seen - Yhat) ** 2) / n
            found.append((n, len(V), *errors, rest / (n_rest * 20), kept_error))
            rest, n_rest = 0.0, 0
    n_samples, ranks, *errors = np.array(found).T
    assert_array_equal(stream.n_samples, n_samples)
    assert (len(n_samples), n_samples[-1]) == (5, 430)
    assert_array_equal(stream.ranks, ranks)
    # squares are kept in a matrix: their rounding, and that of a mean of 1e6, is allowed for
    tolerances = 1e-6, 1e-6, 1e-9, 1e-6 if far else 1e-9
    names = "errors", "best_errors", "prequential_errors", "accumulated_errors"
    for name, expected, tol in zip(names, errors, tolerances, strict=True):
        assert_allclose(getattr(stream, name), expected, rtol=tol)
    assert (np.diff(stream.seconds) > 0).all()
    assert_allclose(stream.excess, stream.errors / stream.best_errors - 1)


@pytest.mark.parametrize("rule", [None, ContributionBounds(0.02, 0.09, growth="canonical")])
def test_the_accumulated_error_of_spca_is_that_of_equation_5(rule):
    """Eq. 5 as printed: the r-SVD of the projected data so far and a block, which bounds eq. 16."""
    X = make_power_law(400, 30, alpha=0.5, random_state=0)
    pca = StreamingPCA(4, block_size=50, oversampling=0, center=False, rank_rule=rule)
    stream, Yhat = evaluate_stream(pca, X, batch_size=50), np.zeros((0, 30))
    for i, block in enumerate(np.split(X, 8)):
        r = stream.ranks[i - 1] if i else 4  # a rank that has grown is that of the next block
        U, s, Vt = np.linalg.svd(np.concatenate([Yhat, block]))
        Yhat = (U[:, :r] * s[:r]) @ Vt[:r]
        error = np.sum((X[: len(Yhat)] - Yhat) ** 2) / len(Yhat)
        assert_allclose(stream.accumulated_errors[i], error, rtol=1e-10)
        subspace = pca.partial_fit(block).subspace_
        left_out = subspace.scatter - np.sum(subspace.singular_values**2)
        assert_allclose(stream.accumulated_errors[i] * len(Yhat), left_out, rtol=1e-10)
    assert (stream.accumulated_errors[1:] > stream.errors[1:]).all()
    assert (stream.ranks[-1] > 4) == (rule is not None)


POWER_LAW = make_power_law(300, 20, alpha=0.5, random_state=1)


@pytest.mark.parametrize(
    ("X", "k", "size"), [(POWER_LAW, 5, 7), (np.outer(np.arange(12.0), np.ones(3)), 1, 3)]
)
def test_an_exact_estimator_has_no_excess_and_is_not_touched(X, k, size):
    model = StreamingPCA(k)
    stream = evaluate_stream(model, X, batch_size=size)
    assert np.abs(stream.excess).max() < 1e-10
    assert len(stream.n_samples) == min(20, len(X) // size)
    assert not hasattr(model, "components_")
    first = evaluate_stream(model, X, batch_size=len(X))  # which has no prediction
    assert_array_equal(first.n_samples, [len(X)])
    assert np.isnan(first.prequential_errors).all()


def test_a_far_first_row_hides_no_error():
    X = make_power_law(2000, 10, alpha=0.5, random_state=0) + 1
    X[0] += 1e8
    stream = evaluate_stream(StreamingPCA(5), X, n_checkpoints=4)
    for n, error in zip(stream.n_samples, stream.best_errors, strict=True):
        # singular values are known up to 1e-16 of the first one, 1e8 times the others
        assert_allclose(error, best(X[:n], 5, X[:n].mean(axis=0)) / n, rtol=1e-6)
    assert (stream.errors >= stream.best_errors * (1 - 1e-6)).all()


def test_an_error_where_there_need_be_none_is_an_infinite_excess():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 2)) @ rng.standard_normal((2, 8))
    model = OjaPCA(2, center=False, init="random", random_state=0)
    stream = evaluate_stream(model, X, n_checkpoints=3)
    assert (stream.best_errors == 0).all()
    assert (stream.errors > 0).all()
    assert np.isposinf(stream.excess).all()


def test_missing_entries_are_measured_by_the_full_rows():
    X = make_power_law(300, 15, alpha=2.0, random_state=0)
    holes = np.where(np.random.default_rng(0).random(X.shape) < 0.3, np.nan, X)
    stream = evaluate_stream(GROUSE(3, random_state=0), holes, X, batch_size=50, n_checkpoints=2)
    model, rest = GROUSE(3, random_state=0), 0.0
    for start in range(0, 300, 50):
        if start >= 150:
            rest += left(X[start : start + 50], model.components_, model.mean_)
        model.partial_fit(holes[start : start + 50])
    V, centre = model.components_, model.mean_
    assert_allclose(stream.errors[-1], left(X, V, centre) / 300, rtol=1e-9)
    assert_allclose(stream.best_errors[-1], best(X, 3, X.mean(axis=0)) / 300, rtol=1e-9)
    assert_allclose(stream.prequential_errors[-1], rest / (150 * 15), rtol=1e-9)


def test_sparse_rows_and_single_precision_reach_the_estimator():
    X = make_power_law(200, 15, random_state=0).astype(np.float32)
    X[np.abs(X) < 0.1] = 0
    seen = []

    class Watching(StreamingPCA):
        def partial_fit(self, X, y=None, sample_weight=None):
            seen.append((sp.issparse(X), X.dtype))
            return super().partial_fit(X)

    dense, sparse = (evaluate_stream(Watching(3), A) for A in (X, sp.csr_array(X)))
    assert set(seen) == {(False, np.dtype(np.float32)), (True, np.dtype(np.float32))}
    assert_allclose(sparse.errors, dense.errors, rtol=1e-4)
    V, mean = (a.astype(float) for a in (Watching(3).fit(X).components_, X.mean(axis=0)))
    assert_allclose(dense.errors[-1], left(X.astype(float), V, mean) / 200, rtol=1e-4)
