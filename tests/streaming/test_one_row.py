"""Rows that come one by one: the same numbers as in batches, and as little work as can be."""

import copy
import pickle
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from golden_cases import made
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from fedpca_sklearn import EnergyBounds, StreamingPCA

CODES = """
StreamingPCA(3)
FrequentDirections(3)
StreamingPowerMethod(3, random_state=0)
OjaPCA(3, random_state=0)
OjaPCA(3, batch_size=1, random_state=0)
GROUSE(3, random_state=0)
PAST(3, random_state=0)
PETRELS(3, random_state=0)
SPIRIT()
SubspaceTracker(3, store_subspaces=True, detect_changes=True)
RobustSubspaceTracker(3, store_subspaces=True)
""".strip().splitlines()
HOLES = ("GROUSE", "PETRELS", "Subspace", "Robust")  # take rows with missing entries
every_model = pytest.mark.parametrize("model", [*map(made, CODES)], ids=CODES)
D = 8


def rows(n, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, D)) * np.arange(1, D + 1) + 3).astype(dtype)


def fitted(model):
    """All that a fit shows, a summary as its numbers."""
    model.components_  # noqa: B018
    names = [name for name in dir(model) if name.endswith("_") and not name.startswith("_")]
    shown = {name: getattr(model, name) for name in names}
    summary = shown.pop("subspace_")
    return shown | {field.name: getattr(summary, field.name) for field in fields(summary)}


def assert_same(model, expected, without=("outlier_mask_",)):
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


READS = [
    lambda model: model,
    lambda model: model if np.isfinite(model.transform(rows(2))).all() else None,
    copy.copy,
    copy.deepcopy,
    lambda model: pickle.loads(pickle.dumps(model)),
    lambda model: model.set_params(**model.get_params(deep=False)),
]


# noise in all directions, of which RobustSubspaceTracker may warn
@pytest.mark.filterwarnings("ignore:No entry of a batch is an outlier:UserWarning")
@pytest.mark.parametrize("code", CODES[1:])
@settings(max_examples=2, deadline=None)
@given(data=st.data())
def test_a_tracker_sees_the_same_stream_however_it_is_cut_and_read(code, data):
    n = data.draw(st.integers(1, 90))
    X = rows(n, dtype=data.draw(st.sampled_from([np.float64, np.float32])))
    if code.startswith(HOLES):
        X[np.random.default_rng(n).random(X.shape) < data.draw(st.sampled_from([0, 0.2]))] = np.nan
    whole, parts, at = made(code).fit(X), made(code), 0
    while at < n:
        size = data.draw(st.sampled_from([1, 1, 1, 1, 2, 30]))
        repeats = data.draw(st.integers(1, 30)) if size == 1 else 1
        for _ in range(repeats):
            if at < n:
                form = data.draw(st.sampled_from([np.array, np.array, sp.csr_array, list]))
                parts.partial_fit(form(X[at : at + size]))
                at += size
        parts = data.draw(st.sampled_from(READS))(parts)
    assert_same(parts, whole)


# ------------------------------------------------------------------------------ StreamingPCA


@pytest.mark.parametrize("d", [8, 300])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("size", "block_size"), [(1, 40), (5, "auto")])
@pytest.mark.parametrize("forgetting_factor", [1.0, 0.98])
def test_single_rows_of_a_streaming_pca_are_one_batch(
    forgetting_factor, size, block_size, dtype, d
):
    X = np.random.default_rng(0).standard_normal((90, d)).astype(dtype) * 3 + 1
    model = StreamingPCA(3, block_size=block_size, forgetting_factor=forgetting_factor)
    batches, buffer = clone(model), np.empty((size, d), dtype)
    forms = [np.array, np.asarray, pd.DataFrame] + [np.ndarray.tolist] * (
        dtype == "f8" and size < 2
    )
    for i in range(0, 60, size):
        buffer[:] = X[i : i + size]  # the caller's array is not kept
        model.partial_fit(forms[i % len(forms)](buffer))
        if i in (15, 25, 50):
            model = {15: lambda m: m, 25: READS[4], 50: copy.deepcopy}[i](model)
            assert model.transform(X[:3]).shape == (3, 3)
            assert model.n_samples_seen_ == i + size
    for part in np.split(X[:60], [40] * (block_size == 40)):  # as many wait for each other
        batches.partial_fit(part)
    assert_same(model, batches)
    wrong = X[60:62].copy()
    wrong[1, 3] = np.nan
    for bad, words in ((wrong, "NaN"), (X[60:62, 1:], "features")):
        with pytest.raises(ValueError, match=words):
            model.partial_fit(bad)
    assert_same(model.partial_fit(X[60:]), batches.partial_fit(X[60:]))
    assert model.components_.dtype == dtype


