"""Rows that come one by one: the same numbers as in batches, and as little work as can be."""

import copy
import pickle
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from fedpca_sklearn import (
    GROUSE,
    PAST,
    PETRELS,
    SPIRIT,
    EnergyBounds,
    FrequentDirections,
    OjaPCA,
    RobustSubspaceTracker,
    StreamingPCA,
    StreamingPowerMethod,
    SubspaceTracker,
)

TRACKERS = {
    "frequent-directions": FrequentDirections(3),
    "power": StreamingPowerMethod(3, random_state=0),
    "oja": OjaPCA(3, random_state=0),
    "oja-rows": OjaPCA(3, batch_size=1, random_state=0),
    "grouse": GROUSE(3, random_state=0),
    "past": PAST(3, random_state=0),
    "petrels": PETRELS(3, random_state=0),
    "spirit": SPIRIT(),
    "stmiss": SubspaceTracker(3, store_subspaces=True, detect_changes=True),
    "robust": RobustSubspaceTracker(3, store_subspaces=True),
}
HOLES = (GROUSE, PETRELS, SubspaceTracker, RobustSubspaceTracker)
MODELS = {"streaming": StreamingPCA(3), **TRACKERS}
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
D = 8
examples = settings(max_examples=15, deadline=None)


def rows(n, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, D)) * np.arange(1, D + 1) + 3).astype(dtype)


def fitted(model):
    """All that a fit shows, a summary as its numbers."""
    model.components_  # noqa: B018
    shown = {name: getattr(model, name) for name in dir(model) if is_fitted_name(name)}
    summary = shown.pop("subspace_")
    return shown | {field.name: getattr(summary, field.name) for field in fields(summary)}


def is_fitted_name(name):
    return name.endswith("_") and not name.startswith("_")


def assert_same(model, expected, without=()):
    found, expected = fitted(model), fitted(expected)
    assert found.keys() == expected.keys()
    for name in found.keys() - set(without):
        assert_array_equal(found[name], expected[name], err_msg=name)


def one_by_one(model, X):
    for i in range(len(X)):
        model.partial_fit(X[i : i + 1])
    return model


def waits(model):
    return vars(model)["_learnt"].values is None


# noise in all directions, of which RobustSubspaceTracker may warn
@pytest.mark.filterwarnings("ignore:No entry of a batch is an outlier:UserWarning")
@pytest.mark.parametrize("model", TRACKERS.values(), ids=TRACKERS)
@examples
@given(data=st.data())
def test_a_tracker_sees_the_same_stream_however_it_is_cut_and_read(model, data):
    n = data.draw(st.integers(1, 120))
    X = rows(n, dtype=data.draw(st.sampled_from([np.float64, np.float32])))
    if isinstance(model, HOLES):
        X[np.random.default_rng(n).random(X.shape) < data.draw(st.sampled_from([0, 0.2]))] = np.nan
    whole, parts, at = clone(model).fit(X), clone(model), 0
    while at < n:
        size = data.draw(st.sampled_from([1, 1, 1, 1, 2, 30]))
        repeats = data.draw(st.integers(1, 30)) if size == 1 else 1
        for _ in range(repeats):
            if at < n:
                form = data.draw(st.sampled_from([np.array, np.array, sp.csr_array, list]))
                parts.partial_fit(form(X[at : at + size]))
                at += size
        parts = data.draw(st.sampled_from(READS))(parts)
    assert_same(parts, whole, without=["outlier_mask_"])


def read(model):
    assert np.isfinite(model.components_).all()
    return model


def transformed(model):
    model.transform(rows(2))
    return model


READS = [
    lambda model: model,
    read,
    transformed,
    copy.copy,
    copy.deepcopy,
    lambda model: pickle.loads(pickle.dumps(model)),
    lambda model: (
        model.set_params(n_components=model.n_components)
        if hasattr(model, "n_components")
        else model
    ),
]


# Rows that wait for each other, of so many features.
ROOM = {8: 40, 300: 40}


@pytest.mark.parametrize("d", ROOM)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_single_rows_of_a_streaming_pca_are_one_batch(d, dtype):
    X = np.random.default_rng(0).standard_normal((90, d)).astype(dtype) * 3 + 1
    model, batches = StreamingPCA(3, block_size=40), StreamingPCA(3, block_size=40)
    forms = [np.array, np.array, pd.DataFrame] + [np.ndarray.tolist] * (dtype == np.float64)
    for i in range(60):
        model.partial_fit(forms[i % len(forms)](X[i : i + 1]))
        if i == 15:
            model.transform(X[:3])
        if i == 25:
            model = pickle.loads(pickle.dumps(model))
        if i == 50:
            model = copy.deepcopy(model)
            assert model.n_samples_seen_ == 51
    for part in np.split(X[:60], range(ROOM[d], 60, ROOM[d])):
        batches.partial_fit(part)
    assert_same(model, batches)
    assert_same(model.partial_fit(X[60:]), batches.partial_fit(X[60:]))
    assert model.components_.dtype == dtype


