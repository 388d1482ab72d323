"""Half-lives of rows: of a number of rows the factor, of a time explicit weights.

The oracle is numpy's SVD and mean of weighted rows; the recursions of the trackers' papers with a
factor of each row are in test_recursions.py.
"""

import datetime
import pickle

import numpy as np
import pandas as pd
import pytest
from golden_cases import made
from helpers import assert_finite_and_orthonormal, sine, svd_of, with_holes
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tracker_helpers import fed, planted

from fedpca_sklearn import PAST, StreamingPCA, Subspace
from fedpca_sklearn.base import Tracker

START = np.datetime64("2026-03-01T12:00:00", "s")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((200, 6)) * [6, 5, 4, 3, 2, 1] + 7
TIMES = START + np.sort(RNG.integers(0, 36_000, len(X))).astype("m8[s]")  # ties and gaps
HOUR = np.timedelta64(1, "h")
TIMED = ["PAST(3)", "PAST(3, deflation=True)", "PETRELS(3)", "SPIRIT(3, lower=0.5, upper=0.99)"]


def each(*codes):
    models = [made(code) for code in codes]
    for model in models:
        if "random_state" in model.get_params():
            model.set_params(random_state=7)
    return pytest.mark.parametrize("model", models, ids=codes)


def assert_pca_of_weighted(pca, X, weight, tol=1e-10):
    (mean, s, V), k = svd_of(X, weight), pca.n_components_
    assert_allclose(pca.mean_, mean, atol=tol * 10)
    s = np.append(s, np.zeros(k + 1))  # as of repeated rows
    assert_allclose(pca.singular_values_, s[:k], atol=tol * max(s[0], 1))
    assert_allclose(pca.subspace_.n_samples, weight.sum(), rtol=tol)
    if np.diff(s[: k + 1]).max() < -1e-3 * s[0]:
        assert_allclose(np.abs(np.sum(pca.components_ * V[:k], axis=1)), 1, atol=1e-9)


def in_hours(half_life, times):
    """Explicit weights."""
    return 2.0 ** -((times.max() - times) / HOUR / half_life)


# ------------------------------------------------------------------------------ in rows


@pytest.mark.parametrize(("h", "size"), [(0.5, "auto"), (20, "auto"), (300.0, 60)])
def test_rows_fade_by_the_factor_of_the_half_life(h, size):
    model = fed(StreamingPCA(3, half_life=h, block_size=size), X, (1, 1, 88, 110))
    assert_pca_of_weighted(model, X, 0.5 ** (np.arange(len(X))[::-1] / h))
    assert_array_equal(StreamingPCA(3, half_life=h).fit(X).n_samples_, 200)


@pytest.mark.filterwarnings("ignore:No entry of a batch is an outlier:UserWarning")
@each(*TIMED, "SubspaceTracker(3)", "RobustSubspaceTracker(3, batch_size=60)")
def test_a_number_of_rows_is_the_factor_to_the_last_bit(model):
    by_rows = clone(model).set_params(half_life=45.0).fit(X)
    by_factor = clone(model).set_params(forgetting_factor=2 ** (-1 / 45.0)).fit(X)
    for name in ("components_", "mean_", "explained_variance_", "noise_variance_"):
        assert_array_equal(getattr(by_rows, name), getattr(by_factor, name))
    assert sine(by_rows.components_, clone(model).fit(X).components_) > 1e-6


class Axes(Tracker):
    """A tracker of one's own that stays at the first axes, and has a half-life alone."""

    def __init__(self, n_components=2, center=True, half_life=None):
        self.n_components, self.center, self.half_life = n_components, center, half_life

    def _begin(self, d, rng):
        return np.eye(self.n_components, d)

    def _updated(self, state, Z):
        return state

    def _basis(self, state):
        return state


def test_a_half_life_needs_no_other_parameter():
    weight = 0.5 ** (np.arange(len(X))[::-1] / 45.0)
    fitted, mean = Axes(half_life=45.0).fit(X), weight @ X / weight.sum()
    assert_allclose(fitted.mean_, mean, rtol=1e-12)
    scatter = (X - mean)[:, :2].T * weight @ (X - mean)[:, :2]
    assert_allclose(fitted.singular_values_**2, np.linalg.eigvalsh(scatter)[::-1], rtol=1e-10)


