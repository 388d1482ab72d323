"""Streams that go on from a summary, and summaries that nothing would read."""

import numpy as np
import pandas as pd
import pytest
from helpers import fitted_attributes
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from fedpca_sklearn import (
    ContributionBounds,
    DistributedPCA,
    EnergyBounds,
    FederatedPCA,
    OjaPCA,
    StreamingPCA,
    Subspace,
    SubspaceTracker,
)


def rows(n, d):
    return np.random.default_rng(0).standard_normal((n, d)) / np.sqrt(1 + np.arange(d)) + 5


GOING_ON = {
    "all": {},
    "number": {"n_components": 5},
    "fraction": {"n_components": 0.5},
    "uncentred": {"n_components": 5, "center": False},
    "qr": {"n_components": 5, "svd_solver": "qr", "whiten": True},
    "forgetful": {"n_components": 5, "forgetting_factor": 0.99},
    "blocks": {"n_components": 5, "forgetting_factor": 0.9, "forgetting": "blocks"},
    "few": {"n_components": 5, "oversampling": 3, "block_size": 50},
    "sapca": {"rank_rule": ContributionBounds(0.02, 0.1), "block_size": 64},
    "canonical": {
        "rank_rule": ContributionBounds(0.02, 0.1, growth="canonical"),
        "block_size": 64,
    },
    "spirit": {"rank_rule": EnergyBounds(0.8, 0.9), "block_size": 64},
}


@pytest.mark.parametrize("d", [20, 300])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("params", GOING_ON.values(), ids=GOING_ON)
def test_it_goes_on_from_a_summary_as_the_original(params, dtype, d):
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((1500, d)) / np.sqrt(1 + np.arange(d)) + 5).astype(dtype)
    stays = StreamingPCA(**params).partial_fit(pd.DataFrame(X[:700]).add_prefix("x"))
    summary = Subspace.from_bytes(stays.subspace_.to_bytes())
    params = dict(params)
    wanted = params.pop("n_components", None)
    wanted = stays.n_components_ if "rank_rule" in params else wanted
    goes_on = StreamingPCA.from_subspace(
        summary, wanted, n_samples_seen=stays.n_samples_seen_, **params
    )
    names = [name for name in fitted_attributes(stays) if name != "rank_history_"]
    assert {"components_", "mean_", "noise_variance_", "n_samples_seen_"} < set(names)
    history = stays.rank_history_ if "rank_rule" in params else []
    tol = 1e-12 if dtype == np.float64 else 1e-5
    for start, stop in (700, 701), (701, 1100), (1100, 1500):
        for name in set(names) - {"subspace_", "feature_names_in_"}:
            found, expected = (np.asarray(getattr(m, name), float) for m in (goes_on, stays))
            largest = np.abs(expected).max()
            assert_allclose(found, expected, rtol=tol, atol=tol * largest, err_msg=name)
        assert list(goes_on.feature_names_in_) == list(stays.feature_names_in_)
        found, expected = goes_on.subspace_, stays.subspace_
        assert_allclose(found.n_samples, expected.n_samples, rtol=1e-12)
        s = expected.singular_values
        assert_allclose(found.singular_values, s, rtol=0, atol=np.sqrt(tol) * s[0] / 10)
        C, D = ((p.components.T * p.singular_values**2) @ p.components for p in (found, expected))
        assert_allclose(C, D, rtol=0, atol=tol * s[0] ** 2)
        for model in (goes_on, stays):
            model.partial_fit(pd.DataFrame(X[start:stop]).add_prefix("x"))
    if "rank_rule" in params:
        assert_array_equal(goes_on.rank_history_, stays.rank_history_[len(history) :])
    assert_array_equal(
        goes_on.fit(X).components_, StreamingPCA(wanted, **params).fit(X).components_
    )


def test_what_a_summary_knows_is_the_default_when_going_on_from_it():
    X = rows(60, 8)
    summary = Subspace.from_rows(X, center=False)
    pca = StreamingPCA.from_subspace(summary, 3)
    assert pca.n_samples_seen_ == pca.n_samples_ == 60
    assert not pca.center
    assert pca.n_features_in_ == 8
    half = StreamingPCA.from_subspace(summary.decay(0.001), 3)
    assert half.n_samples_seen_ == 8  # as many rows as directions, at the least
    assert half.n_components_ == 3


@pytest.mark.parametrize(
    ("subspace", "kwargs", "words"),
    [
        (np.eye(3), {}, "must be Subspace objects, got ndarray"),
        (Subspace.empty(3), {}, "at least one row"),
        (Subspace.from_rows(np.eye(3)), {"n_components": 4}, "n_components=4 must be at most"),
        (Subspace.from_rows(np.eye(3)), {"n_components": -1}, "n_components.*-1"),
        (Subspace.from_rows(np.eye(3)), {"center": False}, "center=False differs.*the mean"),
        (Subspace.from_rows(np.eye(3)), {"n_samples_seen": 0}, "n_samples_seen.*0"),
        (Subspace.from_rows(np.eye(3)), {"rank_rule": "a"}, "rank_rule"),
        (Subspace.from_rows(np.eye(3)), {"decay": 1}, "decay"),
    ],
)
def test_what_cannot_be_gone_on_from_is_refused(subspace, kwargs, words):
    with pytest.raises((ValueError, TypeError), match=words):
        StreamingPCA.from_subspace(subspace, **kwargs)


def test_rows_that_do_not_fit_the_summary_are_refused_when_going_on():
    frame = pd.DataFrame(rows(60, 3), columns=list("abc"))
    pca = StreamingPCA.from_subspace(Subspace.from_rows(frame), 2)
    assert list(pca.feature_names_in_) == list("abc")
    with pytest.raises(ValueError, match="same order"):
        pca.partial_fit(frame[["b", "a", "c"]])
    with pytest.raises(ValueError, match="2 features"), pytest.warns(UserWarning, match="names"):
        pca.partial_fit(rows(60, 2))
    assert pca.n_samples_seen_ == 60


@pytest.mark.parametrize(
    "model",
    [
        StreamingPCA(2),
        OjaPCA(2, random_state=0),
        SubspaceTracker(2),
        FederatedPCA(2),
        DistributedPCA(2),
    ],
)
def test_a_summary_that_would_not_be_read_cannot_be_assigned(model):
    X = rows(60, 8)
    with pytest.raises(AttributeError, match=r"subspace_.*StreamingPCA\.from_subspace"):
        model.subspace_ = Subspace.from_rows(X)
    before = model.fit(X).components_
    for name in ("subspace_", "n_samples_", "n_samples_seen_"):
        with pytest.raises(AttributeError, match=name):
            setattr(model, name, getattr(model, name))
    model.components_ = -before  # is what transform reads
    assert_array_equal(model.transform(X), -clone(model).fit(X).transform(X))
