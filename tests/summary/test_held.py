"""Scatter matrices that are held until directions are read: against numpy on the pooled rows."""

import pickle

import numpy as np
import pytest
from helpers import sine
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import DistributedPCA, FederatedPCA, StreamingPCA, Subspace, merge_subspaces
from fedpca_sklearn.streaming import _blocks

D = 12


def rows_of(seed=0, n=300, spread=6.0, d=D):
    """Correlated columns with deviations from 10^-spread to 10^spread, about other means."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) @ (rng.standard_normal((d, d)) + 2 * np.eye(d)) + 3.0
    return X * 10.0 ** rng.permutation(np.linspace(-spread, spread, d))


def left_by(X, confounders):
    C, Y = X[:, confounders], np.delete(X, confounders, axis=1)
    C = (C - C.mean(axis=0)) / C.std(axis=0)
    size = Y.std(axis=0)
    return (Y / size - LinearRegression().fit(C, Y / size).predict(C)) * size


def assert_scaled(pca, Y, tol=1e-10):
    """Variances, components and deviations of the scaled rows."""
    Z = StandardScaler().fit_transform(Y)
    expected = PCA(pca.n_components_, svd_solver="full").fit(Z)
    assert_allclose(pca.explained_variance_, expected.explained_variance_, rtol=tol)
    assert sine(pca.components_, expected.components_) < tol
    assert_allclose(pca.scale_, Y.std(axis=0), rtol=tol)


@pytest.fixture
def solved(monkeypatch):
    """Orders of the eigenproblems and decompositions that numpy and scipy are asked for."""
    orders = []

    def counted(module, name):
        solve = getattr(module, name)
        monkeypatch.setattr(module, name, lambda A, **kw: orders.append(len(A)) or solve(A, **kw))

    counted(np.linalg, "eigh")
    counted(np.linalg, "svd")
    import scipy.linalg

    for name in ("eigh", "svd", "qr"):
        counted(scipy.linalg, name)
    return orders


@pytest.mark.parametrize("spread", [0.0, 6.0])
@pytest.mark.parametrize("d", [60, 300])
@pytest.mark.parametrize("confounders", [None, [3, 1]])
def test_one_eigenproblem_as_of_rows_that_are_not_adjusted(spread, d, confounders, solved):
    X = rows_of(1, 600, spread, d)
    StreamingPCA(10).fit(rows_of(1, 600, 0.0, d))
    plain, solved[:] = len(solved), []
    pca = StreamingPCA(10, scale=True, partial_out=confounders).fit(X)
    assert len(solved) == plain + (confounders is not None)  # the small one of the confounders
    assert_scaled(pca, left_by(X, confounders) if confounders else X)


def test_scatter_matrices_of_sites_are_added_up(solved):
    X = rows_of(1, 600, 6.0, 60)
    pca = FederatedPCA(10, scale=True, n_clients=4).fit(X)
    assert len(pca.components_) == 10
    assert len(solved) == 5  # for what each site sends, and for the sum
    assert_scaled(pca, X)


@pytest.mark.parametrize("kind", [StreamingPCA, DistributedPCA])
def test_directions_that_are_read_later_have_the_digits_of_each_column(kind):
    X = rows_of(2, spread=8.0)
    summary = kind(3, scale=True).fit(X).subspace_
    size, Y = X.std(axis=0), X - X.mean(axis=0)
    scatter = (summary.components.T * summary.singular_values**2) @ summary.components
    assert_allclose(scatter / np.outer(size, size), Y.T @ Y / np.outer(size, size), atol=1e-9)
    again = Subspace.from_bytes(summary.to_bytes())
    assert summary.nbytes == len(summary.to_bytes())
    assert summary.n_floats == again.n_floats == D * (D + 1) // 2 + 2 * D + 2
    assert_scaled(FederatedPCA.from_subspaces([again], 3, scale=True), X)
    assert_allclose(
        merge_subspaces([summary, again.decay(0)]).singular_values[0],
        np.linalg.svd(Y, compute_uv=False)[0],
    )


@pytest.mark.parametrize("kind", [StreamingPCA, FederatedPCA, DistributedPCA])
def test_what_is_read_or_copied_in_between_changes_no_bit(kind):
    X = rows_of(3)
    parts = {} if kind is StreamingPCA else {"clients": np.arange(150) % 3}
    pca, read = (kind(3, scale=True).fit(X[:150], **parts) for _ in range(2))
    assert read.subspace_.components.shape == (D, D)
    if kind is not DistributedPCA:
        again = pickle.loads(pickle.dumps(read))
        assert read.subspace_error_bound_ == again.subspace_error_bound_
    copied = pickle.loads(pickle.dumps(pca))
    if kind is FederatedPCA:
        assert all(s.n_components == D for s in read.summaries_.values())
    for each in (pca, read, copied):
        each.partial_fit(X[150:], **parts)
        assert_array_equal(each.components_, pca.components_)
        assert_array_equal(each.subspace_.components, pca.subspace_.components)
    assert_scaled(pca, X)


def test_rows_that_follow_a_summary_that_was_cut():
    """Its sums of squares count, though its scatter matrix has not all of them."""
    X = rows_of(4, spread=1.0)
    cut = StreamingPCA(3).fit(X[:150]).subspace_.truncate(2)
    pca = StreamingPCA.from_subspace(cut, 2, scale=True).partial_fit(X[150:])
    assert_allclose(pca.scale_, X.std(axis=0))
    assert_allclose(pca.subspace_.column_scatter.sum(), pca.subspace_.scatter)
    assert pca.subspace_error_bound_ > 1e-3
    with pytest.warns(UserWarning, match="n_components=2 must be at most 1: .* keeps 2 of 12"):
        again = StreamingPCA.from_subspace(cut, 2, partial_out=[0])
    again.partial_fit(X[150:])
    assert_allclose(again.subspace_.column_scatter, 300 * X.var(axis=0))


@pytest.mark.parametrize("rest", [1e-3, 1e-7])
@pytest.mark.parametrize("kind", [StreamingPCA, FederatedPCA])
def test_columns_that_others_nearly_explain_keep_ten_digits(kind, rest):
    X = rows_of(5, spread=2.0)
    noise = np.random.default_rng(5).standard_normal(300)
    X[:, 1] = 2 * X[:, 0] + rest * X[:, 0].std() * noise
    pca = kind(scale=True).fit(X)  # of which the last variance is that of the noise
    Z = StandardScaler().fit_transform(X)
    Z[:, 1] -= Z[:, 0]  # which loses nothing that the rows have
    last = np.linalg.svd(Z - Z.mean(axis=0), compute_uv=False)[-1]
    assert 0.3 * last < pca.singular_values_[-1] < last
    left = kind(3, partial_out=[0], scale=True).fit(X)
    expected = StandardScaler().fit(left_by(X, [0]))
    lost = np.finfo(float).eps / rest  # of the rows' own digits, which few steps lose again
    assert_allclose(left.scale_, expected.scale_, rtol=max(1e-10, 16 * lost))


@pytest.mark.parametrize("apart", [10.0, 1e6])
def test_sites_far_apart(apart):
    """Where the sum of scatter matrices knows the way between the means only."""
    X, clients = rows_of(6, spread=2.0), np.arange(300) % 3
    X += apart * clients[:, None] * X.std(axis=0) * np.linspace(1, 2, D)
    pca = FederatedPCA(4, scale=True).fit(X, clients=clients)
    assert_scaled(pca, X, tol=1e-10 if apart < 100 else 1e-6)
    s = np.linalg.svd(StandardScaler().fit_transform(X), compute_uv=False)
    assert_allclose(pca.singular_values_, s[:4], rtol=1e-9)


def test_small_batches_wait_for_each_other(monkeypatch):
    X = rows_of(7)
    pca, calls = StreamingPCA(3, scale=True, partial_out=[2]), []
    take = _blocks.take_buffer
    monkeypatch.setattr(
        _blocks, "take_buffer", lambda *args: calls.append(args[1].n) or take(*args)
    )
    for batch in np.split(X, 30):
        pca.partial_fit(batch)
    assert len(calls) <= 300 // (4 * D)
    assert_scaled(pca, left_by(X, [2]))
    with pytest.raises(ValueError, match="from 0 to 11, got 99"):
        StreamingPCA(3, partial_out=[99]).partial_fit(X[:5])
    with pytest.raises(ValueError, match="n_components=12 must be at most 11"):
        StreamingPCA(12, partial_out=[1]).partial_fit(X[:5])


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("n", [150, 1500])
def test_confounders_are_kept_whole_beside_a_cut(scale, n):
    """With fewer rows than columns in a block, and with more."""
    rng = np.random.default_rng(8)
    X = rng.standard_normal((n, 300)) * np.arange(1, 301.0) ** -0.5 * 40
    C = np.column_stack([rng.integers(0, 2, n), rng.normal(50, 10, n)])
    X += C @ rng.standard_normal((2, 300))
    X[:, [7, 200]] = C
    effects = LinearRegression().fit(C, np.delete(X, [7, 200], axis=1)).coef_.T
    options = {"partial_out": [7, 200], "scale": scale}
    site = StreamingPCA(4, oversampling=10, block_size=60 if n == 150 else "auto", **options)
    alone = site.fit(X)
    sites = FederatedPCA(4, estimator=site, **options).fit(X, clients=np.arange(n) % 2)
    for pca in (alone, sites):
        assert len(pca.subspace_.components) < 300
        error = C.std(axis=0)[:, None] * (pca.confounder_effects_ - effects)
        assert np.abs(error).max() < 1e-10 * X.std(axis=0).min()
