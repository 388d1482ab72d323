"""evaluate_stream against errors computed from all rows at every checkpoint, and the displays."""

import matplotlib
import numpy as np
import pytest
import scipy.sparse as sp
from matplotlib import pyplot
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.decomposition import PCA, IncrementalPCA

from fedpca_sklearn import (
    GROUSE,
    SPIRIT,
    ContributionBounds,
    FrequentDirections,
    OjaPCA,
    RankDisplay,
    StreamEvaluation,
    StreamingPCA,
    SubspaceErrorDisplay,
    evaluate_stream,
    make_power_law,
)


def left(X, V, mean):
    D = X - mean
    return float(np.sum((D - D @ V.T @ V) ** 2))


def best(X, k, mean):
    return float(np.sum(np.linalg.svd(X - mean, compute_uv=False)[k:] ** 2))


CENTRED = [OjaPCA(3, random_state=0), IncrementalPCA(5)]
# about the origin, rows far from it are one direction
ABOUT_ORIGIN = [FrequentDirections(4, center=False), SPIRIT(center=False)]


@pytest.mark.parametrize(
    ("estimator", "far"),
    [*((e, 0.0) for e in CENTRED + ABOUT_ORIGIN), *((e, 1e6) for e in CENTRED)],
    ids=lambda value: type(value).__name__ if hasattr(value, "fit") else str(value),
)
def test_errors_are_those_of_all_rows_so_far(estimator, far):
    X = make_power_law(430, 20, alpha=1.0, random_state=0) + 0.3 + far
    stream = evaluate_stream(estimator, X, batch_size=40, n_checkpoints=5)
    model, at = type(estimator)(**estimator.get_params()), 0
    rest, n_rest = 0.0, 0
    for start in range(0, 430, 40):
        batch = X[start : start + 40]
        if start:
            rest += left(batch, model.components_, model.mean_)
            n_rest += len(batch)
        model.partial_fit(batch)
        seen = X[: start + len(batch)]
        if len(seen) != stream.n_samples[at]:
            continue
        V, centre = model.components_, model.mean_
        mean = seen.mean(axis=0) if getattr(model, "center", True) else np.zeros(20)
        assert stream.ranks[at] == len(V)
        # squares are kept in a matrix: their rounding, and that of a mean of 1e6, is allowed for
        assert_allclose(stream.errors[at], left(seen, V, centre) / len(seen), rtol=1e-6)
        assert_allclose(stream.best_errors[at], best(seen, len(V), mean) / len(seen), rtol=1e-6)
        assert_allclose(stream.prequential_errors[at], rest / (n_rest * 20), rtol=1e-9)
        rest, n_rest, at = 0.0, 0, at + 1
    assert at == len(stream.n_samples) == 5
    assert stream.n_samples[-1] == 430
    assert (np.diff(stream.seconds) > 0).all()
    assert_allclose(stream.excess, stream.errors / stream.best_errors - 1)


def projected_again(Yhat, rows, V, mean):
    Yhat = np.concatenate([Yhat, rows])
    return mean + (Yhat - mean) @ V.T @ V


@pytest.mark.parametrize(
    "estimator",
    [*CENTRED, *ABOUT_ORIGIN, StreamingPCA(3, block_size=30, oversampling=0, center=False)],
    ids=lambda value: type(value).__name__,
)
def test_accumulated_errors_are_those_of_projections_that_are_kept(estimator):
    X = make_power_law(430, 20, alpha=0.5, random_state=0) + 0.3
    stream = evaluate_stream(estimator, X, batch_size=40)
    model, Yhat = type(estimator)(**estimator.get_params()), np.zeros((0, 20))
    for i, start in enumerate(range(0, 430, 40)):
        batch = X[start : start + 40]
        model.partial_fit(batch)
        V = model.components_[model.singular_values_ > 0]  # SPIRIT adds some at a batch's end
        Yhat = projected_again(Yhat, batch, V, model.mean_)
        error = np.sum((X[: len(Yhat)] - Yhat) ** 2) / len(Yhat)
        assert_allclose(stream.accumulated_errors[i], error, rtol=1e-9)


@pytest.mark.parametrize("rule", [None, ContributionBounds(0.02, 0.09, growth="canonical")])
def test_the_accumulated_error_of_spca_is_that_of_equation_5(rule):
    """Eq. 5 as printed: the r-SVD of the projected data so far and a block, which bounds eq. 16."""
    X = make_power_law(400, 30, alpha=0.5, random_state=0)
    pca = StreamingPCA(4, block_size=50, oversampling=0, center=False, rank_rule=rule)
    stream = evaluate_stream(pca, X, batch_size=50)
    Yhat = np.zeros((0, 30))
    for i, start in enumerate(range(0, 400, 50)):
        r = stream.ranks[i - 1] if i else 4  # a rank that has grown is that of the next block
        U, s, Vt = np.linalg.svd(np.concatenate([Yhat, X[start : start + 50]]))
        Yhat = (U[:, :r] * s[:r]) @ Vt[:r]
        error = np.sum((X[: len(Yhat)] - Yhat) ** 2) / len(Yhat)
        assert_allclose(stream.accumulated_errors[i], error, rtol=1e-10)
        subspace = pca.partial_fit(X[start : start + 50]).subspace_
        left_out = subspace.scatter - np.sum(subspace.singular_values**2)
        assert_allclose(stream.accumulated_errors[i] * len(Yhat), left_out, rtol=1e-10)
    assert (stream.accumulated_errors[1:] > stream.errors[1:]).all()
    assert (stream.ranks[-1] > 4) == (rule is not None)


