"""Numbers of components that are counted: against scikit-learn, loops by the book, and rows."""

from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from golden_cases import NAMES
from helpers import naming
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.special import gammaln
from sklearn.datasets import load_diabetes, load_digits, load_wine
from sklearn.decomposition import PCA
from sklearn.preprocessing import scale
from summary_helpers import examples

from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    StreamingPCA,
    Subspace,
    SubspaceMerge,
    make_spiked,
    merge_subspaces,
    parallel_analysis,
)
from fedpca_sklearn.summary import _rank_selection
from fedpca_sklearn.summary._rank_selection import minka_evidence

DIGITS = load_digits().data
SPIKED = make_spiked(400, 20, spikes=[8, 5, 3], random_state=3)[0]


def every_route(X, rule, n_sites=5):
    """The same rows by clients, batches, factors, files, and sparse."""
    clients = np.arange(len(X)) % n_sites
    yield FederatedPCA(rule).fit(X, clients=clients)
    yield FederatedPCA(rule, merge=SubspaceMerge(fan_in=2)).fit(X, clients=clients)
    yield DistributedPCA(rule).fit(X, clients=clients)
    yield StreamingPCA(rule).fit(np.array_split(X, n_sites))
    yield StreamingPCA(rule).fit(sp.csr_array(X))
    files = [Subspace.from_rows(X[clients == i]).to_bytes() for i in range(n_sites)]
    yield FederatedPCA.from_subspaces([Subspace.from_bytes(file) for file in files], rule)


# ------------------------------------------------------------------------------ Minka


def evidence_by_the_book(spectrum, rank, n):
    """Minka (2000), eq. 30 and 31, pair by pair."""
    d = len(spectrum)
    noise = spectrum[rank:].mean()
    replaced = np.append(spectrum[:rank], np.full(d - rank, noise))
    m = d * rank - rank * (rank + 1) / 2
    i = np.arange(1, rank + 1)
    log_pu = -rank * np.log(2) + np.sum(gammaln((d - i + 1) / 2) - np.log(np.pi) * (d - i + 1) / 2)
    log_az = sum(
        np.log(1 / replaced[j] - 1 / replaced[i]) + np.log(spectrum[i] - spectrum[j]) + np.log(n)
        for i in range(rank)
        for j in range(i + 1, d)
    )
    log_likelihood = np.log(spectrum[:rank]).sum() + (d - rank) * np.log(noise)
    counted = (m + rank) * np.log(2 * np.pi) - log_az - rank * np.log(n)
    return log_pu - n / 2 * log_likelihood + counted / 2


@examples(60)
@given(
    d=st.integers(2, 12),
    more=st.integers(0, 60),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    seed=st.integers(0, 999),
)
def test_the_evidence_is_minkas(d, more, scale, seed):
    rng = np.random.default_rng(seed)
    spectrum = scale * np.sort(rng.exponential(size=d) + 0.1)[::-1]
    by_the_book = [evidence_by_the_book(spectrum, r, d + more) for r in range(1, d)]
    assert_allclose(minka_evidence(spectrum, d + more), by_the_book, rtol=1e-9, atol=1e-7)


@pytest.mark.parametrize(
    "X",
    [
        SPIKED[:300],
        make_spiked(40, 40, spikes=[9, 5, 2], random_state=1)[0],  # n = d: no variance along one
        1e6 + 1e-3 * make_spiked(60, 8, spikes=[9, 5], random_state=2)[0],
        load_wine().data,
        DIGITS,  # with constant columns
        np.random.default_rng(0).standard_normal((50, 1)) @ [[3.0, 4.0]],  # on a line
    ],
    ids=["spiked", "square", "far", "wine", "digits", "line"],
)
def test_mle_is_that_of_scikit_learn_on_pooled_rows(X):
    pooled = PCA("mle").fit(X)
    for pca in every_route(X, "mle"):
        assert pca.n_components_ == pooled.n_components_
        tol = {"rtol": 1e-7, "atol": 1e-12 * pooled.explained_variance_[0]}
        assert_allclose(pca.explained_variance_, pooled.explained_variance_, **tol)
        assert_allclose(pca.noise_variance_, pooled.noise_variance_, **tol)