@pytest.mark.parametrize("options", [{}, {"forgetting_factor": 0.99}, {"half_life": "1h"}], ids=str)
@pytest.mark.parametrize("d", [8, 300])
def test_weighted_rows_wait_with_their_weights(d, options):
    rng = np.random.default_rng(0)
    X, w = rng.standard_normal((200, d)) * 3 + 1, rng.integers(0, 4, 200) / 2.0
    w[100:130] = 1
    times = np.datetime64("2026-01-01") + 40 * np.arange(200).astype("m8[s]")
    given = {"times": times} if "half_life" in options else {}
    model = StreamingPCA(3, **options)
    for i in range(0, 200, 10):
        of = {name: value[i : i + 10] for name, value in given.items()}
        weight = None if 100 <= i < 130 else [np.array, np.ndarray.tolist][i == 50](w[i : i + 10])
        model.partial_fit(X[i : i + 10], sample_weight=weight, **of)
        if i == 60:
            model = pickle.loads(pickle.dumps(model))
            assert model.n_samples_seen_ == np.ceil(w[:70]).sum()
        for bad, words in (([-1.0], "Negative"), ([np.nan], "NaN"), (np.ones(2), "expected")):
            with pytest.raises(ValueError, match=words):
                model.partial_fit(X[:1], sample_weight=bad, **{n: v[:1] for n, v in given.items()})
    whole = StreamingPCA(3, **options).fit(X, sample_weight=w, **given)
    assert model.n_samples_seen_ == whole.n_samples_seen_
    assert_allclose(model.subspace_.n_samples, whole.subspace_.n_samples, rtol=1e-12)
    assert_allclose(model.explained_variance_, whole.explained_variance_, rtol=1e-9)
    assert_allclose(model.components_, whole.components_, atol=1e-9)


@pytest.mark.parametrize(("d", "dtype"), [(8, np.int64), (300, np.float32)])
def test_a_stream_of_batches_is_what_its_batches_are(d, dtype):
    X = (9 * np.random.default_rng(0).standard_normal((1500, d)) + 30).astype(dtype)
    sizes = [1, 1, 5, 2, 7, 40, 3, 400, *[4] * 20, 350, *[290] * 2]
    parts = np.split(X, np.cumsum(sizes))[:-1]
    parts[3] = sp.csr_array(parts[3])
    parts[1], parts[4] = parts[1].tolist(), parts[4].astype(np.float64)

    def stream():
        buffer = np.empty((400, d), dtype)
        for part in parts:
            if isinstance(part, np.ndarray) and part.dtype == dtype:
                buffer[: len(part)] = part
                yield buffer[: len(part)]
                buffer[:] = 0
            else:
                yield part

    batches = StreamingPCA(3 if d == 8 else 10)
    whole = clone(batches).fit(stream())
    for part in parts:
        batches.partial_fit(part)
    assert_same(whole, batches)
    assert_same(whole.partial_fit(stream()), batches.partial_fit(iter(parts)))
    assert whole.components_.dtype == (np.float32 if dtype == np.float32 else np.float64)


ENDS = {
    "weights": lambda model, X: model.partial_fit(X, sample_weight=np.linspace(1, 2, len(X))),
    "sparse": lambda model, X: model.partial_fit(sp.csr_array(X)),
    "stream": lambda model, X: model.partial_fit(iter([X[:1], X[1:]])),
    "fit": lambda model, X: model.fit(X),
    # rows are taken by the parameters with which they came
    "parameter": lambda model, X: model.set_params(forgetting_factor=0.5).partial_fit(X),
    "a rule": lambda model, X: model.set_params(rank_rule=EnergyBounds()).partial_fit(X),
}


