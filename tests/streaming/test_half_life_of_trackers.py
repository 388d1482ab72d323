"""Half-lives of the trackers: in rows their factor, in time a factor of its own for each row.

The oracles are the recursions of the papers with the factor of each row, and numpy's SVD and means
of explicitly weighted rows.
"""

import pickle

import numpy as np
import pytest
import sklearn
from helpers import assert_finite_and_orthonormal, sine, with_holes
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tracker_helpers import first_basis, past, pastd, petrels, planted, seen_by_the_rule, spirit

from fedpca_sklearn import (
    PAST,
    PETRELS,
    SPIRIT,
    FederatedPCA,
    FederatedSubspaceTracker,
    RobustSubspaceTracker,
    SubspaceMonitor,
    SubspaceTracker,
)

N = 160
X = planted(N, 12, noise=0.6, mean=1.0)[0]
RNG = np.random.default_rng(0)
MINUTES = np.cumsum(RNG.choice([0, 1, 2, 5, 90], N, p=[0.2, 0.4, 0.2, 0.15, 0.05]))  # ties, gaps
TIMES = np.datetime64("2026-03-01T12:00", "m") + MINUTES.astype("m8[m]")
BY_ROW = {
    "past": PAST(3, init="random", random_state=7),
    "pastd": PAST(3, deflation=True, init="random", random_state=7),
    "petrels": PETRELS(3, init="random", random_state=7),
    "spirit": SPIRIT(3, lower=0.5, upper=0.99),
}
BY_BATCH = {
    "subspace": SubspaceTracker(3),
    "robust": RobustSubspaceTracker(3, batch_size=60),
    "federated": FederatedSubspaceTracker(3, n_rounds=3, random_state=0),
}
each = pytest.mark.parametrize("model", BY_ROW.values(), ids=BY_ROW)


def factors(h):
    """What is left of the past when each row comes, for a half-life of h minutes."""
    return 2.0 ** -(np.diff(MINUTES, prepend=MINUTES[0]) / h)


def in_pieces(model, sizes=(5, 1, 1, 60, 33, 7)):
    start = i = 0
    while start < N:
        rows = slice(start, start + sizes[i % len(sizes)])
        model.partial_fit(X[rows], times=TIMES[rows])
        start, i = rows.stop, i + 1
    return model


# -------------------------------------------------------------------- in rows


@pytest.mark.parametrize("model", [*BY_ROW.values(), *BY_BATCH.values()], ids=repr)
def test_a_number_of_rows_is_the_factor_to_the_last_bit(model):
    h = 45.0
    by_rows = clone(model).set_params(half_life=h).fit(X)
    by_factor = clone(model).set_params(forgetting_factor=2 ** (-1 / h)).fit(X)
    for name in ("components_", "mean_", "explained_variance_", "noise_variance_"):
        assert_array_equal(getattr(by_rows, name), getattr(by_factor, name))
    assert sine(by_rows.components_, clone(model).fit(X).components_) > 1e-6


@each
def test_rows_at_even_times_are_rows(model):
    even = TIMES[0] + np.arange(N).astype("m8[m]")
    if hasattr(model, "init"):  # the first row ages what rows did not show
        model = clone(model).set_params(init="rows")
    in_time = clone(model).set_params(half_life="40min").fit(X, times=even)
    in_rows = clone(model).set_params(half_life=40).fit(X)
    assert sine(in_time.components_, in_rows.components_) < 1e-9
    assert_allclose(in_time.explained_variance_, in_rows.explained_variance_, rtol=1e-9)


# -------------------------------------------------------------------- in time


@pytest.mark.parametrize("h", [30, 300])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("name", ["past", "pastd", "spirit"])
def test_each_row_has_the_factor_of_its_time_in_the_recursion(name, center, h):
    model = clone(BY_ROW[name]).set_params(center=center, half_life=f"{h}min")
    in_pieces(model)
    f, Z = factors(h), seen_by_the_rule(X, center, factors(h))
    f = f[center:]
    if name == "spirit":
        W = spirit(Z, 3, 0.5, 0.99, f, 10)[0]
    else:
        power = np.mean(Z[:32] ** 2)
        W = {"past": past, "pastd": pastd}[name](Z, first_basis(12, 3, 7), f, power)
    assert sine(model.components_, W) < 1e-8
    assert model.last_time_ == TIMES[-1]


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_each_feature_ages_with_the_time(share):
    Y = X.copy()
    Y[60:] = with_holes(Y[60:], share)
    model = clone(BY_ROW["petrels"]).set_params(center=False, half_life="300min")
    for part in np.array_split(np.arange(N), 7):
        model.partial_fit(Y[part], times=TIMES[part])
    assert (
        sine(model.components_, petrels(Y, first_basis(12, 3, 7), factors(300), 1e-2)[0].T) < 1e-7
    )


@each
def test_mean_and_variance_are_those_of_explicit_weights(model):
    model = in_pieces(clone(model).set_params(half_life="50min"))
    weight = 2.0 ** -((MINUTES[-1] - MINUTES) / 50)
    mean = weight @ X / weight.sum()
    assert_allclose(model.mean_, mean, rtol=1e-10)
    assert_allclose(model.subspace_.n_samples, weight.sum(), rtol=1e-12)
    assert_allclose(model.subspace_.scatter, np.sum(weight @ (X - mean) ** 2), rtol=1e-10)