# ------------------------------------------------------------------------------ in time


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 60),
    st.integers(0, 99),
    st.sampled_from([0.05, 1.0, 400.0]),
    st.booleans(),
    st.integers(1, 5),
    st.sampled_from(["s", "ns"]),
)
@example(11, 5, 0.05, True, 1, "s")  # one row has nearly all weight, far from the plain mean
def test_weights_are_those_of_the_times_whatever_their_order(n, seed, h, weighted, n_calls, unit):
    rng = np.random.default_rng(seed)
    minutes = rng.choice([0, 0, 1, 7, 200, 1500], n)  # ties and gaps, in any order
    times = (START + minutes.astype("m8[m]")).astype(f"M8[{unit}]")
    weight = rng.integers(1, 4, n) if weighted else np.ones(n)
    pca = StreamingPCA(3, half_life=np.timedelta64(int(h * 3600), "s"))
    for part in np.array_split(np.arange(n), n_calls):
        if len(part):
            given_weight = weight[part] if weighted else None
            pca.partial_fit(X[part], sample_weight=given_weight, times=times[part])
    assert_pca_of_weighted(pca, X[:n], weight * in_hours(h, times))
    assert pca.last_time_ == times.max()
    assert pca.n_samples_seen_ == weight.sum()


@each("StreamingPCA(3)", *TIMED)
def test_the_moments_are_those_of_explicit_weights_and_the_cuts_change_no_bit(model):
    model = clone(model).set_params(half_life="1h")
    whole = clone(model).fit(X, times=TIMES)
    weight = in_hours(1, TIMES)
    mean = weight @ X / weight.sum()
    assert_allclose(whole.mean_, mean, rtol=1e-10)
    assert_allclose(whole.subspace_.n_samples, weight.sum(), rtol=1e-12)
    assert_allclose(whole.subspace_.scatter, np.sum(weight @ (X - mean) ** 2), rtol=1e-10)
    kept = pickle.loads(pickle.dumps(clone(model).partial_fit(X[:70], times=TIMES[:70])))
    kept.partial_fit(X[70:], times=TIMES[70:])
    tol = 1e-12 if isinstance(model, StreamingPCA) else 0
    for other in (kept, fed(clone(model), X, (1, 50, 1, 1), times=TIMES)):
        assert_allclose(other.components_, whole.components_, rtol=tol, atol=tol)
        assert_allclose(other.explained_variance_, whole.explained_variance_, rtol=tol)


@each("StreamingPCA(3)", *TIMED)
@pytest.mark.parametrize("n_rows", [1, 100])
@pytest.mark.parametrize("units", [("ns", "s"), ("s", "ns"), ("D", "M"), ("M", "M")])
def test_times_of_any_units_are_compared_where_the_finer_one_ends(model, n_rows, units):
    """Nanoseconds end in 2262; an open end is often written as the year 9999."""
    first, later = units
    late = "9999-12-01" if "ns" not in later else "2199-12-01"
    times = np.array(["2026-03-01", late], dtype="M8[D]").repeat([40, 20])
    mixed = clone(model).set_params(half_life="10D")
    same = fed(clone(mixed), X[:60], (n_rows,), times=times)
    for part, unit in ((slice(40), first), (slice(40, 60), later)):
        fed(mixed, X[part], (n_rows,), times=times[part].astype(f"M8[{unit}]"))
    assert mixed.last_time_ == np.datetime64(late)
    assert_allclose(mixed.mean_, same.mean_, rtol=1e-12)


@pytest.mark.parametrize("n_rows", [1, 3, 70])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_few_rows_wait_with_their_times(n_rows, dtype):
    rng, n = np.random.default_rng(1), 1500
    rows = (rng.standard_normal((n, 6)) * [6, 5, 4, 3, 2, 1] + 7).astype(dtype)
    # late rows too, and a gap
    times = START + (np.arange(n) * 20 + rng.integers(-500, 500, n)).astype("m8[s]")
    times[900:] += np.timedelta64(2, "h")
    quiet = fed(StreamingPCA(3, half_life="1h"), rows, (n_rows,), times=times)
    looked_at = StreamingPCA(3, half_life="1h")
    for i in range(0, n, n_rows):
        part = slice(i, i + n_rows)
        looked_at.partial_fit(rows[part], times=times[part])
        if i % 140 == 0:
            weight = in_hours(1, times[: i + n_rows])
            assert looked_at.last_time_ == times[: i + n_rows].max()
            assert_allclose(looked_at.subspace_.n_samples, weight.sum(), rtol=1e-12)
            looked_at = pickle.loads(pickle.dumps(looked_at))
    assert_array_equal(quiet.components_, looked_at.components_)
    assert_array_equal(quiet.explained_variance_, looked_at.explained_variance_)
    tol = 1e-10 if dtype == np.float64 else 1e-4
    assert_pca_of_weighted(quiet, rows.astype(np.float64), in_hours(1, times), tol)