def test_an_exact_estimator_has_no_excess():
    X = make_power_law(300, 20, alpha=0.5, random_state=1)
    stream = evaluate_stream(StreamingPCA(5), X, batch_size=7)
    assert np.abs(stream.excess).max() < 1e-10
    assert len(stream.n_samples) == 20


def test_the_first_batch_has_no_prediction():
    stream = evaluate_stream(StreamingPCA(2), np.eye(4), batch_size=4)
    assert_array_equal(stream.n_samples, [4])
    assert np.isnan(stream.prequential_errors).all()


def test_a_perfect_fit_has_the_error_as_excess():
    X = np.outer(np.arange(12.0), np.ones(3))
    stream = evaluate_stream(StreamingPCA(1), X, batch_size=3)
    assert np.abs(stream.excess).max() < 1e-10


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
    stream = evaluate_stream(
        OjaPCA(2, center=False, init="random", random_state=0), X, n_checkpoints=3
    )
    assert (stream.best_errors == 0).all()
    assert (stream.errors > 0).all()
    assert np.isposinf(stream.excess).all()


def test_the_estimator_is_not_touched():
    model = OjaPCA(2, random_state=0)
    evaluate_stream(model, np.eye(9))
    assert not hasattr(model, "components_")


@pytest.mark.parametrize("name", ["batch_size", "n_checkpoints"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "all"])
def test_bad_sizes_are_named(name, value):
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1, got {value!r}"):
        evaluate_stream(StreamingPCA(2), np.eye(9), **{name: value})


@pytest.mark.parametrize("estimator", [{}, None, PCA(2)])
def test_what_takes_no_stream_is_refused(estimator):
    with pytest.raises(TypeError, match="estimator must have partial_fit, got "):
        evaluate_stream(estimator, np.eye(9))


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
    with pytest.raises(ValueError, match=r"X contains NaN.* give X_full"):
        evaluate_stream(GROUSE(3), holes)
    with pytest.raises(ValueError, match=r"X_full must have the shape of X, \(300, 15\)"):
        evaluate_stream(GROUSE(3), holes, X[:200])


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


# ------------------------------------------------------------------------------------- displays


@pytest.fixture
def stream():
    return StreamEvaluation(
        n_samples=np.array([10, 20, 30]),
        ranks=np.array([1, 2, 2]),
        errors=np.array([3.0, 2.0, 1.5]),
        best_errors=np.array([1.5, 1.0, 1.5]),
        prequential_errors=np.array([np.nan, 1.0, 1.0]),
        seconds=np.array([0.1, 0.2, 0.3]),
    )


@pytest.fixture
def plt():
    matplotlib.use("agg")
    yield pyplot
    pyplot.close("all")


@pytest.mark.parametrize(
    ("display", "values", "label"),
    [
        (RankDisplay, [1, 2, 2], "components"),
        (SubspaceErrorDisplay, [2, 2, 1], "error / best error"),
    ],
)
def test_a_display_draws_the_stream(stream, plt, display, values, label):
    shown = display(stream, estimator_name="mine").plot(color="red")
    assert_array_equal(shown.line_.get_xdata(), [10, 20, 30])
    assert_array_equal(shown.line_.get_ydata(), values)
    assert shown.line_.get_color() == "red"
    assert shown.ax_.get_ylabel() == label
    assert shown.ax_.get_legend().get_texts()[0].get_text() == "mine"
    _, ax = plt.subplots()
    again = display(stream).plot(ax=ax)
    assert again.ax_ is ax
    assert again.figure_ is ax.figure
    assert ax.get_legend() is None
    assert display(stream).plot(ax=ax, name="other").line_.get_label() == "other"


@pytest.mark.parametrize("display", [RankDisplay, SubspaceErrorDisplay])
def test_a_display_streams_an_estimator(plt, display):
    X = make_power_law(200, 10, random_state=0)
    shown = display.from_estimator(SPIRIT(), X, batch_size=20, n_checkpoints=4)
    assert_array_equal(shown.line_.get_xdata(), [40, 100, 140, 200])
    assert shown.line_.get_label() == "SPIRIT"
    other = display.from_estimator(StreamingPCA(2), X, ax=shown.ax_, name="two")
    assert other.ax_ is shown.ax_
    assert other.line_.get_label() == "two"