def test_mle_of_equal_variances_of_one_column_and_of_constant_rows():
    X = np.concatenate([np.eye(4), -np.eye(4)])  # the logarithm of a difference of zero
    assert 1 <= StreamingPCA("mle").fit(X).n_components_ <= 3
    for few in (np.arange(5.0)[:, None], np.ones((5, 3))):
        assert StreamingPCA("mle").fit(few).n_components_ == 1


def test_a_stream_of_single_rows_needs_a_first_batch_for_mle():
    X = make_spiked(60, 5, spikes=[9], random_state=0)[0]
    pca = StreamingPCA("mle")
    with pytest.raises(ValueError, match="n_samples >= n_features"):
        pca.partial_fit(X[:1])
    assert not hasattr(pca, "components_")
    pca.partial_fit(X[:5])
    for row in X[5:]:
        pca.partial_fit(row[None])
    assert pca.n_components_ == PCA("mle").fit(X).n_components_ == 1


# ------------------------------------------------------------------------------ parallel analysis


def thresholds_from_rows(X, level, n_draws, rng):
    """Quantiles and deviations of eigenvalues of normal rows with the columns' variances of X."""
    draws = []
    for _ in range(n_draws):
        rows = rng.standard_normal(X.shape)
        rows *= X.std(axis=0) / rows.std(axis=0)
        draws.append(np.linalg.eigvalsh(np.cov(rows.T))[::-1])
    return np.quantile(draws, 1 - level, axis=0), np.std(draws, axis=0)


def test_every_route_gives_the_number_of_spikes():
    for pca in every_route(SPIKED, "parallel"):
        assert pca.n_components_ == 3
        assert_allclose(pca.explained_variance_, PCA(3).fit(SPIKED).explained_variance_)
    assert parallel_analysis(Subspace.from_rows(SPIKED, center=False)).n_components == 3
    wide = make_spiked(60, 400, spikes=[90, 60], random_state=0)[0]
    assert StreamingPCA("parallel").fit(wide).n_components_ == 2
    assert parallel_analysis(Subspace.from_rows(SPIKED), level=0.001).n_components == 3
    # of which 49 are .9999999999999999
    assert parallel_analysis(Subspace.from_rows(SPIKED), level=1 / 49, n_draws=48).n_components == 3


@pytest.mark.parametrize(("level", "exceeded"), [(0.05, 10), (0.1, 20)])
def test_a_threshold_is_exceeded_with_the_probability_that_is_stated(level, exceeded, monkeypatch):
    """Another draw is above that of rank r of 199 with a probability of (200 - r) / 200."""
    draws = np.random.default_rng(0).permutation(199)[:, None] * np.ones(8)
    monkeypatch.setattr(_rank_selection, "null_variances", lambda *_: draws)
    found = parallel_analysis(Subspace.from_rows(SPIKED[:, :8]), level=level, n_draws=199)
    assert_array_equal(found.thresholds, 200 - exceeded - 1)


@pytest.mark.parametrize("shape", [(90, 8), (12, 20)], ids=["tall", "wide"])
def test_thresholds_are_those_of_drawn_rows(shape):
    rng = np.random.default_rng(0)
    X = rng.standard_normal(shape) * np.linspace(3, 1, shape[1])
    expected, spread = thresholds_from_rows(X, 0.05, 999, rng)
    summary = Subspace.from_rows(X)
    found = parallel_analysis(summary, n_draws=999).thresholds
    size = min(shape[0] - 1, shape[1])
    assert found.shape == (size,)
    # of normal draws: sqrt(level (1 - level) / 999) over the density at the quantile
    error = spread[:size] * np.sqrt(0.05 * 0.95 / 999) / stats.norm.pdf(stats.norm.ppf(0.95))
    assert np.all(np.abs(found - expected[:size]) < 5 * np.sqrt(2) * error)
    assert_array_equal(parallel_analysis(summary, n_draws=999).thresholds, found)
    other = parallel_analysis(summary, n_draws=999, random_state=1)
    assert not np.array_equal(other.thresholds, found)
    few = parallel_analysis(summary, n_draws=19).thresholds  # the largest of 19
    assert not np.array_equal(few, parallel_analysis(summary).thresholds)


