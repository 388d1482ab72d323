"""Rows with missing entries at clients: filled in by the subspace of all, over rounds."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers import sine
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from pair_helpers import rows_with_holes
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from fedpca_sklearn import (
    AvailablePairs,
    ConditionalFill,
    FederatedPCA,
    StreamingPCA,
    excess_error,
    make_power_law,
    make_spiked,
)


def em_by_hand(X, k, n_rounds, weight=None, clients=None):
    """Mean, eigenvalues, directions and noise of all rows, by EM for probabilistic PCA.

    The covariance that it starts from is that of zero-filled rows, each entry over the number of
    rows that have both columns if the entries of each client lack at random. Then, row by row, the
    normal distribution given what is there (Tipping and Bishop 1999, with the missing entries as
    what is hidden): mean and covariance, with d x d matrices.
    """
    X = np.asarray(X, np.float64)
    if weight is not None:
        X, clients = np.repeat(X, weight, axis=0), np.repeat(clients, weight)
    n, d = X.shape
    lost = np.isnan(X)
    origin = np.nanmean(X, axis=0)
    Z = np.where(lost, 0.0, X - origin)
    mean = Z.sum(axis=0) / (~lost).sum(axis=0)
    Z = np.where(lost, 0.0, Z - mean)
    together = np.zeros((d, d))
    for client in np.unique(clients):
        there = ~lost[clients == client]
        together += np.outer(there.sum(axis=0), there.mean(axis=0))
    np.fill_diagonal(together, (~lost).sum(axis=0))
    S = n * np.divide(Z.T @ Z, together, out=np.zeros((d, d)), where=together > 0)
    values, W = np.linalg.eigh(S)
    values, W, total = values[::-1], W[:, ::-1].T, np.trace(S)
    k_now = min(k, np.sum((values > 0) & (np.cumsum(values) <= total)))
    for _ in range(n_rounds):
        values, V = values[:k_now] / n, W[:k_now]
        noise = (total / n - values.sum()) / (d - k_now)
        C = (V.T * (values - noise)) @ V + noise * np.eye(d)
        filled, beyond = np.where(lost, 0.0, X - origin), np.zeros((d, d))
        for row, gone in zip(filled, lost, strict=True):
            there = ~gone
            K = np.linalg.solve(C[np.ix_(there, there)], C[np.ix_(there, gone)]).T
            row[gone] = mean[gone] + K @ (row - mean)[there]
            beyond[np.ix_(gone, gone)] += C[np.ix_(gone, gone)] - K @ C[np.ix_(there, gone)]
        mean = filled.mean(axis=0)
        S = (filled - mean).T @ (filled - mean) + beyond
        values, W = np.linalg.eigh(S)
        values, W, total, k_now = values[::-1], W[:, ::-1].T, np.trace(S), k
    values = values[:k] / (n - 1)
    noise = (total / (n - 1) - values.sum()) / (d - k)
    return origin + mean, values, W[:k], noise, total / (n - 1)


@settings(max_examples=12, derandomize=True, deadline=None, database=None)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 25), min_size=1, max_size=6),
    share=st.sampled_from([0.0, 0.1, 0.3]),
    weighted=st.booleans(),
    sparse=st.booleans(),
    n_rounds=st.integers(1, 3),
)
def test_equal_to_em_by_hand_on_all_rows(seed, sizes, share, weighted, sparse, n_rounds):
    n, d, k, rng = sum(sizes) + 40, 7, 2, np.random.default_rng(seed)
    X = rows_with_holes(seed, n, d, share, mean=3.0)
    clients = rng.permutation(np.repeat(np.arange(len(sizes) + 1), [*sizes, 40]))
    weight = rng.integers(1, 4, n) if weighted else None
    pca = FederatedPCA(k, missing=ConditionalFill(n_rounds=n_rounds))
    pca.fit(sp.csr_array(X) if sparse else X, clients=clients, sample_weight=weight)
    mean, values, V, noise, total = em_by_hand(X, k, n_rounds, weight, clients)
    tol = 1e-9
    assert_allclose(pca.mean_, mean, atol=tol * np.sqrt(values[0]))
    assert_allclose(pca.explained_variance_, values, rtol=tol, atol=tol * values[0])
    assert_allclose(pca.explained_variance_ratio_, values / total, rtol=tol, atol=tol)
    assert_allclose(pca.noise_variance_, noise, rtol=tol, atol=tol * values[0])
    if values[-1] > 1.2 * noise:
        assert sine(pca.components_, V) < 100 * tol


def low_rank(n=240, d=12, k=3, mean=0.0, share=0.1):
    rng = np.random.default_rng(0)
    L = rng.standard_normal((n, k)) @ rng.standard_normal((k, d)) + mean * (1 + rng.random(d))
    truth = np.linalg.svd(L - L.mean(axis=0), full_matrices=False)[2][:k]
    return L, np.where(rng.random(L.shape) < share, np.nan, L), truth


def test_rows_of_low_rank_are_found_to_rounding_by_many_rounds():
    L, X, truth = low_rank(mean=1e6)
    errors = []
    for n_rounds in (2, 4, 40):
        pca = FederatedPCA(3, missing=ConditionalFill(n_rounds=n_rounds))
        errors.append(sine(pca.fit(X, clients=np.arange(240) % 5).components_, truth))
    assert errors[0] > 2 * errors[1]
    assert errors[-1] < 1e-8
    assert np.abs(pca.impute(X) - L).max() < 1e-7


def test_two_sites_that_measure_other_columns():
    """No pair of their own columns is ever there, but the subspace says what it is."""
    _, X, truth = low_rank(n=400, share=0.0, mean=5.0)
    clients = np.arange(400) // 200
    X[clients == 0, :3], X[clients == 1, -3:] = np.nan, np.nan
    with pytest.raises(ValueError, match="observed together in 0 rows"):
        FederatedPCA(3, missing=AvailablePairs()).fit(X, clients=clients)
    pca = FederatedPCA(3, missing=ConditionalFill(n_rounds=120)).fit(X, clients=clients)
    assert sine(pca.components_, truth) < 1e-5
    X[:, 5] = np.nan
    with pytest.raises(ValueError, match="column 5 is observed in 0 rows"):
        pca.fit(X, clients=clients)


def strong(n, share, seed, d=20, variances=(100.0, 50.0, 25.0)):
    """Rows of three strong directions and unit noise, and the same with holes."""
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((d, 3)))[0].T
    X = rng.standard_normal((n, 3)) * np.sqrt(variances) @ V + rng.standard_normal((n, d)) + 3
    return X, np.where(rng.random(X.shape) < share, np.nan, X)


def test_columns_that_no_row_has_together_are_named():
    X, halves = strong(400, 0.0, 0, d=12)[0], np.arange(400) % 2
    X[np.ix_(halves == 0, np.arange(6))] = np.nan
    X[np.ix_(halves == 1, np.arange(6, 12))] = np.nan
    pca = FederatedPCA(2, missing=ConditionalFill())
    for clients in (halves, np.arange(400) // 200):  # by site, and at each site
        with pytest.warns(UserWarning, match="columns 0, 1, 2, 3, 4, 5 are never .* 6, 7, 8, 9"):
            pca.fit(X, clients=clients)
    frame = pd.DataFrame(X, columns=[f"gene {letter}" for letter in "abcdefghijkl"])
    with pytest.warns(UserWarning, match="gene a, .* with columns gene g"):
        pca.fit(frame, clients=halves)
    X[0, 0] = 1.0  # one row has a column of both halves
    pca.fit(X, clients=halves)


@pytest.mark.parametrize(("share", "few"), [(0.0, False), (0.3, False), (0.7, True)])
def test_a_last_variance_of_few_rows_is_warned_of(share, few):
    """569 rows of 30 columns: at 30 % missing it is within a tenth of the whole rows', at 70 % not.

    Noise has d over the number of rows with two columns, 279 or 51, for a share of its variance.
    """
    X = scale(load_breast_cancer().data)
    clients = np.arange(len(X)) % 4
    whole = FederatedPCA(5).fit(X, clients=clients).explained_variance_
    holes = np.where(np.random.default_rng(5).random(X.shape) < share, np.nan, X)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pca = FederatedPCA(5, missing=ConditionalFill()).fit(holes, clients=clients)
    assert [("component 5" in str(warning.message)) for warning in caught] == [True] * few
    assert (abs(pca.explained_variance_ / whole - 1).max() > 0.1) == few


def test_above_the_exact_dimension_and_beside_mean_imputation():
    F = make_power_law(1500, 300, alpha=1.5, random_state=0)
    X = np.where(np.random.default_rng(0).random(F.shape) < 0.2, np.nan, F)
    clients = np.arange(1500) % 6
    whole = FederatedPCA(10).fit(F, clients=clients)
    means = FederatedPCA(10).fit(np.where(np.isnan(X), np.nanmean(X, axis=0), X), clients=clients)
    pca = FederatedPCA(10, missing=ConditionalFill()).fit(X, clients=clients)
    assert_allclose(pca.explained_variance_[0], whole.explained_variance_[0], rtol=0.02)
    assert means.explained_variance_[0] < 0.7 * whole.explained_variance_[0]
    assert_allclose(pca.noise_variance_, whole.noise_variance_, rtol=0.02)
    excess, by_means = (excess_error(F, p.components_, p.mean_) for p in (pca, means))
    assert excess < 0.3 * by_means
    assert pca.subspace_error_bound_ == np.inf
    # covariances of what is missing add no directions to what clients have cut
    sent, rounds = whole.communication_.floats_up, pca.communication_.table
    assert [row["floats_up"] for row in rounds] == [6 * 2 * 300, sent, 0, sent, 0, sent]


@pytest.mark.filterwarnings("ignore:two columns have entries in the same row")
def test_holes_do_not_count_as_components():
    """No more than one is added; if rows were taken as whole there would be many."""
    for d, share, spikes in ((20, 0.3, [10, 6, 3]), (20, 0.5, [10, 6, 3]), (6, 0.7, [20])):
        X, _ = make_spiked(500, d, spikes=spikes, random_state=0)
        X[np.random.default_rng(0).random(X.shape) < share] = np.nan
        pca = FederatedPCA("held-out", missing=ConditionalFill()).fit(X, clients=np.arange(500) % 3)
        assert 0 <= pca.n_components_ - len(spikes) <= 1


def test_rows_that_fade_are_rows_with_weights():
    """Rounds of both end at one fixed point: the covariance of what is missing fades as well."""
    rng, n = np.random.default_rng(0), 60
    basis = np.linalg.qr(rng.standard_normal((6, 2)))[0].T
    X = 10 + rng.standard_normal((2 * n, 2)) * [4, 3] @ basis + rng.standard_normal((2 * n, 6))
    clients, age = np.repeat([0, 1], n), np.tile(np.arange(n)[::-1], 2)
    X[clients == 0, 0] = np.nan
    fading = StreamingPCA(2, forgetting_factor=0.97)
    fades = FederatedPCA(2, estimator=fading, missing=ConditionalFill(40)).fit(X, clients=clients)
    weighted = FederatedPCA(2, missing=ConditionalFill(40))
    weighted.fit(X, clients=clients, sample_weight=0.97**age)
    for name in ("explained_variance_", "noise_variance_", "components_"):
        assert_allclose(getattr(fades, name), getattr(weighted, name), rtol=1e-8, atol=1e-9)


def test_what_a_model_of_filled_rows_cannot_do():
    X, pca = low_rank()[1], FederatedPCA(2, missing=ConditionalFill())
    assert not hasattr(pca.fit(X), "partial_fit")
    da = pytest.importorskip("dask.array")
    with pytest.raises(TypeError, match="dask"):
        pca.fit(da.from_array(X, chunks=(100, 12)))