def test_half_lives_and_times_may_be_of_any_library():
    polars = pytest.importorskip("polars")
    want = StreamingPCA(3, half_life="90min").fit(X, times=TIMES).explained_variance_
    for same in (np.timedelta64(90, "m"), datetime.timedelta(hours=1.5), pd.Timedelta("90min")):
        model = clone(StreamingPCA(3, half_life=same))
        assert_array_equal(model.fit(X, times=TIMES).explained_variance_, want)
    zoned = pd.Series(TIMES).dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin")
    for times in (
        pd.Series(TIMES),
        zoned,
        polars.Series(TIMES.astype("M8[us]")),
        TIMES.astype(object).tolist(),
        [time.isoformat() for time in zoned],
    ):
        waits = StreamingPCA(3, half_life="90min").partial_fit(X[:1], times=TIMES[:1])
        waits.partial_fit(X[1:], times=times[1:])  # beside those that wait
        for model in (StreamingPCA(3, half_life="90min").fit(X, times=times), waits):
            assert_allclose(model.explained_variance_, want, rtol=1e-12)


@each(*TIMED[:3], "SPIRIT(3, lower=0.0, upper=1.0)")
@pytest.mark.parametrize("gaps", [[80], range(80, 120)], ids=["one", "at each row"])
@pytest.mark.parametrize("holes", [0.0, 0.2])
def test_trackers_forget_the_past_in_gaps_of_ten_thousand_half_lives(model, gaps, holes):
    if holes and "PETRELS" not in repr(model):
        return
    before, (after, V) = planted(80, 12)[0], planted(200, 12, seed=3, noise=1e-3)
    rows, hours = with_holes(np.concatenate([before, after]), holes), np.arange(280) / 200
    for gap in gaps:
        hours[gap:] += 10_000
    model = clone(model).set_params(half_life="1h", center=False)
    model.fit(rows, times=START + (3600 * hours).astype("m8[s]"))
    assert_finite_and_orthonormal(model, model.explained_variance_)
    assert sine(model.components_, V) < 0.05


def test_after_a_gap_of_a_thousand_half_lives_the_past_is_gone():
    pca = StreamingPCA(3, half_life="1s").fit(X[:100], times=TIMES[:100])
    pca.partial_fit(X[100:], times=np.full(100, TIMES[99] + HOUR))
    alone = StreamingPCA(3).fit(X[100:]).components_
    assert_array_equal(pca.components_, alone)
    # and a row that is as late has no weight
    pca.partial_fit(1e6 * X[:1], times=TIMES[:1])
    assert_array_equal(pca.components_, alone)
    assert pca.n_samples_seen_ == 201


def test_a_stream_goes_on_from_a_file_with_its_last_time():
    pca = StreamingPCA(3, half_life="1h").fit(X[:100], times=TIMES[:100])
    kept = Subspace.from_bytes(pca.subspace_.to_bytes())
    again = StreamingPCA.from_subspace(kept, 3, half_life="1h", last_time=pca.last_time_)
    for model in (pca, again):
        model.partial_fit(X[100:], times=TIMES[100:])
        assert_pca_of_weighted(model, X, in_hours(1, TIMES))
    assert_allclose(again.components_, pca.components_, rtol=0, atol=1e-12)


@pytest.mark.parametrize("routing", [False, True])
def test_times_reach_a_step_of_a_pipeline_and_a_search(routing):
    pipe = make_pipeline(StandardScaler(), PAST(3, half_life="1h", random_state=0))
    given = {"times" if routing else "past__times": TIMES}
    with config_context(enable_metadata_routing=routing):
        pipe.fit(X, **given)
        search = GridSearchCV(pipe, {"past__half_life": ["10min", "10h"]}, cv=3).fit(X, **given)
    assert search.best_params_ == {"past__half_life": "10h"}  # of a subspace that stays
    scaled = StandardScaler().fit_transform(X)
    want = PAST(3, half_life="1h", random_state=0).fit(scaled, times=TIMES)
    assert_array_equal(pipe[-1].components_, want.components_)
