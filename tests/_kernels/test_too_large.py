"""Values that are too large are refused in the same words everywhere; small ones are exact."""

import re

import numpy as np
import pytest
import scipy.sparse as sp

from fedpca_sklearn import (
    GROUSE,
    AlternatingProjections,
    DistributedPCA,
    FederatedPCA,
    FederatedPowerPCA,
    OjaPCA,
    StreamingPCA,
    Subspace,
    SubspaceTracker,
    VerticalFederatedPCA,
    make_power_law,
)
from fedpca_sklearn._kernels.too_large import TooLargeError
from fedpca_sklearn.metrics import subspace_distance
from fedpca_sklearn.summary._triangle import triangle_of_rows

WORDS = re.compile(
    r"(Client \S+: )?X holds values that are too large: "
    r"their [a-z ]+ overflows float(32|64)\.( It .*)?"
)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize(
    "fit",
    [
        Subspace.from_rows,
        triangle_of_rows,
        StreamingPCA(2).fit,
        OjaPCA(2).fit,
        GROUSE(2).fit,
        AlternatingProjections(2).fit,
        SubspaceTracker(2).fit,
        DistributedPCA(2).fit,
        FederatedPCA(2).fit,
        FederatedPowerPCA(2, random_state=0).fit,
        VerticalFederatedPCA(2).fit,
    ],
    ids=lambda fit: getattr(fit, "__qualname__", None) or str(fit),
)
def test_the_words_are_the_same(fit):
    X = np.random.default_rng(0).standard_normal((100, 8)) * 1e200
    with pytest.raises(ValueError, match="too large") as error:
        fit(X)
    assert WORDS.fullmatch(str(error.value)), str(error.value)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("d", [8, 300])
def test_rows_without_clients_raise_the_one_error(kind, d):
    X = np.random.default_rng(0).standard_normal((20, d)) * 1e160
    with pytest.raises(TooLargeError, match="their sum of squares overflows float64"):
        Subspace.from_rows(kind(X))


@pytest.mark.parametrize("scale", [1e19, 1e25, 1e36, 3e37])
@pytest.mark.parametrize("shape", [(20, 50), (20, 5), (100, 400), (300, 20)])
@pytest.mark.parametrize("estimator", [StreamingPCA(3), OjaPCA(3), FederatedPCA(3)])
def test_float32_whose_variance_overflows_is_named(estimator, shape, scale):
    X = (np.random.default_rng(0).standard_normal(shape) * scale).astype("f4")
    with pytest.raises(ValueError, match=r"too large: their \w+ overflows float32"):
        estimator.fit(X)


@pytest.mark.parametrize("shape", [(20, 50), (20, 5), (100, 200), (2000, 5)])
def test_float32_whose_sums_overflow_is_exact_if_its_variance_does_not(shape):
    X = np.random.default_rng(0).standard_normal(shape) * (1.0 + np.arange(shape[1]))
    X = (X * (5e18 / np.sqrt(np.square(X).sum() / shape[0]))).astype("f4")
    pca = StreamingPCA(3).fit(X)
    Z = X.astype(np.float64) - X.mean(axis=0, dtype=np.float64)
    s = np.linalg.svd(Z, compute_uv=False)[:3]
    np.testing.assert_allclose(pca.singular_values_, s, rtol=1e-5)
    assert np.square(Z).sum() > np.finfo("f4").max


@pytest.mark.parametrize("exponent", [-62, -66, -70, -74, -80])
@pytest.mark.parametrize("shape", [(3_000, 60, 1.0), (20_000, 60, 2.0), (2_600, 700, 1.0)])
def test_float32_whose_squares_vanish_has_the_directions_of_larger_units(shape, exponent):
    """Products below 1e-38 lose their digits, so that other routes find the directions."""
    n, d, alpha = shape
    X = make_power_law(n, d, alpha=alpha, random_state=0).astype("f4")
    with np.errstate(under="ignore"):  # variances are shown in float32
        pca = StreamingPCA(4).fit(np.ldexp(X, exponent))
    Z = X.astype(np.float64) - X.mean(axis=0, dtype=np.float64)
    best, V = np.linalg.svd(Z, full_matrices=False)[1:]
    s, kept = np.ldexp(pca.singular_values_, -exponent), np.linalg.norm(Z @ pca.components_.T)
    if d == 700:  # by passes or updates, with an excess of 4e-4 at most
        rest = np.sum(best[4:] ** 2)
        assert 0 <= np.sum(best[:4] ** 2) - kept**2 < 4e-4 * rest
        np.testing.assert_allclose(s, best[:4], rtol=1e-3)
    else:
        assert subspace_distance(pca.components_, V[:4]) < 1e-6
        np.testing.assert_allclose(s, best[:4], rtol=1e-6)
