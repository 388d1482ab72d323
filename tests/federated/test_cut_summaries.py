"""What is asked of summaries from which directions were cut."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import (
    ContributionBounds,
    FederatedPCA,
    ProjectionAverage,
    StreamingPCA,
    Subspace,
)

X = load_breast_cancer().data  # of 30 columns, the first explains 98 % of the variance
CUT = Subspace.from_rows(X, 3)


@pytest.mark.parametrize("k", [3, 10, 20])  # twenty leave 5e-10 of the scatter
def test_components_that_were_cut_are_refused(k):
    cut = Subspace.from_rows(X, k)
    message = f"n_components={k + 1} must be at most {k}: .* was cut, and keeps {k} of 30"
    with pytest.raises(ValueError, match=message):
        FederatedPCA.from_subspaces([cut], k + 1)
    assert FederatedPCA.from_subspaces([cut], k).n_components_ == k
    assert FederatedPCA.from_subspaces([cut]).n_components_ == k
    with pytest.warns(UserWarning, match=f"{message} .* arbitrary"):
        pca = StreamingPCA.from_subspace(cut, k + 1)
    assert pca.n_components_ == k + 1
    assert StreamingPCA.from_subspace(cut).n_components_ == k


def test_a_rank_that_was_cut_is_warned_of():
    with pytest.warns(UserWarning, match="n_components=5 must be at most 3"):
        StreamingPCA.from_subspace(CUT, 5, rank_rule=ContributionBounds())


def test_directions_of_all_sites_count():
    sites = [Subspace.from_rows(X[i::2], 3) for i in range(2)]  # and what tells the means apart
    assert FederatedPCA.from_subspaces(sites, 7).explained_variance_[-1] > 0
    with pytest.raises(ValueError, match="n_components=8 must be at most 7"):
        FederatedPCA.from_subspaces(sites, 8)


def test_directions_that_no_row_has_are_completed():
    """As documented: nothing was cut, and there is no variance beyond."""
    rows = X[:100] @ np.diag(np.r_[np.ones(5), np.zeros(25)])
    for summary in Subspace.from_rows(rows), Subspace.from_rows(rows.astype(np.float32), 5):
        for pca in (
            FederatedPCA.from_subspaces([summary], 8),
            StreamingPCA.from_subspace(summary, 8),
        ):
            assert (pca.n_components_, summary.n_components) == (8, 5)
            np.testing.assert_array_equal(pca.explained_variance_[5:], 0)


def test_what_a_merge_leaves_out_of_whole_summaries_is_its_own():
    rows = np.repeat(X[:2, :4], 8, axis=0)
    summaries = [Subspace.from_rows(rows[::2]), Subspace.from_rows(rows[1::2] + np.eye(4)[1])]
    pca = FederatedPCA.from_subspaces(summaries, 4, merge=ProjectionAverage())
    assert pca.subspace_.n_components < pca.n_components_ == 4


def test_clients_that_send_too_few_directions_are_warned_of():
    with pytest.warns(UserWarning, match="n_components=10 must be at most 3"):
        FederatedPCA(10, estimator=PCA(3)).fit(X, clients=np.zeros(len(X)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pca = FederatedPCA(7, estimator=PCA(3)).fit(X, clients=np.arange(len(X)) % 2)
    with pytest.warns(UserWarning, match="n_components=7 must be at most 3"):
        pca.remove(0)


@pytest.mark.parametrize("k", [1, 3, 8, 13])
def test_directions_that_were_cut_before_columns_are_scaled(k):
    cut, r = Subspace.from_rows(X, k), min(k, 3)
    message = f"scale=True: .* scaled columns is missing .* cut to {k} directions.*error_bound_=inf"
    for make in (
        StreamingPCA.from_subspace,
        lambda s, r, **p: FederatedPCA.from_subspaces([s], r, **p),
    ):
        with pytest.warns(UserWarning, match=message):
            pca = make(cut, r, scale=True)
    true = PCA(r).fit(StandardScaler().fit_transform(X)).explained_variance_
    assert np.abs(pca.explained_variance_ / true - 1).max() > 0.07


@pytest.mark.parametrize("extra", [1, 5, 10])
def test_directions_that_were_cut_of_scaled_columns(extra):
    sites = [StreamingPCA(3, oversampling=extra, scale=True).fit(X[i::2]) for i in range(2)]
    pca = FederatedPCA.from_subspaces([site.subspace_ for site in sites], 3, scale=True)
    true = PCA(3).fit(StandardScaler().fit_transform(X)).explained_variance_
    np.testing.assert_allclose(pca.explained_variance_, true, rtol=5e-3)


def test_clients_that_cut_before_columns_are_scaled():
    clients, few = np.arange(len(X)) % 2, {"oversampling": 0}
    with pytest.warns(UserWarning, match="scale=True: .* scaled columns is missing"):
        FederatedPCA(3, estimator=StreamingPCA(3, **few), scale=True).fit(X, clients=clients)
    FederatedPCA(3, estimator=StreamingPCA(3, scale=True, **few), scale=True).fit(
        X, clients=clients
    )
    with pytest.warns(UserWarning, match="partial_out=4: 93% of the variance of a confounder"):
        FederatedPCA.from_subspaces([CUT], 2, partial_out=4)