@pytest.mark.parametrize("m", [2, 3, 9])
def test_two_independent_columns_have_the_correlation_of_the_book(m):
    """r^2 of m + 1 normal rows is Beta(1 / 2, (m - 1) / 2); variances are 1 + r and 1 - r."""
    found = _rank_selection.null_variances(np.ones(2), m, 4000, np.random.default_rng(m))
    assert_allclose(found.sum(axis=1), 2.0)
    assert stats.kstest((found[:, 0] - 1) ** 2, stats.beta(0.5, (m - 1) / 2).cdf).pvalue > 0.01


@examples(30)
@given(seed=st.integers(0, 10_000), n_sites=st.integers(2, 12), d=st.integers(3, 40))
def test_sites_count_what_pooled_rows_count(seed, n_sites, d):
    rng = np.random.default_rng(seed)
    k = rng.integers(0, 3)
    X = make_spiked(n_sites * 8, d, spikes=rng.uniform(2, 9, k), random_state=seed)[0]
    pooled = parallel_analysis(Subspace.from_rows(X))
    merged = merge_subspaces([Subspace.from_rows(part) for part in np.array_split(X, n_sites)])
    weight = np.arange(len(X)) % 3
    weighted = parallel_analysis(Subspace.from_rows(X, sample_weight=weight))
    repeated = parallel_analysis(Subspace.from_rows(np.repeat(X, weight, axis=0)))
    for one, other in ((parallel_analysis(merged), pooled), (weighted, repeated)):
        assert one.n_components == other.n_components
        assert_allclose(one.thresholds, other.thresholds, rtol=1e-9)


def test_at_least_one_component_is_shown_whatever_number_of_rows_a_site_claims():
    X = np.random.default_rng(3).standard_normal((200, 6))
    assert parallel_analysis(Subspace.from_rows(X)).n_components == 0
    for rows in (X, np.ones((4, 3)), np.ones((1, 3))):
        assert StreamingPCA("parallel").fit(rows).n_components_ == 1
    whole = Subspace.from_rows(np.random.default_rng(0).standard_normal((60, 4)) * [4, 3, 2, 1])
    claims = [whole._replace(n_samples=float(n)) for n in (1e-300, 2**53, 2**64, 1e300)]
    found = [FederatedPCA.from_subspaces([one], "parallel").n_components_ for one in claims]
    assert found == [1, 2, 2, 2]


def test_a_cut_summary_is_counted_where_not_all_that_it_keeps_counts():
    summary = Subspace.from_rows(SPIKED)
    analysis = parallel_analysis(summary.truncate(4))
    assert analysis.n_components == 3
    assert analysis.cut
    assert not parallel_analysis(summary).cut
    assert parallel_analysis(Subspace.from_estimator(PCA().fit(SPIKED))).n_components == 3


# ------------------------------------------------------------------------------ entries held out


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
    parts = [(X[fold == i], X[fold != i]) for i in range(n_folds)]
    return np.array(
        [
            sum(np.sum((predicted(rows, train, r) - rows) ** 2) for rows, train in parts)
            for r in range(most + 1)
        ]
    )


@cache
def tables():
    digits = DIGITS[:600]
    return {
        "spiked": make_spiked(500, 20, spikes=[10, 6, 3], random_state=0)[0],
        "weak": make_spiked(300, 40, spikes=[3, 2, 1.2, 0.8], random_state=1)[0],
        "wine": scale(load_wine().data),
        "digits": digits[:, digits.std(axis=0) > 0],
        "few rows": make_spiked(40, 60, spikes=[20, 10], random_state=0)[0],
    }


