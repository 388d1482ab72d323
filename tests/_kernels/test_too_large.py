"""Values that are too large are refused in the same words everywhere; small ones are exact."""

import re

import numpy as np
import pytest
import scipy.sparse as sp
from golden_cases import NAMES
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.utils import get_tags

from fedpca_sklearn import (
    OjaPCA,
    StreamingPCA,
    Subspace,
    excess_error,
    make_power_law,
    reconstruction_error,
)
from fedpca_sklearn._kernels.too_large import TooLargeError
from fedpca_sklearn.metrics import subspace_distance

WORDS = re.compile(
    r"(Client \S+: )?X holds values that are too large: "
    r"their [a-z ]+ overflows float(32|64)\.( It .*)?"
)
EVERYWHERE = """
StreamingPCA(2)
StreamingPCA(2, scale=True)
StreamingPCA(2, partial_out=[0])
FrequentDirections(2)
GROUSE(2)
OjaPCA(2)
PAST(2)
PETRELS(2)
StreamingPowerMethod(2)
SubspaceTracker(2)
RobustSubspaceTracker(2)
AlternatingProjections(2)
AlternatingProjections(2, center=True)
SubspaceMonitor(SubspaceTracker(2))
FederatedPCA(2, n_clients=3)
FederatedPCA(2, merge=RobustMerge(), n_clients=6)
FederatedPCA(2, missing=AvailablePairs(), n_clients=3)
FederatedPCA(2, missing=ConditionalFill(), n_clients=3)
DistributedPCA(2, n_clients=3)
TruncatedDistributedPCA(2, n_clients=3)
OnlineDistributedPCA(2, n_clients=3)
PersonalizedPCA(1, 1, n_clients=3)
FederatedPowerPCA(2, n_clients=3)
FederatedPowerPCA(2, channel=RobustSum(), n_clients=5)
FederatedHeteroscedasticPCA(2, n_clients=3)
FederatedSubspaceTracker(2, n_clients=3)
FederatedScaler(n_clients=3)
VerticalFederatedPCA(2, feature_groups=3)
"""


def made(code):
    model = eval(code, dict(NAMES))
    return model.set_params(random_state=0) if "random_state" in model.get_params() else model


def rows_of(shape=(60, 6), scale=1.0):
    return np.random.default_rng(0).standard_normal(shape) * scale


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("shape", [(20, 6), (20, 300), (600, 500)])
def test_rows_without_clients_raise_the_one_error(kind, shape):
    X = kind(rows_of(shape, 1e170))
    calls = [Subspace.from_rows, StreamingPCA(2).fit]
    if shape == (20, 6):
        measures = (reconstruction_error, excess_error)
        calls += [lambda X, measure=measure: measure(X, np.eye(6)[:2]) for measure in measures]
    for call in calls:
        with pytest.raises(TooLargeError, match="their sum of squares overflows float64"):
            call(X)


@pytest.mark.parametrize("scale", [1e19, 1e25, 3e37])
@pytest.mark.parametrize("shape", [(20, 50), (20, 5), (100, 400), (300, 20)])
@pytest.mark.parametrize("estimator", [StreamingPCA(3), OjaPCA(3)])
def test_float32_whose_variance_overflows_is_named(estimator, shape, scale):
    with pytest.raises(ValueError, match=r"too large: their \w+ overflows float32"):
        clone(estimator).fit(rows_of(shape, scale).astype("f4"))


@pytest.mark.parametrize("shape", [(20, 50), (20, 5), (100, 200), (2000, 5)])
def test_float32_whose_sums_overflow_is_exact_if_its_variance_does_not(shape):
    X = rows_of(shape) * (1.0 + np.arange(shape[1]))
    X = (X * (5e18 / np.sqrt(np.square(X).sum() / shape[0]))).astype("f4")
    Z = X.astype(np.float64) - X.mean(axis=0, dtype=np.float64)
    s = np.linalg.svd(Z, compute_uv=False)[:3]
    assert_allclose(StreamingPCA(3).fit(X).singular_values_, s, rtol=1e-5)
    assert np.square(Z).sum() > np.finfo("f4").max


