"""Displays of fitted estimators and of streams: what the lines hold."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from golden_cases import made
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA

from fedpca_sklearn import (
    SPIRIT,
    BiplotDisplay,
    CommunicationDisplay,
    FederatedPCA,
    LoadingsDisplay,
    RankDisplay,
    RefinementDisplay,
    RobustMerge,
    ScoresDisplay,
    ScreeDisplay,
    StreamEvaluation,
    Subspace,
    SubspaceErrorDisplay,
    SuspectsDisplay,
    jackknife_intervals,
    make_power_law,
)

plt.switch_backend("agg")


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


X = make_power_law(120, 10, random_state=0)
CLIENTS = np.repeat(["a", "b", "c"], [60, 40, 20])


def shares(rows, k):
    s = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False) ** 2
    return s[:k] / s.sum()


def texts_of(display):
    return [text.get_text().strip() for text in display.ax_.get_legend().get_texts()]


# ------------------------------------------------------------------------------ all displays


@pytest.mark.parametrize("display", [ScreeDisplay, CommunicationDisplay])
def test_axes_can_be_shared_and_ticks_are_counts(display):
    first = display.from_estimator(FederatedPCA(2).fit(X), color="red")
    again = display.from_estimator(FederatedPCA(3).fit(X), ax=first.ax_, name="other")
    assert (again.ax_, again.figure_) == (first.ax_, first.figure_)
    assert (first.line_.get_color(), again.line_.get_label()) == ("red", "other")
    assert_array_equal(first.ax_.get_xticks(), np.round(first.ax_.get_xticks()))


STREAM = StreamEvaluation(
    n_samples=np.array([10, 20, 30]),
    ranks=np.array([1, 2, 2]),
    errors=np.array([3.0, 2.0, 1.5]),
    best_errors=np.array([1.5, 1.0, 1.5]),
    prequential_errors=np.array([np.nan, 1.0, 1.0]),
    seconds=np.array([0.1, 0.2, 0.3]),
)


@pytest.mark.parametrize(
    ("display", "values", "label"),
    [
        (RankDisplay, [1, 2, 2], "components"),
        (SubspaceErrorDisplay, [2, 2, 1], "error / best error"),
    ],
)
def test_a_display_draws_a_stream_or_streams_an_estimator(display, values, label):
    shown = display(STREAM, estimator_name="mine").plot(color="red")
    assert_array_equal(shown.line_.get_data(), [[10, 20, 30], values])
    assert (shown.line_.get_color(), shown.ax_.get_ylabel()) == ("red", label)
    assert texts_of(shown) == ["mine"]
    _, ax = plt.subplots()
    again = display(STREAM).plot(ax=ax)
    assert (again.ax_, again.figure_, ax.get_legend()) == (ax, ax.figure, None)
    options = {"batch_size": 20, "n_checkpoints": 4, "ax": ax}
    shown = display.from_estimator(SPIRIT(), np.concatenate([X, X[:80]]), **options)
    assert_array_equal(shown.line_.get_xdata(), [40, 100, 140, 200])
    assert (shown.ax_, shown.line_.get_label()) == (ax, "SPIRIT")
    assert display(STREAM).plot(ax=ax, name="other").line_.get_label() == "other"


# ------------------------------------------------------------------------------ variances


@pytest.mark.parametrize(
    "code",
    ["FederatedPCA(3)", "FederatedPCA(3, mechanism=AnalyzeGauss(np.inf, 1e-3, 2.0))", "PCA(3)"],
)
def test_scree_of_all_rows_and_of_each_client_but_private_ones(code):
    clients = {} if code == "PCA(3)" else {"clients": CLIENTS}
    display = ScreeDisplay.from_estimator(made(code).fit(X, **clients), name="mine")
    parts = [X[label == CLIENTS] for label in "abc"] if code == "FederatedPCA(3)" else []
    for line, rows in zip([display.line_, *display.client_lines_], [X, *parts], strict=True):
        assert_array_equal(line.get_xdata(), [1, 2, 3])
        if "mechanism" not in code:
            assert_allclose(line.get_ydata(), shares(rows, 3), rtol=1e-10)
    assert texts_of(display) == ["mine", *["each client"] * bool(parts)]
    assert display.ax_.get_xlabel() == "component"


def test_scree_with_a_cumulative_line_and_bands():
    model = FederatedPCA(4).fit(X, clients=np.arange(120) % 6)
    intervals = jackknife_intervals(model.summaries_.values(), 3, confidence=0.9)
    display = ScreeDisplay.from_estimator(model, cumulative=True, intervals=intervals)
    assert_allclose(display.cumulative_line_.get_ydata(), np.cumsum(shares(X, 4)), rtol=1e-10)
    ends = (intervals.explained_variance_ratio_interval, intervals.cumulative_ratio_interval)
    for band, expected in zip(display.bands_, ends, strict=True):
        x, y = band.get_paths()[0].vertices.T
        for i, (low, high) in enumerate(expected, start=1):
            assert_allclose([y[x == i].min(), y[x == i].max()], [low, high])
        assert x.max() == 3
    names = ["FederatedPCA", "each client", "90% intervals", "first components together"]
    assert texts_of(display) == names
    few = ScreeDisplay(shares(X, 2), intervals=intervals).plot()  # of the components it shows
    assert few.bands_[0].get_paths()[0].vertices[:, 0].max() == 2
    assert few.cumulative_line_ is None


# ------------------------------------------------------------------------------ messages and rounds


def test_communication_of_one_round_is_a_line_and_that_of_files_knows_no_rows():
    display = CommunicationDisplay.from_estimator(FederatedPCA(2).fit(X, clients=CLIENTS))
    total = display.line_.get_ydata()[0]
    flat = [line for line in display.ax_.lines if list(line.get_ydata()) == [total, total]]
    assert [list(line.get_xdata()) for line in flat] == [[0.5, 1.5]]
    for _ in range(2):  # the rows are named once
        assert texts_of(display) == ["FederatedPCA", "the rows themselves"]
        display.plot(ax=display.ax_, name="_again")
    files = [Subspace.from_rows(X[c == CLIENTS], 2) for c in "abc"]
    display = CommunicationDisplay.from_estimator(FederatedPCA.from_subspaces(files))
    assert display.pooled_line_ is None
    assert display.line_.get_ydata() == [sum(file.n_floats for file in files)]


def test_refinement_display_draws_bound_and_error_over_floats():
    X = make_power_law(2000, 300, alpha=1.0, random_state=0)
    pooled = PCA(2, svd_solver="covariance_eigh").fit(X).components_
    pca = FederatedPCA(2, n_clients=10)
    display = RefinementDisplay.from_estimator(pca, X, pooled, n_refinements=3)
    assert not hasattr(pca, "components_")
    floats, bounds = display.line_.get_data()
    log = FederatedPCA(2, n_clients=10, n_refinements=3).fit(X).communication_
    assert floats[-1] == log.floats_up + log.floats_down
    errors = display.error_line_.get_ydata()
    assert np.all(np.diff(errors) < 0)
    known = np.isfinite(bounds)
    assert known[-1]
    assert np.all(errors[known] <= bounds[known])
    assert_allclose(display.pooled_line_.get_xdata(), X.size)
    alone = RefinementDisplay([1, 2], [np.inf, 0.1]).plot()
    assert alone.error_line_ is alone.pooled_line_ is None
    assert alone.ax_.get_yscale() == "log"


# ------------------------------------------------------------------------------ planes and sites

FLOWERS = load_iris(as_frame=True)
PLANE = FederatedPCA(3).fit(FLOWERS.data, clients=FLOWERS.target)


def test_rows_and_columns_in_the_plane_of_two_components():
    Z = PLANE.transform(FLOWERS.data)
    shown = ScoresDisplay.from_estimator(PLANE, FLOWERS.data, labels=FLOWERS.target)
    points = np.concatenate([c.get_offsets() for c in shown.collections_])
    assert_allclose(points, Z[:, :2])  # rows are sorted by species
    other = ScoresDisplay.from_estimator(PLANE, FLOWERS.data, components=(2, 0))
    assert_allclose(other.collections_[0].get_offsets(), Z[:, [2, 0]])
    expected = np.corrcoef(FLOWERS.data.to_numpy().T, Z.T)[:4, 4:6]
    for display in (
        LoadingsDisplay.from_estimator(PLANE),
        BiplotDisplay.from_estimator(PLANE, FLOWERS.data, labels=FLOWERS.target),
    ):
        assert_allclose(display.correlations, expected, atol=1e-10)
        assert [text.get_text() for text in display.texts_] == list(FLOWERS.data.columns)
    bars = LoadingsDisplay.from_estimator(PLANE, kind="bars")
    heights = [bar.get_height() for bar in bars.ax_.patches]
    assert_allclose(heights, expected.T.ravel(), atol=1e-10)
    for options in ({}, {"scale": True}):  # a model of two has another variance of each column
        pca = FederatedPCA(2, **options).fit(FLOWERS.data, clients=FLOWERS.target)
        expected = np.corrcoef(FLOWERS.data.to_numpy().T, pca.transform(FLOWERS.data).T)[:4, 4:]
        assert_allclose(LoadingsDisplay.from_estimator(pca).correlations, expected, atol=1e-10)
    for whiten in (False, True):
        pca = PCA(whiten=whiten).fit(FLOWERS.data)
        expected = np.corrcoef(FLOWERS.data.to_numpy().T, pca.transform(FLOWERS.data).T)[:4, 4:6]
        assert_allclose(LoadingsDisplay.from_estimator(pca).correlations, expected, atol=1e-10)
    pca = PCA(2).fit(FLOWERS.data)
    expected = np.sqrt(pca.explained_variance_ / np.diag(pca.get_covariance())[:, None])
    display = BiplotDisplay.from_estimator(pca, FLOWERS.data)
    assert_allclose(display.correlations, expected * pca.components_.T)
    constant = np.column_stack([FLOWERS.data, np.full(150, 7.1)])
    display = LoadingsDisplay.from_estimator(FederatedPCA(2, n_clients=3).fit(constant))
    assert (display.correlations[4] == 0).all()


def test_names_that_others_chose_are_drawn_as_they_are():
    """A site's name or column that is no formula of matplotlib's would end the drawing."""
    names = ["cost ($)", "$\\frac{1}$", "_hidden", "$x^$"]
    rows = FLOWERS.data.set_axis(names, axis=1)
    sites = np.array(names)[FLOWERS.target]
    pca = FederatedPCA(2, merge=RobustMerge()).fit(rows, clients=sites)
    scores = ScoresDisplay.from_estimator(pca, rows, labels=sites)
    assert set(texts_of(scores)) == set(names[:3])
    for display in (
        scores,
        LoadingsDisplay.from_estimator(pca),
        LoadingsDisplay.from_estimator(pca, kind="bars"),
        BiplotDisplay.from_estimator(pca, rows, labels=sites),
        SuspectsDisplay.from_estimator(pca),
    ):
        display.figure_.canvas.draw()
        drawn = [*getattr(display, "texts_", []), *display.ax_.get_xticklabels()]
        assert not any(text.get_parse_math() for text in drawn if "$" in text.get_text()[:1])


@pytest.mark.parametrize(("shift", "scale"), [(0.5, "linear"), (100, "symlog")])
def test_ticks_of_evidence_are_plain_numbers(shift, scale):
    rows = np.random.default_rng(0).standard_normal((200, 5)) * [5, 4, 1, 1, 1]
    rows[:20] += shift
    pca = FederatedPCA(2, merge=RobustMerge(), n_clients=10).fit(rows)
    display = SuspectsDisplay.from_estimator(pca)
    display.figure_.canvas.draw()
    ticks = [text.get_text() for text in display.ax_.get_yticklabels()]
    assert [str(float(text)) for text in ticks]
    assert all(len(text) <= 5 for text in ticks), ticks
    assert display.ax_.get_yscale() == scale
    assert display.ax_.get_ylim()[0] == 0
    for point in [(0.5, 1.0), *display.line_.get_xydata()]:  # the limit, and all points
        assert display.ax_.viewLim.contains(*point)


@pytest.mark.parametrize(
    ("labels", "counts", "names"),
    [
        ([0.0, np.nan, 1.0, np.nan], [1, 1, 2], ["0.0", "1.0", "nan"]),
        (np.array(["a", None, "b", None], object), [2, 1, 1], ["None", "a", "b"]),
    ],
)
def test_rows_without_a_label_are_drawn_and_named(labels, counts, names):
    display = ScoresDisplay(np.arange(8.0).reshape(4, 2), labels=labels).plot()
    assert [len(points.get_offsets()) for points in display.collections_] == counts
    assert [text.get_text() for text in display.ax_.get_legend().get_texts()] == names
