"""Streams that go on from a summary, and summaries that nothing would read."""

import numpy as np
import pandas as pd
import pytest
from golden_cases import made
from helpers import fitted_attributes
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from fedpca_sklearn import StreamingPCA, Subspace

GOING_ON = """
StreamingPCA()
StreamingPCA(5)
StreamingPCA(0.5)
StreamingPCA(5, center=False)
StreamingPCA(5, svd_solver="qr", whiten=True)
StreamingPCA(5, forgetting_factor=0.99)
StreamingPCA(5, forgetting_factor=0.9, forgetting="blocks")
StreamingPCA(5, oversampling=3, block_size=50)
StreamingPCA(rank_rule=ContributionBounds(0.02, 0.1), block_size=64)
StreamingPCA(rank_rule=ContributionBounds(0.02, 0.1, growth="canonical"), block_size=64)
StreamingPCA(rank_rule=EnergyBounds(0.8, 0.9), block_size=64)
""".strip().splitlines()


def rows(n, d, dtype=np.float64):
    X = np.random.default_rng(0).standard_normal((n, d)) / np.sqrt(1 + np.arange(d)) + 5
    return X.astype(dtype)


@pytest.mark.parametrize("d", [20, 300])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("code", GOING_ON)
def test_it_goes_on_from_a_summary_as_the_original(code, dtype, d):
    X = pd.DataFrame(rows(1200, d, dtype)).add_prefix("x")
    stays = made(code).partial_fit(X[:700])
    params, adapts = stays.get_params(deep=False), stays.rank_rule is not None
    wanted = params.pop("n_components")
    wanted = stays.n_components_ if adapts else wanted
    summary = Subspace.from_bytes(stays.subspace_.to_bytes())
    seen, history = stays.n_samples_seen_, len(stays.rank_history_) if adapts else 0
    goes_on = StreamingPCA.from_subspace(summary, wanted, n_samples_seen=seen, **params)
    names = set(fitted_attributes(stays)) - {"rank_history_", "subspace_", "feature_names_in_"}
    assert {"components_", "mean_", "noise_variance_", "n_samples_seen_"} < names
    tol = 1e-12 if dtype == np.float64 else 1e-5
    for start, stop in (700, 701), (701, 1100), (1100, 1200):
        for name in names:
            found, expected = (np.asarray(getattr(m, name), float) for m in (goes_on, stays))
            largest = np.abs(expected).max()
            assert_allclose(found, expected, rtol=tol, atol=tol * largest, err_msg=name)
        assert list(goes_on.feature_names_in_) == list(stays.feature_names_in_)
        assert_allclose(goes_on.subspace_.n_samples, stays.subspace_.n_samples, rtol=1e-12)
        s = stays.subspace_.singular_values
        C, D = (
            (p.components.T * p.singular_values**2) @ p.components
            for p in (goes_on.subspace_, stays.subspace_)
        )
        assert_allclose(C, D, rtol=0, atol=tol * s[0] ** 2)
        for model in (goes_on, stays):
            model.partial_fit(X[start:stop])
    if adapts:
        assert_array_equal(goes_on.rank_history_, stays.rank_history_[history:])


@pytest.mark.parametrize(
    "code",
    ["StreamingPCA(2)", "OjaPCA(2, random_state=0)", "SubspaceTracker(2)", "FederatedPCA(2)"],
)
def test_a_summary_that_would_not_be_read_cannot_be_assigned(code):
    X, model = rows(60, 8), made(code)
    with pytest.raises(AttributeError, match=r"subspace_.*StreamingPCA\.from_subspace"):
        model.subspace_ = Subspace.from_rows(X)
    before = model.fit(X).components_
    for name in ("subspace_", "n_samples_", "n_samples_seen_"):
        with pytest.raises(AttributeError, match=name):
            setattr(model, name, getattr(model, name))
    model.components_ = -before  # is what transform reads
    assert_array_equal(model.transform(X), -clone(model).fit(X).transform(X))