@pytest.mark.parametrize(
    ("n", "d", "alpha", "exponents"),
    [
        (3_000, 60, 1.0, [-62, -66, -70]),
        (6_000, 60, 2.0, [-66, -80]),
        (2_600, 700, 1.0, [-62, -80]),
    ],
)
def test_float32_whose_squares_vanish_has_the_directions_of_larger_units(n, d, alpha, exponents):
    """Products below 1e-38 lose their digits, so that other routes find the directions."""
    X = make_power_law(n, d, alpha=alpha, random_state=0).astype("f4")
    Z = X.astype(np.float64) - X.mean(axis=0, dtype=np.float64)
    best, V = np.linalg.svd(Z, full_matrices=False)[1:]
    for exponent in exponents:
        with np.errstate(under="ignore"):  # variances are shown in float32
            pca = StreamingPCA(4).fit(np.ldexp(X, exponent))
        found = np.ldexp(pca.singular_values_, -exponent)
        assert_allclose(found, best[:4], rtol=1e-3 if d == 700 else 1e-6)
        if d == 700:  # by passes or updates, with an excess of 4e-4 at most
            kept = np.linalg.norm(Z @ pca.components_.T) ** 2
            assert 0 <= np.sum(best[:4] ** 2) - kept < 4e-4 * np.sum(best[4:] ** 2)
        else:
            assert subspace_distance(pca.components_, V[:4]) < 1e-6


# The last one is of rows whose sums a server cannot tell from those of liars.
NAMED = re.compile(
    "values.* too large|contains infinity or a value too large|X less large|has contradicted its"
)


def rows_of_size(size):
    """Rows of this size, the same in 14 of 42 rows, in one column and in one entry, and constant.

    Of 1e154, whose squares begin to overflow, all of them; of others some.
    """
    X = rows_of((42, 6)) * [5, 4, 3, 2, 1, 0.5] + 1
    with np.errstate(over="ignore"):
        part, column, entry = X.copy(), X.copy(), X.copy()
        part[14:28] *= size
        column[:, 2] *= size
        entry[25, 3] = size
        every = (X * size, part, column, entry, np.full(X.shape, size))
    return every if size == 1e154 else every[:2] if size in (1e150, 1e-160) else every[2:]


def used(model, X):
    """Fit and use a model; what it shows must be numbers."""
    model.fit(X)
    for method in ("transform", "score_samples", "score", "decompose", "impute", "predict"):
        if hasattr(model, method):
            getattr(model, method)(X)
    for name in ("components_", "explained_variance_", "explained_variance_ratio_", "mean_"):
        assert np.isfinite(getattr(model, name, 0.0)).all(), name
    assert np.sum(getattr(model, "explained_variance_ratio_", 0.0)) <= 1 + 1e-9


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.filterwarnings("ignore:.*:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("code", EVERYWHERE.strip().splitlines())
def test_values_of_any_size_give_numbers_or_the_named_error(code):
    """And no warning of numpy, nor an error of numpy or scipy about infinity in some array."""
    model = made(code)
    for size in (1e150, 1e154, 1e300, 1e-160, 1e-300):
        for i, X in enumerate(rows_of_size(size)):
            if i % 2 and get_tags(model).input_tags.allow_nan:
                X[::7, 1] = np.nan
            refused = None
            try:
                used(clone(model), X)
            except ValueError as error:
                refused = str(error)
            assert refused is None or (size > 1 and NAMED.search(refused)), (size, refused)
    with pytest.raises(ValueError, match="too large") as error:
        clone(model).fit(rows_of((100, 8), 1e200))
    if "estimator=" not in code:  # in the same words everywhere
        assert WORDS.fullmatch(str(error.value)), str(error.value)


@pytest.mark.parametrize("size", [1e-160, 1e-161, 1e-162])
@pytest.mark.parametrize("options", [{}, {"forgetting_factor": 0.9}, {"half_life": 20}])
def test_shares_of_tiny_variances_are_those_of_larger_ones(options, size):
    """Squares of such rows have lost their digits, roots of their sums have not."""
    X = rows_of() * np.linspace(3, 1, 6)
    shares, found = (
        StreamingPCA(**options).fit(rows).explained_variance_ratio_ for rows in (X, X * size)
    )
    assert_allclose(found, shares, rtol=1e-2 if size < 1e-161 else 1e-3)
    assert found.sum() <= 1 + 1e-12
    if not options and size > 1e-162:  # beside what was cut, whose total has lost more digits
        few = StreamingPCA(2).fit(X * size).explained_variance_ratio_
        assert_allclose(few, shares[:2], rtol=1e-3)