@each
def test_the_cuts_change_no_bit(model):
    model = clone(model).set_params(half_life="50min")
    whole, pieces = clone(model).fit(X, times=TIMES), clone(model)
    in_pieces(pieces, (1, 50, 1, 1))
    kept = pickle.loads(pickle.dumps(clone(model).partial_fit(X[:70], times=TIMES[:70])))
    kept.partial_fit(X[70:], times=TIMES[70:])
    for other in (pieces, kept):
        assert_array_equal(other.components_, whole.components_)
        assert_array_equal(other.explained_variance_, whole.explained_variance_)


GAPS = {"one": [80], "at each row": range(80, 120)}


@pytest.mark.parametrize("gaps", GAPS.values(), ids=GAPS)
@pytest.mark.parametrize(
    ("model", "holes"), [(m, 0.0) for m in BY_ROW.values()] + [(BY_ROW["petrels"], 0.2)]
)
def test_the_past_is_gone_after_gaps_of_ten_thousand_half_lives(model, holes, gaps):
    (before, _), (after, V) = planted(80, 12), planted(200, 12, seed=3, noise=1e-3)
    rows, hours = with_holes(np.concatenate([before, after]), holes), np.arange(280) / 200
    for gap in gaps:
        hours[gap:] += 10_000
    times = TIMES[0] + (3600 * hours).astype("m8[s]")
    model = clone(model).set_params(half_life="1h", center=False)
    if isinstance(model, SPIRIT):
        model.set_params(lower=0.0, upper=1.0)  # keeps three components
    model.fit(rows, times=times)
    assert_finite_and_orthonormal(model)
    assert np.isfinite(model.explained_variance_).all()
    assert sine(model.components_, V) < 0.05


# -------------------------------------------------------------------- around


@pytest.mark.parametrize("routing", [False, True])
def test_a_search_over_half_lives(routing):
    pipe = make_pipeline(StandardScaler(), PAST(3, random_state=0))
    grid = {"past__half_life": ["10min", "10h"]}
    name = "times" if routing else "past__times"
    with sklearn.config_context(enable_metadata_routing=routing):
        search = GridSearchCV(pipe, grid, cv=3).fit(X, **{name: TIMES})
    assert search.best_params_ == {"past__half_life": "10h"}  # of a subspace that stays
    plain = GridSearchCV(SubspaceTracker(3), {"half_life": [5, 1000.0]}, cv=3).fit(X)
    assert plain.best_params_ == {"half_life": 1000.0}


def test_times_end_with_a_half_life_in_time():
    model = clone(BY_ROW["past"]).set_params(half_life="1h").fit(X[:100], times=TIMES[:100])
    model.set_params(half_life=60).partial_fit(X[100:])
    assert not hasattr(model, "last_time_")
    model.set_params(half_life="1h")
    with pytest.raises(ValueError, match="rows seen before came without times"):
        model.partial_fit(X, times=TIMES)


BACK = TIMES[::-1]
BAD = [
    ({"half_life": "1 hour"}, {"times": TIMES}, "half_life must be .*, got '1 hour'"),
    ({"half_life": -3}, {}, "'half_life' parameter"),
    ({"half_life": 3, "forgetting_factor": 0.5}, {}, "forgetting_factor must be .* a half_life"),
    ({"half_life": "1h"}, {}, "half_life='1h' needs times, one for each row"),
    ({"half_life": "1h"}, {"times": TIMES[1:]}, r"shape \(160,\), got \(159,\)"),
    ({"half_life": "1h"}, {"times": BACK}, "times must not decrease.* at row"),
    ({"half_life": 5}, {"times": TIMES}, "half_life=5 is not a time, as '1h' is"),
]


@each
@pytest.mark.parametrize(("parameters", "given", "words"), BAD)
def test_bad_input_changes_nothing(model, parameters, given, words):
    model = clone(model).set_params(**parameters)
    for method in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match=words):
            method(X, **given)
        assert not hasattr(model, "components_")


def test_a_later_call_cannot_go_back():
    model = clone(BY_ROW["past"]).set_params(half_life="1h").fit(X, times=TIMES)
    before = model.components_
    with pytest.raises(ValueError, match=r"times must not decrease.* at row 0"):
        model.partial_fit(X[:1], times=TIMES[:1])
    with pytest.raises(ValueError, match="needs times"):
        model.partial_fit(X[:1])
    with pytest.raises(ValueError, match="X is an iterable of batches"):
        model.partial_fit(iter([X]), times=TIMES)
    assert model.components_ is before
    for outer in (FederatedPCA(2, estimator=model), SubspaceMonitor(model)):
        with pytest.raises(ValueError, match="half_life='1h' needs times"):
            clone(outer).fit(X)


@pytest.mark.parametrize("model", BY_BATCH.values(), ids=BY_BATCH)
@pytest.mark.parametrize("half_life", ["1h", np.timedelta64(1, "h")])
def test_rows_of_a_batch_that_count_alike_have_no_times(model, half_life):
    model = clone(model).set_params(half_life=half_life)
    with pytest.raises(ValueError, match=r"half_life must be a number of rows.* count the same"):
        model.fit(X)
    for method in (model.fit, model.partial_fit):
        with pytest.raises(TypeError, match="half_life must be a number of rows") as error:
            method(X, times=TIMES)
        assert str(error.value).startswith(f"times cannot be given to {type(model).__name__}: ")
        assert str(error.value).endswith(f"got half_life={half_life!r}.")
    model.set_params(half_life=20, forgetting_factor=0.5)
    with pytest.raises(ValueError, match="forgetting_factor must be 'auto' with a half_life"):
        model.fit(X)
    assert not hasattr(model, "components_")
