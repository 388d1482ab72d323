"""Rows with entries that are not finite, on every way in which `StreamingPCA` sums rows up.

The attack: dense rows are not searched for such entries before they are summed up, so that one that
leaves no trace in the sums would spoil the fit. Expected is what scikit-learn says of such rows.
"""

import warnings

import joblib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from fedpca_sklearn import ContributionBounds, StreamingPCA

ROUTES = {  # a shape, and parameters
    "scatter": (500, 40, {"n_components": 3}),
    "leading first": (600, 300, {"n_components": 20}),
    "few rows": (70, 600, {"n_components": 3}),
    "updates": (1300, 300, {"n_components": 3, "block_size": 100}),
    "passes": (1100, 520, {"n_components": 3}),
    "all directions": (520, 500, {}),
    "QR": (60, 40, {"n_components": 3, "svd_solver": "qr"}),
    "QR of few rows": (30, 400, {"n_components": 3, "svd_solver": "qr"}),
    "rank by rule": (200, 50, {"n_components": 3, "rank_rule": ContributionBounds()}),
    "share": (200, 50, {"n_components": 0.9}),
    "faded to nothing": (300, 40, {"n_components": 3, "forgetting_factor": 1e-3}),
    "scaled": (300, 40, {"n_components": 3, "scale": True}),
}


def message(fit, X):
    with pytest.raises(ValueError, match=r"Input X contains (NaN|infinity)") as error:
        fit(X)
    return str(error.value).split()[3]


@pytest.mark.parametrize("route", ROUTES)
@settings(max_examples=4, derandomize=True, deadline=None, database=None)
@given(data=st.data())
def test_every_way_refuses_them_and_leaves_no_trace(route, data):
    n, d, params = ROUTES[route]
    draw = data.draw
    dtype = draw(st.sampled_from(["f4", "f8"]))
    bad = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    X = np.random.default_rng(0).standard_normal((n, d)) * 0.9 ** np.arange(d)
    X = (X + draw(st.sampled_from([0, 1e3]))).astype(dtype)
    pca = StreamingPCA(**params, center=draw(st.booleans()) or "scale" in params)
    if draw(st.booleans()):
        pca.fit(X[: n // 2])
    X = X.copy()
    for _ in range(draw(st.integers(1, 2))):
        X[draw(st.integers(0, n - 1)), draw(st.integers(0, d - 1))] = bad
    before = joblib.hash(vars(pca))
    expected = message(PCA().fit, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert message(pca.fit, X) == message(pca.partial_fit, X) == expected
    assert joblib.hash(vars(pca)) == before


@pytest.mark.parametrize("route", ["scatter", "few rows", "passes"])
def test_finite_squares_and_a_second_pass_are_checked_as_well(route):
    n, d, params = ROUTES[route]
    X = np.random.default_rng(0).standard_normal((n, d))
    pca = StreamingPCA(**params).fit(X)
    before = joblib.hash(vars(pca))
    for bad in (1e200, np.nan, np.inf, -np.inf):
        X[n // 3, 5] = bad
        if bad == 1e200:
            with pytest.raises(ValueError, match="X holds values that are too large"):
                StreamingPCA(**params).fit(X)
        else:
            assert message(pca.refine, X) == message(PCA().fit, X)
    assert joblib.hash(vars(pca)) == before
