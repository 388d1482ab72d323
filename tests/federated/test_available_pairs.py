"""Rows with missing entries at clients: covariances from the pairs that are there.

Rows with missing entries at clients: filled in by the subspace of all, over rounds.
"""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers import peak_bytes, sine
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from pair_helpers import covariance_of_pairs, nearest_model, rows_with_holes
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from fedpca_sklearn import (
    AvailablePairs,
    ConditionalFill,
    DistributedPCA,
    FederatedPCA,
    PairMoments,
    StreamingPCA,
    excess_error,
    make_power_law,
    make_spiked,
)

BOTH = pytest.mark.parametrize("Estimator", [FederatedPCA, DistributedPCA])


def fit(Estimator, X, n_components=3, clients=None, weight=None, **parameters):
    pca = Estimator(n_components, missing=AvailablePairs(**parameters))
    return pca.fit(X, clients=clients, sample_weight=weight)


def assert_is_of_pairs(pca, X, weight=None, tol=1e-10, mean_tol=None):
    """Mean, variances and components are those of the pairwise covariance of all rows."""
    values, vectors = nearest_model(covariance_of_pairs(X, weight))
    k = pca.n_components_
    assert_allclose(pca.explained_variance_, values[:k], rtol=tol, atol=tol * values[0])
    assert_allclose(pca.explained_variance_ratio_, values[:k] / values.sum(), rtol=tol, atol=tol)
    rows = np.asarray(X) if weight is None else np.repeat(X, weight, axis=0)
    origin = np.nanmean(rows, axis=0)
    mean = np.nanmean(rows - origin, axis=0)
    assert_allclose(pca.mean_ - origin, mean, atol=mean_tol or tol * np.sqrt(values[0]))
    for v, u, value in zip(pca.components_, vectors, values, strict=False):
        gap = np.sort(np.abs(values - value))[1]
        if gap > 1e-3 * values[0]:
            assert 1 - abs(v @ u) <= tol * values[0] / gap


@pytest.mark.filterwarnings("ignore:The covariance of available pairs")
@BOTH
@settings(max_examples=20, derandomize=True, deadline=None, database=None)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 25), min_size=1, max_size=6),
    d=st.integers(2, 6),
    share=st.sampled_from([0.0, 0.1, 0.3]),
    weighted=st.booleans(),
    sparse=st.booleans(),
    mean=st.sampled_from([0.0, 100.0]),
    calls=st.integers(1, 2),
)
def test_equal_to_the_pairs_of_all_rows(
    Estimator, seed, sizes, d, share, weighted, sparse, mean, calls
):
    n, rng = sum(sizes) + 60, np.random.default_rng(seed)
    X = rows_with_holes(seed, n, d, share, mean)
    X = np.where(np.abs(X) < 0.3 * sparse, 0.0, X)
    clients = rng.permutation(np.repeat(np.arange(len(sizes) + 1), [*sizes, 60]))
    weight = rng.integers(0, 4, n) if weighted else None
    pca = Estimator(d - 1, missing=AvailablePairs())
    with np.errstate(all="raise"):
        first = clients >= len(sizes) if calls == 2 else np.ones(n, bool)
        for at in (first, ~first)[:calls]:
            rows, w = (
                sp.csr_array(X[at]) if sparse else X[at],
                None if weight is None else weight[at],
            )
            pca.partial_fit(rows, clients=clients[at], sample_weight=w)
    assert_is_of_pairs(pca, X, weight)
    assert_allclose(covariance_of_pairs(X), pd.DataFrame(X).cov(), atol=1e-9 * (1 + mean**2))
    if share == 0 and weight is None:
        whole = Estimator(d - 1).fit(X)
        assert_allclose(pca.noise_variance_, whole.noise_variance_, rtol=1e-8)
        assert_allclose(pca.components_, whole.components_, atol=1e-6)


@BOTH
def test_means_far_from_zero_a_column_that_a_site_lacks_and_single_precision(Estimator):
    X, clients = rows_with_holes(2, 200, 5, mean=1e8), np.arange(200) // 100
    X[:100] += 3.0  # two sites whose means differ
    pca = fit(Estimator, X, clients=clients)
    assert_is_of_pairs(pca, X, mean_tol=1e-7)  # a mean is one float: eps of 2e8 is 3e-8
    X = rows_with_holes(3, 200, 4, mean=1e4)
    X[clients == 0, 2] = np.nan
    pca = fit(Estimator, X, clients=clients)
    assert_is_of_pairs(pca, X)
    near = X.astype(np.float32)
    single = fit(Estimator, near, clients=clients)
    assert single.components_.dtype == np.float32 == single.transform(near).dtype
    double = fit(Estimator, near.astype(float), clients=clients)
    assert_allclose(single.explained_variance_, double.explained_variance_, rtol=1e-5)