@pytest.mark.parametrize("d", [12, 300])
@pytest.mark.parametrize("forgetting_factor", [1.0, 0.98])
def test_few_rows_a_call_are_one_batch(forgetting_factor, d):
    X = np.random.default_rng(0).standard_normal((90, d)) + 1
    model = StreamingPCA(3, forgetting_factor=forgetting_factor)
    batches = clone(model)
    buffer = np.empty((5, d))
    for i in range(0, 60, 5):
        buffer[:] = X[i : i + 5]
        model.partial_fit(buffer if i != 20 else pd.DataFrame(buffer))
        if i == 15:
            model.transform(X[:3])
        if i == 25:
            model = pickle.loads(pickle.dumps(model))
    batches.partial_fit(X[:60])
    assert_same(model, batches)
    wrong = X[60:62].copy()
    wrong[1, 3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit(wrong)
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[60:62, 1:])
    assert_same(model.partial_fit(X[60:]), batches.partial_fit(X[60:]))


@pytest.mark.parametrize(("d", "n_components"), [(8, 3), (300, 10)])
@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_a_stream_of_batches_is_what_its_batches_are(d, n_components, dtype):
    X = (9 * np.random.default_rng(0).standard_normal((1500, d)) + 30).astype(dtype)
    sizes = [1, 1, 5, 2, 7, 40, 3, 400, *[4] * 20, 350, *[290] * 2]
    parts = np.split(X, np.cumsum(sizes))[:-1]
    parts[3] = sp.csr_array(parts[3])
    parts[4] = parts[4].astype(np.float64)

    def stream():
        buffer = np.empty((400, d), dtype)
        for part in parts:
            if isinstance(part, np.ndarray) and part.dtype == dtype:
                buffer[: len(part)] = part
                yield buffer[: len(part)]
                buffer[:] = 0
            else:
                yield part

    batches = StreamingPCA(n_components)
    for part in parts:
        batches.partial_fit(part)
    whole = StreamingPCA(n_components).fit(stream())
    assert_same(whole, batches)
    assert_same(whole.partial_fit(stream()), batches.partial_fit(iter(parts)))
    assert whole.components_.dtype == (np.float32 if dtype == np.float32 else np.float64)


@every_model
def test_single_rows_are_kept_and_shown_when_they_are_read(model):
    X = rows(70)
    model = one_by_one(clone(model), X[:61])
    assert waits(model)
    check_is_fitted(model)
    assert model.n_features_in_ == D
    assert waits(model)
    assert {"components_", "mean_", "subspace_"} <= set(dir(model))
    assert waits(model)
    assert model.n_samples_seen_ == 61
    for twin in (pickle.loads(pickle.dumps(model)), copy.copy(model), copy.deepcopy(model)):
        assert_same(twin, model)
        assert_same(one_by_one(twin, X[61:]), one_by_one(copy.deepcopy(model), X[61:]))
    with pytest.raises(NotFittedError):
        check_is_fitted(clone(model))
    with pytest.raises(AttributeError, match="nothing_"):
        model.nothing_  # noqa: B018
    assert list(model.get_feature_names_out()) == [
        f"{type(model).__name__.lower()}{i}" for i in range(model.n_components_)
    ]
    html = model._repr_html_()
    assert "components_" in html or not hasattr(BaseEstimator, "_get_fitted_attr_html")
    later = copy.deepcopy(model).partial_fit(X[61:62])
    assert later._repr_html_() != html
    assert waits(later)
    frame = model.set_output(transform="pandas").transform(X[:2])
    assert frame.shape == (2, model.n_components_)
    assert_allclose(model.set_output(transform="default").transform(X[:2]), frame)


@every_model
def test_a_caller_may_use_one_row_for_all(model):
    X = rows(60)
    reused, row = clone(model), np.empty((1, D))
    for x in X:
        row[:] = x
        reused.partial_fit(row)
    row[:] = 1e9
    assert_same(reused, one_by_one(clone(model), X))


def takes(model, value):
    """Missing entries are for some trackers; those by STMiss warn of sums that overflow."""
    by_stmiss = isinstance(model, SubspaceTracker | RobustSubspaceTracker)
    return (np.isnan(value) and isinstance(model, HOLES)) or (value == 1e200 and by_stmiss)