@pytest.mark.parametrize("name", tables())
def test_as_many_as_cross_validation_by_hand_finds(name):
    X = tables()[name]
    most = min(X.shape[1] - 1, len(X) * 9 // 10 - 2)
    errors, found = by_hand(X, most), StreamingPCA("held-out").fit(X).n_components_
    assert errors[found] <= 1.02 * errors.min()


def test_hardly_more_rows_than_columns_do_not_take_all_components():
    X = scale(load_diabetes().data)
    for seed in range(30):
        rows, others = np.split(np.random.default_rng(seed).permutation(X), [12])
        errors = [np.sum((predicted(others, rows, r) - others) ** 2) for r in range(10)]
        found = StreamingPCA("held-out").fit(rows).n_components_
        assert errors[found] < 1.5 * min(errors[1:])


def test_sites_streams_and_sparse_rows_hold_out_the_same():
    X = tables()["spiked"]
    found = {pca.n_components_ for pca in every_route(X, "held-out")}
    found |= {StreamingPCA("held-out").fit(1e150 * X).n_components_}
    assert len(found) == 1
    cut = Subspace.from_estimator(PCA(8).fit(X))  # which knows no scatter of columns
    assert FederatedPCA.from_subspaces([cut], "held-out").n_components_ == 3
    rng = np.random.default_rng(0)
    low = rng.standard_normal((50, 3)) @ rng.standard_normal((3, 8))
    constant = np.hstack([X, np.full((500, 2), 7.0)])
    few = np.ones((1, 4)), np.ones((5, 4)), rng.standard_normal((3, 1))
    for rows, number in ((low, {3}), (constant, found), *((rows, {1}) for rows in few)):
        assert {StreamingPCA("held-out").fit(rows).n_components_} == number


def test_columns_without_variance_change_no_number_of_components():
    for seed in range(20):
        X = np.random.default_rng(seed).standard_normal((60, 4)) * [4, 3, 2, 1]
        with_constant = np.hstack([X, np.full((len(X), 2), 7.0)])
        alone, both = (StreamingPCA("held-out").fit(Z).n_components_ for Z in (X, with_constant))
        assert both == alone


# ------------------------------------------------------------------------------ who cannot count

VALUES = {
    **NAMES,
    "DIGITS": DIGITS,
    "SPIKED": SPIKED,
    "WIDE": SPIKED[:9, :10],
    "WHOLE": Subspace.from_rows(SPIKED),
    "CUT": Subspace.from_rows(DIGITS, 8),
    "NOISY": Subspace.from_rows(SPIKED)._replace(
        privacy=(1.0, 1e-6, 10.0, "AnalyzeGauss", "client")
    ),
}
GAUSS = "mechanism=AnalyzeGauss(1.0, 1e-6, 10.0)"
FEW = "n_components='mle' is only supported if n_samples >= n_features, got n_samples=9"
WRONG = f"""
FederatedPCA("mle").fit(WIDE) | {FEW} and n_features=10
FederatedPCA.from_subspaces([CUT] * 3, "mle") | 'mle' needs the variances .* keeps .* of 64
parallel_analysis(WHOLE.truncate(3)) | keeps 3 directions, all of which
parallel_analysis(Subspace.from_estimator(PCA(5).fit(SPIKED))) | column_scatter=None
parallel_analysis(WHOLE, level=0) | level must be in .0, 1., got 0
parallel_analysis(WHOLE, n_draws=18) | integer of at least 19 with level=0.05, got 18
parallel_analysis(WHOLE, level=1e-4) | integer of at least 9999 with level=0.0001, got None
parallel_analysis(DIGITS) | subspace must be a Subspace, .* got ndarray
FederatedPCA("parallel", {GAUSS}).fit(SPIKED) | n_components='parallel' .* a mechanism adds noise
FederatedPCA("mle", {GAUSS}, scale=True).fit(SPIKED) | 'mle' .* mechanism=AnalyzeGauss
FederatedPCA.from_subspaces([NOISY], "mle") | 'mle' .*noise of a privacy mechanism
StreamingPCA.from_subspace(NOISY, "mle") | 'mle' .*noise of a privacy mechanism
parallel_analysis(NOISY) | 'parallel' .*noise of a privacy mechanism
FederatedPCA("held-out", missing=AvailablePairs()).fit(SPIKED) | held-out
FederatedPCA("parallel", merge=NoiseAwareMerge()).fit(DIGITS) | 'parallel' must be an integer
FederatedPCA("parallel", merge=SubspaceMerge(truncate=True)).fit(DIGITS) | must be an integer
StreamingPCA("parallel", rank_rule=ContributionBounds()).fit(DIGITS) | must be an integer or None
TruncatedDistributedPCA("parallel").fit(DIGITS) | parameter of TruncatedDistributedPCA
"""


def test_who_cannot_count_says_why():
    for row in WRONG.strip().splitlines():
        code, words = row.split(" | ")
        kind = TypeError if "got ndarray" in words else ValueError
        with naming(row), pytest.raises(kind, match=words):
            eval(code, dict(VALUES))
