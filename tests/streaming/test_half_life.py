"""Half-lives of rows: of a number of rows the factor, of a time explicit weights."""

import datetime
import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import ContributionBounds, FederatedPCA, StreamingPCA, Subspace
from fedpca_sklearn.summary import _exact

START = np.datetime64("2026-03-01T12:00:00", "s")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((200, 6)) * [6, 5, 4, 3, 2, 1] + 7
TIMES = START + np.sort(RNG.integers(0, 36_000, len(X))).astype("m8[s]")


def assert_pca_of_weighted(pca, X, weight, tol=1e-10):
    mean = weight @ X / weight.sum()
    _, s, V = np.linalg.svd(np.sqrt(weight)[:, None] * (X - mean), full_matrices=False)
    k = pca.n_components_
    assert_allclose(pca.mean_, mean, atol=tol * 10)
    s = np.append(s, np.zeros(k + 1))  # as of repeated rows
    assert_allclose(pca.singular_values_, s[:k], atol=tol * max(s[0], 1))
    assert_allclose(pca.subspace_.n_samples, weight.sum(), rtol=tol)
    if np.diff(s[: k + 1]).max() < -1e-3 * s[0]:
        assert_allclose(np.abs(np.sum(pca.components_ * V[:k], axis=1)), 1, atol=1e-9)


def in_hours(half_life, times):
    """Explicit weights."""
    return 2.0 ** -((times.max() - times) / np.timedelta64(1, "h") / half_life)


# -------------------------------------------------------------------- in rows


@pytest.mark.parametrize("h", [0.5, 20, 300.0])
def test_rows_fade_by_the_factor_of_the_half_life(h):
    by_rows, by_factor = (
        StreamingPCA(3, half_life=h),
        StreamingPCA(3, forgetting_factor=0.5 ** (1 / h)),
    )
    for batch in (X[:1], X[1:2], X[2:90], X[90:]):
        by_rows.partial_fit(batch)
        by_factor.partial_fit(batch)
    assert_array_equal(by_rows.components_, by_factor.components_)
    assert_array_equal(by_rows.explained_variance_, by_factor.explained_variance_)
    weight = 0.5 ** (np.arange(len(X))[::-1] / h)
    assert_pca_of_weighted(by_rows, X, weight)
    assert_array_equal(StreamingPCA(3, half_life=h).fit(X).n_samples_, 200)


def test_row_chunks_of_dask_fade_alike():
    da = pytest.importorskip("dask.array")
    pca = StreamingPCA(3, half_life=25).fit(da.from_array(X, chunks=(30, 6)))
    assert_pca_of_weighted(pca, X, 0.5 ** (np.arange(len(X))[::-1] / 25))
    timed = StreamingPCA(3, half_life="2h").fit(da.from_array(X, chunks=(30, 6)), times=TIMES)
    assert_pca_of_weighted(timed, X, in_hours(2, TIMES))
    timed.partial_fit(X, times=TIMES + np.timedelta64(1, "h"))
    both = np.concatenate([TIMES, TIMES + np.timedelta64(1, "h")])
    assert_pca_of_weighted(timed, np.vstack([X, X]), in_hours(2, both))


# -------------------------------------------------------------------- in time


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 60),
    st.integers(0, 99),
    st.sampled_from([0.05, 1.0, 400.0]),
    st.booleans(),
    st.integers(1, 5),
    st.sampled_from(["s", "ns"]),
)
def test_weights_are_those_of_the_times_whatever_their_order(n, seed, h, weighted, n_calls, unit):
    rng = np.random.default_rng(seed)
    minutes = rng.choice([0, 0, 1, 7, 200, 1500], n)  # ties and gaps, in any order
    times = (START + minutes.astype("m8[m]")).astype(f"M8[{unit}]")
    weight = rng.integers(1, 4, n) if weighted else np.ones(n)
    rows = X[:n]
    half_life = np.timedelta64(int(h * 3600), "s")
    pca = StreamingPCA(3, half_life=half_life)
    for part in np.array_split(np.arange(n), n_calls):
        if len(part):
            given_weight = weight[part] if weighted else None
            pca.partial_fit(rows[part], sample_weight=given_weight, times=times[part])
    expected = weight * in_hours(h, times)
    assert_pca_of_weighted(pca, rows, expected)
    assert pca.last_time_ == times.max()
    assert pca.n_samples_seen_ == weight.sum()
    explicit = StreamingPCA(3).fit(rows, sample_weight=expected)
    assert_allclose(pca.explained_variance_, explicit.explained_variance_, atol=1e-9)