@every_model
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e200])
def test_a_wrong_row_is_an_error_and_changes_nothing(model, bad):
    X = rows(61)
    model = one_by_one(clone(model), X[:45])
    wrong = X[45:46].copy()
    wrong[0, 3] = bad
    expected = one_by_one(clone(model), X)
    if not takes(model, bad):
        before = copy.deepcopy(model)
        with pytest.raises(ValueError, match=r"infinity|NaN|too large"):
            model.partial_fit(wrong)
        assert waits(model)
        assert_same(model, before)
    for width in (D - 1, D + 1):
        with pytest.raises(ValueError, match="features"):
            model.partial_fit(np.ones((1, width)))
    with pytest.raises(ValueError, match="2D"):
        model.partial_fit(X[45])
    assert_same(one_by_one(model, X[45:]), expected)


@every_model
@pytest.mark.parametrize("sizes", [(1e90, 1e-200), (1e90, 1.0), (1e30, 1e90), (1e8, 1e60)])
def test_the_entries_of_a_row_are_bounded_so_that_no_later_call_fails(model, sizes):
    X = rows(60)
    model = one_by_one(clone(model), X[:40])
    for size in sizes:
        model.partial_fit(X[40:41] * size)
    assert np.isfinite(one_by_one(model, X[41:]).explained_variance_).all()


@every_model
def test_names_of_columns_are_compared_for_every_row(model):
    X = pd.DataFrame(rows(50), columns=[f"c{i}" for i in range(D)])
    model = clone(model)
    for i in range(40):
        model.partial_fit(X[i : i + 1])
    assert list(model.feature_names_in_) == list(X.columns)
    assert model.subspace_.feature_names == tuple(X.columns)
    with pytest.raises(ValueError, match="feature names"):
        model.partial_fit(X.iloc[40:41, ::-1])
    with pytest.warns(UserWarning, match="feature names"):
        model.partial_fit(X[40:41].to_numpy())
    expected = clone(model).fit(X[:41])
    assert_allclose(model.components_, expected.components_, atol=1e-12)
    if type(model) is not StreamingPCA:  # whose blocks are others
        assert_same(model, expected, without=["outlier_mask_"])


@every_model
def test_a_parameter_that_is_set_between_rows_is_noticed(model):
    model = one_by_one(clone(model), rows(45))
    assert waits(model)
    before, center = fitted(model), model.center
    with pytest.raises(ValueError, match="center"):
        model.set_params(center="maybe").partial_fit(rows(1))
    model.set_params(center=center)
    assert fitted(model).keys() == before.keys()
    model.set_params(center=not center)
    with pytest.raises(ValueError, match="center"):
        model.partial_fit(rows(1))


def test_rows_are_taken_by_the_parameters_with_which_they_came():
    X = rows(60, seed=3)
    model, batches = StreamingPCA(3), StreamingPCA(3)
    one_by_one(model, X[:20]).set_params(forgetting_factor=0.5)
    one_by_one(model, X[20:30])
    batches.partial_fit(X[:20]).set_params(forgetting_factor=0.5).partial_fit(X[20:30])
    assert_same(model, batches)
    assert model.n_samples_seen_ == 30


@pytest.mark.parametrize("kind", ["weights", "sparse", "stream", "fit"])
def test_other_rows_end_the_batch_of_single_ones(kind):
    X, w = rows(60), np.linspace(1, 2, 20)
    one, batches = one_by_one(StreamingPCA(3), X[:20]), StreamingPCA(3).partial_fit(X[:20])
    for model in (one, batches):
        if kind == "weights":
            model.partial_fit(X[20:40], sample_weight=w)
        elif kind == "sparse":
            model.partial_fit(sp.csr_array(X[20:21]))
        elif kind == "stream":
            model.partial_fit(iter([X[20:21], X[21:40]]))
        else:
            model.fit(X[20:])
    assert_same(one, batches)


@pytest.mark.parametrize(
    "options", [{"rank_rule": EnergyBounds()}, {"forgetting": "blocks", "forgetting_factor": 0.9}]
)
def test_where_a_batch_means_something_a_row_is_one(options):
    X = rows(30)
    model = one_by_one(StreamingPCA(2, **options), X)
    assert not waits(model)
    stream = StreamingPCA(2, **options).fit(X[i : i + 1] for i in range(30))
    assert_same(model, stream)


def test_what_somebody_sets_stays():
    X = rows(60)
    model = one_by_one(PAST(3, random_state=0), X[:40])
    model.note_ = "mine"
    one_by_one(model, X[40:50])
    assert waits(model)
    assert model.note_ == "mine"
    model.partial_fit(X[50:])
    assert model.note_ == "mine"
    assert vars(model)["note_"] == "mine"