@pytest.mark.parametrize("kind", ENDS)
def test_other_rows_and_parameters_end_the_batch_of_single_ones(kind):
    X = rows(40)
    one, batches = one_by_one(StreamingPCA(3), X[:20]), StreamingPCA(3).partial_fit(X[:20])
    assert_same(*(ENDS[kind](model, X[20:]) for model in (one, batches)))


# ------------------------------------------------------------------------------ any model


@every_model
def test_single_rows_are_kept_and_shown_when_they_are_read(model):
    X = rows(70)
    model = one_by_one(clone(model), X[:61])
    model.note_ = "mine"
    check_is_fitted(model)
    assert {"components_", "mean_", "subspace_"} <= set(dir(model))
    assert waits(model)
    assert (model.n_features_in_, model.n_samples_seen_) == (D, 61)
    for twin in (pickle.loads(pickle.dumps(model)), copy.copy(model), copy.deepcopy(model)):
        assert_same(twin, model)
        assert_same(one_by_one(twin, X[61:]), one_by_one(copy.deepcopy(model), X[61:]))
    two = [copy.copy(model).partial_fit(row) for row in (X[61:62], X[62:63])]
    assert_same(two[1], copy.deepcopy(model).partial_fit(X[62:63]))
    with pytest.raises(AttributeError, match="nothing_"):
        model.nothing_  # noqa: B018
    html = model._repr_html_()
    later = copy.deepcopy(model).partial_fit(X[61:62])
    assert waits(later)
    assert later._repr_html_() != html
    assert vars(later.partial_fit(X[62:]))["note_"] == "mine"  # what somebody sets stays


@every_model
@pytest.mark.parametrize("bad", [np.inf, np.nan, 1e200])
def test_a_wrong_row_is_an_error_and_changes_nothing(model, bad):
    X, name = rows(61), type(model).__name__
    model = one_by_one(clone(model), X[:45])
    wrong, expected = X[45:46].copy(), one_by_one(clone(model), X)
    wrong[0, 3] = bad
    # trackers of batches warn of sums that overflow
    if not ((np.isnan(bad) and name.startswith(HOLES)) or (bad == 1e200 and "Subspace" in name)):
        before = copy.deepcopy(model)
        with pytest.raises(ValueError, match=r"infinity|NaN|too large"):
            model.partial_fit(wrong)
        assert waits(model)
        assert_same(model, before, without=())
    for center in ("maybe", not model.center):
        with pytest.raises(ValueError, match="center"):
            copy.deepcopy(model).set_params(center=center).partial_fit(rows(1))
    assert_same(one_by_one(model, X[45:]), expected)


@every_model
def test_the_entries_of_a_row_are_bounded_so_that_no_later_call_fails(model):
    X = rows(60)
    for sizes in [(1e90, 1e-200), (1e90, 1.0), (1e30, 1e90), (1e8, 1e60)]:
        model = one_by_one(clone(model), X[:40])
        for size in sizes:
            model.partial_fit(X[40:41] * size)
        assert np.isfinite(one_by_one(model, X[41:]).explained_variance_).all(), sizes


FORMS = [
    lambda x: np.asfortranarray(np.repeat(x, 3, axis=0))[1:2],
    lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    lambda x: x[:, ::-1].copy()[:, ::-1],
    lambda x: x.astype(">f8"),
    lambda x: x.astype(np.longdouble),
    lambda x: x.astype(object),
    lambda x: x.tolist(),
    pd.DataFrame,
]


@every_model
def test_a_row_is_the_same_in_any_form_also_in_one_buffer(model):
    X, buffer = rows(70), np.empty((1, D))
    model, expected = clone(model), one_by_one(clone(model), X)
    for i in range(70):
        buffer[:] = X[i]
        model.partial_fit(FORMS[i // 3 % 8](X[i : i + 1]) if i % 3 else buffer)
    buffer[:] = 1e9
    assert_same(model, expected, without=("feature_names_in_",))


def test_a_row_beside_a_huge_mean_is_refused_in_its_own_call():
    pca = StreamingPCA(1).partial_fit(np.full((50, 2), 1.2e154))
    with pytest.raises(ValueError, match="too large"):
        pca.partial_fit(np.zeros((1, 2)))
    assert pca.n_samples_seen_ == 50
