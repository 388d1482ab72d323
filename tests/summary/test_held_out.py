"""The number of components by entries held out, beside cross-validation by hand."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.preprocessing import scale

from fedpca_sklearn import (
    AnalyzeGauss,
    AvailablePairs,
    ConditionalFill,
    FederatedPCA,
    StreamingPCA,
    Subspace,
    make_spiked,
)
from fedpca_sklearn.federated._conditional_fill import filled_rows
from fedpca_sklearn.summary._rank_selection import held_out_errors


def predicted(X, train, r):
    """Each entry from the others of its row, in probabilistic PCA of other rows."""
    mean, d = train.mean(axis=0), X.shape[1]
    values, V = np.linalg.eigh(np.cov(train.T, bias=True))
    values, V = values[::-1], V[:, ::-1]
    noise = max(values[r:].mean(), 1e-12 * values[0])
    precision = (V / np.r_[values[:r], np.full(d - r, noise)]) @ V.T
    return X - (X - mean) @ precision / np.diag(precision)


def by_hand(X, most, n_folds=10):
    """Squared errors of entries held out, rows in turn."""
    fold = np.random.default_rng(0).permutation(len(X)) % n_folds
    return np.array(
        [
            sum(
                np.sum((predicted(X[fold == i], X[fold != i], r) - X[fold == i]) ** 2)
                for i in range(n_folds)
            )
            for r in range(most + 1)
        ]
    )


def tables():
    digits = load_digits().data[:600]
    return {
        "spiked": make_spiked(500, 20, spikes=[10, 6, 3], random_state=0)[0],
        "weak": make_spiked(300, 40, spikes=[3, 2, 1.2, 0.8], random_state=1)[0],
        "wine": scale(load_wine().data),
        "cancer": scale(load_breast_cancer().data),
        "digits": digits[:, digits.std(axis=0) > 0],
        "few rows": make_spiked(40, 60, spikes=[20, 10], random_state=0)[0],
    }


@pytest.mark.parametrize("name", tables())
def test_as_many_as_cross_validation_by_hand_finds(name):
    X = tables()[name]
    most = min(X.shape[1] - 1, len(X) * 9 // 10 - 2)
    errors, found = by_hand(X, most), StreamingPCA("held-out").fit(X).n_components_
    assert errors[found] <= 1.02 * errors.min()


def test_errors_are_those_of_the_rows_that_were_fitted():
    X = np.random.default_rng(0).standard_normal((200, 6)) @ np.diag([3, 2, 1, 1, 1, 1]) + 2
    found = held_out_errors(Subspace.from_rows(X), 200, 6)
    for r, error in enumerate(found):
        expected = np.sum((predicted(X, X, r) - X) ** 2)
        assert_allclose(error * (1 - (r + 1) / 200) ** 3, expected * unit(X), rtol=1e-9)


def unit(X):
    """One over the mean sum of squares of a column."""
    return X.shape[1] / np.sum((X - X.mean(axis=0)) ** 2)


def test_sites_streams_and_sparse_rows_find_the_same():
    X = tables()["spiked"]
    found = {
        StreamingPCA("held-out").fit(X).n_components_,
        StreamingPCA("held-out").partial_fit(X[:100]).partial_fit(X[100:]).n_components_,
        StreamingPCA("held-out").fit(sp.csr_array(X)).n_components_,
        StreamingPCA("held-out").fit(1e150 * X).n_components_,
        FederatedPCA("held-out").fit(X, clients=np.arange(500) % 7).n_components_,
    }
    assert len(found) == 1


def test_exact_subspaces_constant_columns_and_single_rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 3)) @ rng.standard_normal((3, 8))
    assert StreamingPCA("held-out").fit(X).n_components_ == 3
    X = np.hstack([tables()["spiked"], np.full((500, 2), 7.0)])
    assert StreamingPCA("held-out").fit(X).n_components_ in (3, 4)
    for few in (np.ones((1, 4)), np.ones((5, 4)), rng.standard_normal((3, 1))):
        assert StreamingPCA("held-out").fit(few).n_components_ == 1


def test_noise_of_a_mechanism_and_pairs_are_refused():
    X = tables()["spiked"]
    with pytest.raises(ValueError, match="held-out"):
        FederatedPCA("held-out", mechanism=AnalyzeGauss(1.0, 1e-5, 10.0)).fit(X)
    with pytest.raises(ValueError, match="held-out"):
        FederatedPCA("held-out", missing=AvailablePairs()).fit(X)


@pytest.mark.parametrize("name", ["spiked", "wine", "cancer", "digits"])
def test_rows_with_holes_are_filled_in_as_well_as_by_the_best_number(name):
    X = tables()[name]
    lost = np.random.default_rng(1).random(X.shape) < 0.3
    holes, sites = np.where(lost, np.nan, X), np.arange(len(X)) % 4

    def error(n_components):
        pca = FederatedPCA(n_components, missing=ConditionalFill()).fit(holes, clients=sites)
        filled = filled_rows(holes, pca.subspace_.truncate(pca.n_components_))
        return np.sum((filled - X)[lost] ** 2)

    best = min(map(error, (1, 2, 3, 5, 8, 12) if X.shape[1] > 15 else (1, 2, 3, 5, 8)))
    assert error("held-out") <= 1.1 * best