def test_a_subclass_may_take_rows_within_a_call_that_fails():
    class Picky(PAST):
        def partial_fit(self, X, y=None):
            with self._unchanged_on_error():
                super().partial_fit(X)
                if X[0, 0] > 1e3:
                    raise ValueError("too much")
            return self

    X = rows(60)
    model = one_by_one(Picky(3, random_state=0), X[:41])
    for i in range(41, 60):
        with pytest.raises(ValueError, match="too much"):
            model.partial_fit(X[i : i + 1] + 1e4)
        model.partial_fit(X[i : i + 1])
    assert_same(model, PAST(3, random_state=0).fit(X))


@pytest.mark.parametrize("name", ["streaming", "past", "stmiss"])
def test_another_thread_sees_whole_models_only(name):
    X, done, seen = rows(60), threading.Event(), {}
    model = one_by_one(clone(MODELS[name]), X[:1])
    model.components_  # noqa: B018

    def look():
        while not done.is_set():
            now = copy.copy(model)
            seen[now.n_samples_] = now.mean_, now.components_

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as others:
            looking = [others.submit(look) for _ in range(2)]
            try:
                for i in range(1, 60):
                    model.partial_fit(X[i : i + 1])
                    time.sleep(1e-3)
            finally:
                done.set()
            for future in looking:
                future.result()
    finally:
        sys.setswitchinterval(interval)
    assert len(seen) > 5
    for n, (mean, components) in seen.items():
        expected = one_by_one(clone(MODELS[name]), X[:n])
        assert_array_equal(mean, expected.mean_)
        assert_array_equal(components, expected.components_)


FORMS = {
    "fortran": lambda x: np.asfortranarray(np.repeat(x, 3, axis=0))[1:2],
    "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "reversed": lambda x: x[:, ::-1].copy()[:, ::-1],
    "matrix order": lambda x: np.ascontiguousarray(x).view(np.recarray),
    "big endian": lambda x: x.astype(">f8"),
    "long": lambda x: x.astype(np.longdouble),
    "objects": lambda x: x.astype(object),
    "list": lambda x: x.tolist(),
    "frame": pd.DataFrame,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("name", ["streaming", "past"])
def test_a_row_is_the_same_in_any_form(form, name):
    X = rows(70)
    model = clone(MODELS[name])
    for i in range(70):
        model.partial_fit(form(X[i : i + 1]) if i % 3 else X[i : i + 1])
    assert_same(model, one_by_one(clone(MODELS[name]), X))


@pytest.mark.skipif(not hasattr(StreamingPCA, "set_callbacks"), reason="scikit-learn 1.9 has them")
@pytest.mark.parametrize("name", ["streaming", "past"])
def test_callbacks_hear_of_every_row(name):
    class Listener:
        ended = 0

        def setup(self, estimator, context):
            pass

        def teardown(self, estimator, context):
            pass

        def on_fit_task_begin(self, estimator, context, **kwargs):
            pass

        def on_fit_task_end(self, estimator, context, **kwargs):
            self.ended += context.task_name in ("blocks", "batches")

    X, listener = rows(50), Listener()
    model = one_by_one(clone(MODELS[name]), X[:20])
    one_by_one(model.set_callbacks(listener), X[20:])
    assert listener.ended == 30
    assert_same(model, one_by_one(clone(MODELS[name]), X))


@every_model
def test_transform_of_one_row_is_checked_as_that_of_many(model):
    X = rows(60)
    model = clone(model).fit(X)
    for dtype in (np.float64, np.float32):
        Y = X[:5].astype(dtype)
        one = np.concatenate([model.transform(Y[i : i + 1]) for i in range(5)])
        assert one.dtype == model.transform(Y).dtype
        assert_allclose(one, model.transform(Y), rtol=1e-4 if dtype == np.float32 else 1e-10)
    for wrong, message in (
        (X[:1, 1:], "features"),
        (X[0], "2D"),
        (np.full((1, D), np.inf), "infinity"),
    ):
        with pytest.raises(ValueError, match=message):
            model.transform(wrong)
    if not isinstance(model, HOLES):
        with pytest.raises(ValueError, match="NaN"):
            model.transform(np.full((1, D), np.nan))
    with pytest.raises(NotFittedError):
        clone(model).transform(X[:1])
    named = clone(model).fit(pd.DataFrame(X, columns=list("abcdefgh")))
    with pytest.warns(UserWarning, match="feature names"):
        named.transform(X[:1])