@BOTH
def test_pairs_that_nobody_has_and_too_few_rows_of_a_pair_raise_and_change_nothing(Estimator):
    X = pd.DataFrame(rows_with_holes(4, 60, 4, share=0.0), columns=["age", "bmi", "iron", "zinc"])
    clients = np.arange(60) // 30
    X.loc[clients == 0, "zinc"] = np.nan
    pca = fit(Estimator, X, clients=np.zeros(60, int))
    before = pca.components_.copy()
    X.loc[clients == 1, "iron"] = np.nan
    with pytest.raises(ValueError, match=r"'iron' and 'zinc'.* 0 rows .*min_rows=2"):
        pca.fit(X, clients=clients)
    assert_allclose(pca.components_, before)
    with pytest.raises(ValueError, match=r"column 1.* 0 rows"):
        fit(Estimator, np.where(np.arange(4) == 1, np.nan, np.ones((5, 4))))
    X = rows_with_holes(5, 30, 3, share=0.0)
    X[:20, 0], X[25:, 1] = np.nan, np.nan
    assert_is_of_pairs(fit(Estimator, X, 2, min_rows=5), X)
    with pytest.raises(ValueError, match=r"columns 0 and 1.* 5 rows .*min_rows=6"):
        fit(Estimator, X, 2, min_rows=6)


@BOTH
def test_negative_eigenvalues_are_set_to_zero_and_told(Estimator):
    """Three correlations by pairs are near 1, 1 and -1."""
    rng, nan = np.random.default_rng(0), np.full(200, np.nan)
    a, noise = rng.standard_normal(200), 0.1 * rng.standard_normal((3, 200))
    pairs = [(a, a + noise[0], nan), (nan, a, a + noise[1]), (a, nan, -a + noise[2])]
    X = np.concatenate([np.column_stack(columns) for columns in pairs])
    values = np.linalg.eigvalsh(covariance_of_pairs(X))
    assert values[0] < -0.3
    pca = fit(Estimator, X, 1)  # its variance is far above the negative one
    assert_allclose(pca.negative_variance_, -values[0], rtol=1e-10)
    assert_is_of_pairs(pca, X)
    with pytest.warns(UserWarning, match=r"negative eigenvalues, down to -.*: 1 of 3"):
        fit(Estimator, X, 3)
    assert fit(Estimator, np.nan_to_num(X), 3).negative_variance_ == 0


@pytest.mark.filterwarnings("ignore:.*negative:UserWarning")
@pytest.mark.parametrize("Estimator", [FederatedPCA, DistributedPCA])
@pytest.mark.parametrize("n_components", [None, 9])
def test_variances_below_a_negative_one_are_no_reason_to_fill_in_the_mean(Estimator, n_components):
    X = scale(load_breast_cancer().data[:, :10])
    holes = np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X)
    lost = np.isnan(holes)
    pca = Estimator(n_components, missing=AvailablePairs()).fit(holes)
    assert pca.negative_variance_ > pca.noise_variance_
    assert np.std((pca.impute(holes) - X)[lost]) < 0.6  # that of means: 1


def test_a_client_leaves_and_what_models_of_pairs_have_not():
    X, clients = rows_with_holes(12, 90, 4), np.arange(90) % 3
    pca = fit(FederatedPCA, X, clients=clients).remove(1)
    assert (pca.clients_, pca.n_samples_) == ([0, 2], 60)
    assert_is_of_pairs(pca, X[clients != 1])
    assert pca.subspace_error_bound_ == np.inf
    with pytest.raises(AttributeError, match="r_factor_"):
        fit(DistributedPCA, X, 2).r_factor_  # noqa: B018
    assert not hasattr(FederatedPCA(2), "impute")


# ------------------------------------------------------------------------------ files


def test_files_give_the_numbers_of_one_process(tmp_path):
    X = pd.DataFrame(rows_with_holes(13, 90, 4, mean=50.0), columns=list("abcd"))
    clients = np.array(["north", "south", "west"])[np.arange(90) % 3]
    here, moments = fit(FederatedPCA, X, clients=clients), []
    for site in np.unique(clients):
        file = tmp_path / f"{site}.pairs"
        PairMoments.from_rows(X[clients == site]).save(file, site=str(site))
        moments.append(PairMoments.load(file))
        assert file.stat().st_size == moments[-1].nbytes
    pca = FederatedPCA.from_pairs(iter(moments), 3)
    for name in ("components_", "explained_variance_", "mean_", "noise_variance_"):
        assert np.array_equal(getattr(pca, name), getattr(here, name)), name
    assert pca.clients_ == ["north", "south", "west"]
    assert pca.communication_.floats_up == 3 * (2 * 4 * 5 + 1)
    assert pca.feature_names_in_.tolist() == list("abcd")
    first, second = (PairMoments.from_rows(X[:45].astype(dtype)) for dtype in ("f4", "f8"))
    for pairs, dtype in (([first] * 2, "f4"), ([first, second], "f8")):
        assert FederatedPCA.from_pairs(pairs, 3).components_.dtype == dtype
    other = PairMoments.from_rows(X.rename(columns={"a": "e"}))._replace(site="other")
    with pytest.raises(ValueError, match="lacks 'a'"):
        FederatedPCA.from_pairs([moments[0], other], 3)
    pca.partial_fit(X, clients=["east"] * 90)
    assert_is_of_pairs(pca, np.concatenate([X, X]))
    assert pca.summaries_["east"].site == "east"  # as the others know theirs