def test_hours_minutes_and_other_libraries_are_the_same_half_life():
    want = StreamingPCA(3, half_life="90min").fit(X, times=TIMES).explained_variance_
    assert_allclose(
        want, StreamingPCA(3).fit(X, sample_weight=in_hours(1.5, TIMES)).explained_variance_
    )
    for same in (
        "5400 s",
        np.timedelta64(90, "m"),
        datetime.timedelta(hours=1.5),
        pd.Timedelta("90min"),
    ):
        model = sklearn.clone(StreamingPCA(3, half_life=same))
        assert_array_equal(model.fit(X, times=TIMES).explained_variance_, want)


def test_columns_of_frames_lists_and_zones_are_times():
    zoned = pd.Series(TIMES).dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin")
    want = StreamingPCA(3, half_life="1h").fit(X, times=TIMES).explained_variance_
    polars = pytest.importorskip("polars")
    for times in (
        pd.Series(TIMES),
        pd.DatetimeIndex(TIMES),
        zoned,
        polars.Series(TIMES.astype("M8[us]")),
        TIMES.astype(object).tolist(),
        [str(time) for time in TIMES],
        TIMES.astype("M8[ns]"),
        zoned.dt.to_pydatetime().tolist(),
        [time.isoformat() for time in zoned],
    ):
        found = StreamingPCA(3, half_life="1h").fit(X, times=times).explained_variance_
        assert_allclose(found, want, rtol=1e-13)


def test_after_a_gap_of_a_thousand_half_lives_the_past_is_gone():
    pca = StreamingPCA(3, half_life="1s").fit(X[:100], times=TIMES[:100])
    later = np.full(100, TIMES[99] + np.timedelta64(1, "h"))
    pca.partial_fit(X[100:], times=later)
    assert_array_equal(pca.components_, StreamingPCA(3).fit(X[100:]).components_)
    # and a row that is as late has no weight
    pca.partial_fit(1e6 * X[:1], times=TIMES[:1])
    assert_array_equal(pca.components_, StreamingPCA(3).fit(X[100:]).components_)
    assert pca.n_samples_seen_ == 201


def test_rows_that_come_one_by_one_and_a_rank_rule():
    pca = StreamingPCA(3, half_life="1h")
    for i in range(40):
        pca.partial_fit(X[i : i + 1], times=TIMES[i : i + 1])
    assert_pca_of_weighted(pca, X[:40], in_hours(1, TIMES[:40]))
    rule = StreamingPCA(2, half_life="100h", rank_rule=ContributionBounds(), block_size=20)
    rule.fit(X, times=TIMES)
    assert len(rule.rank_history_) == 10


@pytest.mark.parametrize("n_rows", [1, 3, 70])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_few_rows_wait_with_their_times(n_rows, dtype, monkeypatch):
    rng = np.random.default_rng(1)
    n = 2500
    rows = (rng.standard_normal((n, 6)) * [6, 5, 4, 3, 2, 1] + 7).astype(dtype)
    # late rows too, and a gap
    times = START + (np.arange(n) * 20 + rng.integers(-500, 500, n)).astype("m8[s]")
    times[1500:] += np.timedelta64(2, "h")
    solved = []
    solve = _exact.eigh_top
    monkeypatch.setattr(_exact, "eigh_top", lambda G, k: solved.append(k) or solve(G, k))
    quiet, looked_at = StreamingPCA(3, half_life="1h"), StreamingPCA(3, half_life="1h")
    for i in range(0, n, n_rows):
        part = slice(i, i + n_rows)
        quiet.partial_fit(rows[part], times=times[part])
    assert len(solved) <= 12  # where a sum is looked at, not in 2,500 calls
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
    assert quiet.n_samples_ == n
    tol = 1e-10 if dtype == np.float64 else 1e-4
    assert_pca_of_weighted(quiet, rows.astype(np.float64), in_hours(1, times), tol)


def test_rows_that_wait_take_times_of_other_units_and_refuse_missing_ones():
    pca = StreamingPCA(3, half_life="1h")
    pca.partial_fit(X[:100], times=TIMES[:100])
    pca.partial_fit(X[100:101], times=TIMES[100:101])
    pca.partial_fit(X[101:103], times=TIMES[101:103].astype("M8[ms]"))
    pca.partial_fit(X[103:105], times=TIMES[103:105].tolist())
    before = pickle.dumps(pca.subspace_)
    with pytest.raises(ValueError, match="times must not be missing, got NaT at row 0"):
        pca.partial_fit(X[105:106], times=np.array(["NaT"], dtype="M8[s]"))
    with pytest.raises(ValueError, match="needs times, one for each row, got None"):
        pca.partial_fit(X[105:106])
    with pytest.raises(ValueError, match=r"shape \(1,\), got \(2,\)"):
        pca.partial_fit(X[105:106], times=TIMES[105:107])
    assert pickle.dumps(pca.subspace_) == before
    pca.partial_fit(X[105:], times=TIMES[105:])
    assert_pca_of_weighted(pca, X, in_hours(1, TIMES))


def test_a_stream_goes_on_from_a_file():
    pca = StreamingPCA(3, half_life="1h").fit(X[:100], times=TIMES[:100])
    kept = Subspace.from_bytes(pca.subspace_.to_bytes())
    again = StreamingPCA.from_subspace(kept, 3, half_life="1h", last_time=pca.last_time_)
    copy = pickle.loads(pickle.dumps(pca))
    for model in (pca, again, copy):
        model.partial_fit(X[100:], times=TIMES[100:])
        assert_pca_of_weighted(model, X, in_hours(1, TIMES))
    assert_allclose(again.components_, pca.components_, rtol=0, atol=1e-12)
    assert_array_equal(copy.components_, pca.components_)


@pytest.mark.parametrize("routing", [False, True])
def test_times_reach_a_step_of_a_pipeline(routing):
    pipe = make_pipeline(StandardScaler(), StreamingPCA(3, half_life="1h"))
    name = "times" if routing else "streamingpca__times"
    with sklearn.config_context(enable_metadata_routing=routing):
        pipe.fit(X, **{name: TIMES})
    scaled = StandardScaler().fit_transform(X)
    assert_pca_of_weighted(pipe[-1], scaled, in_hours(1, TIMES))


# -------------------------------------------------------------------- bad input


NAT = np.where(np.arange(200) == 7, np.datetime64("NaT", "s"), TIMES)
BAD = [
    ({"half_life": "1 hour"}, {"times": TIMES}, "half_life must be .*, got '1 hour'"),
    ({"half_life": "1M"}, {"times": TIMES}, "half_life must be"),
    ({"half_life": "0h"}, {"times": TIMES}, "half_life must be"),
    ({"half_life": np.timedelta64(1, "M")}, {"times": TIMES}, "half_life must be"),
    ({"half_life": np.timedelta64("NaT", "s")}, {"times": TIMES}, "half_life must be"),
    ({"half_life": -3}, {}, "'half_life' parameter"),
    (
        {"half_life": 3, "forgetting_factor": 0.9},
        {},
        r"forgetting_factor must be 1\.0 with a half_life",
    ),
    ({"half_life": 3, "forgetting": "blocks"}, {}, "forgetting must be 'rows' with a half_life"),
    ({"half_life": "1h"}, {}, "half_life='1h' needs times, one for each row"),
    ({"half_life": "1h"}, {"times": TIMES[1:]}, r"one time per row, shape \(200,\), got \(199,\)"),
    ({"half_life": "1h"}, {"times": TIMES[:, None]}, "one time per row"),
    ({"half_life": "1h"}, {"times": NAT}, "times must not be missing, got NaT at row 7"),
    ({"half_life": "1h"}, {"times": np.arange(200.0)}, "times must be datetime64 .*, got float64"),
    (
        {"half_life": "1h"},
        {"times": pd.PeriodIndex(TIMES, freq="min")},
        "must be datetime64 .*, got Period",
    ),
    ({"half_life": "1h"}, {"times": ["noon"] * 200}, "times must be datetime64"),
    ({"half_life": 5}, {"times": TIMES}, "half_life=5 is not a time, as '1h' is"),
    ({}, {"times": TIMES}, "half_life=None is not a time"),
]


@pytest.mark.parametrize(("parameters", "given_times", "words"), BAD)
def test_bad_input_changes_nothing(parameters, given_times, words):
    model = StreamingPCA(3, **parameters)
    for method in (model.fit, model.partial_fit):
        with pytest.raises((ValueError, TypeError), match=words):
            method(X, **given_times)
        assert not hasattr(model, "components_")


def test_calls_that_do_not_fit_each_other():
    pca = StreamingPCA(3, half_life="1h")
    with pytest.raises(ValueError, match="X is an iterable of batches: call partial_fit"):
        pca.fit(iter([X]), times=TIMES)
    pca.fit(X, times=TIMES)
    before = pca.components_
    with pytest.raises(ValueError, match="needs times"):
        pca.partial_fit(X[:1])
    with pytest.raises(ValueError, match="half_life='1h' must be None to refine"):
        pca.refine(X)
    assert pca.components_ is before
    older = StreamingPCA(3).fit(X).set_params(half_life="1h")
    with pytest.raises(ValueError, match="The rows seen before came without times"):
        older.partial_fit(X, times=TIMES)
    with pytest.raises(ValueError, match="Client 0: half_life='1h' needs times"):
        FederatedPCA(2, estimator=StreamingPCA(2, half_life="1h")).fit(X)