def test_memory_is_that_of_three_matrices_and_a_block():
    """Also of as many rows as a block has that have no weight, which are as absent."""
    X = rows_with_holes(19, 260, 1000)
    assert peak_bytes(lambda: PairMoments.from_rows(X)) < 3 * 8 * 1000**2 + 8 * 256 * 1000 * 8
    absent, w = np.full((262, 1000), 1e300), np.repeat([0.0, 1.0], [262, 260])
    found = PairMoments.from_rows(np.concatenate([absent, X]), sample_weight=w)
    assert found.n_samples == 260
    assert_allclose(found.covariance()[:9, :9], covariance_of_pairs(X[:, :9]), rtol=0, atol=1e-13)


def test_moments_that_no_rows_have_are_refused():
    """A server's side: what a site sends cannot tilt the result beyond what rows could."""
    X = rows_with_holes(15, 50, 4)
    X[:25, 0], X[25:, 3] = np.nan, np.nan  # which no row has both
    m = PairMoments.from_rows(X)
    large = m._replace(products=1e200 * m.products)  # whose squares overflow
    for name, i, j, value, words in [
        ("counts", 0, 1, m.counts[0, 0] + 1, "counts"),
        ("counts", 0, 1, -1.0, "counts"),
        ("counts", 0, 0, 51.0, "n_samples"),
        ("counts", 0, 1, None, "counts must be symmetric"),
        ("products", 1, 1, -1.0, "products"),
        ("products", 0, 1, 2 * np.sqrt(m.products[0, 0] * m.products[1, 1]), "products"),
        ("products", 0, 1, 2e200 * np.sqrt(m.products[0, 0] * m.products[1, 1]), "products"),
        ("means", 0, 1, m.means[0, 0] + np.sqrt(m.products[0, 0]), "means"),
        ("means", 0, 1, np.nan, "means"),
        ("means", 0, 3, 1.0, "means must be 0"),
    ]:
        of = large if value is not None and value > 1e99 else m
        fields = {f: getattr(of, f) for f in ("counts", "means", "products", "origin", "n_samples")}
        fields[name] = fields[name].copy()
        fields[name][i, j] = m.counts[i, j] - 1 if value is None else value
        if name != "means" and value is not None:
            fields[name][j, i] = value
        with pytest.raises(ValueError, match=words):
            PairMoments(**fields)


def test_a_claim_of_rows_makes_no_infinite_variance():
    """Rows that lack all columns are in no pair, so that a site may claim as many as it likes."""
    sound, liar = (PairMoments.from_rows(rows_with_holes(seed, 50, 3)) for seed in (15, 16))
    for n, factor in ((1e308, 1e3), (1e200, 1e150)):
        products = liar.products * factor
        claim = PairMoments(liar.counts, liar.means, products, liar.origin, n)._replace(site="liar")
        with pytest.raises(ValueError, match=r"Client 'liar': .*too large"):
            FederatedPCA.from_pairs([sound._replace(site="a"), claim], 2)


def test_what_the_moments_of_a_site_give_away():
    """A pair of columns that one row has tells these entries; the guide says so."""
    X = rows_with_holes(16, 30, 3, share=0.0)
    X[1:, 0] = np.nan
    m = PairMoments.from_rows(X)
    assert m.counts[0, 1] == 1
    assert_allclose(m.origin[1] + m.means[1, 0], X[0, 1])


@BOTH
def test_pairs_of_less_than_two_rows_are_divided_by_half_of_their_weight(Estimator):
    """As the variances of a summary of so few rows."""
    X = np.array([[1.0, 2.0], [3.0, 5.0], [2.0, 0.0]])
    for w in np.array([[0.5, 0.5, 0.25], [0.2, 0.3, 0.2]]):
        Z = X - np.average(X, axis=0, weights=w)
        want = (Z.T * w) @ Z / (w.sum() / 2)
        found = PairMoments.from_rows(X, sample_weight=w).covariance(min_rows=0.5)
        assert_allclose(found, want)
        pca = fit(Estimator, X, 2, clients=[0, 0, 1], weight=w, min_rows=0.5)
        assert_allclose(pca.explained_variance_, np.linalg.eigvalsh(want)[::-1])


# -------------------------------------------------------------------------- filled in over rounds


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


def test_columns_that_no_row_has_together_are_named():
    X, halves = rows_with_holes(0, 400, 12, share=0.0), np.arange(400) % 2
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
    of_many = (500, 20, 0.3, [10, 6, 3]), (500, 20, 0.5, [10, 6, 3]), (500, 6, 0.7, [20])
    for n, d, share, spikes in (*of_many, (120, 14, 0.4, [30, 15])):
        X, _ = make_spiked(n, d, spikes=spikes, random_state=0)
        X[np.random.default_rng(0).random(X.shape) < share] = np.nan
        pca = FederatedPCA("held-out", missing=ConditionalFill()).fit(X, clients=np.arange(n) % 3)
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
