"""Numbers of components that are counted: against scikit-learn, loops by the book, and rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.special import gammaln
from sklearn.datasets import load_digits, load_wine
from sklearn.decomposition import PCA

from fedpca_sklearn import (
    AnalyzeGauss,
    ContributionBounds,
    DistributedPCA,
    FederatedPCA,
    NoiseAwareMerge,
    ProjectionAverage,
    RobustMerge,
    StreamingPCA,
    Subspace,
    SubspaceMerge,
    TruncatedDistributedPCA,
    make_spiked,
    merge_subspaces,
    parallel_analysis,
)
from fedpca_sklearn._kernels.minka import minka_evidence

DIGITS = load_digits().data


def every_route(X, rule, n_sites=5):
    """The same rows by clients, batches, factors and files."""
    clients = np.arange(len(X)) % n_sites
    yield FederatedPCA(rule).fit(X, clients=clients)
    yield FederatedPCA(rule, merge=SubspaceMerge(fan_in=2)).fit(X, clients=clients)
    yield DistributedPCA(rule).fit(X, clients=clients)
    yield StreamingPCA(rule).fit(np.array_split(X, n_sites))
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
    return (
        log_pu
        - n / 2 * np.log(spectrum[:rank]).sum()
        - n * (d - rank) / 2 * np.log(noise)
        + (m + rank) / 2 * np.log(2 * np.pi)
        - log_az / 2
        - rank / 2 * np.log(n)
    )


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
        make_spiked(300, 12, spikes=[9, 5, 2], random_state=0)[0],
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
        rtol = {"rtol": 1e-7, "atol": 1e-12 * pooled.explained_variance_[0]}
        assert_allclose(pca.explained_variance_, pooled.explained_variance_, **rtol)
        assert_allclose(pca.noise_variance_, pooled.noise_variance_, **rtol)


def test_equal_variances_are_no_error():
    X = np.concatenate([np.eye(4), -np.eye(4)])  # the logarithm of a difference of zero
    assert 1 <= StreamingPCA("mle").fit(X).n_components_ <= 3


def test_mle_of_one_column_and_of_constant_rows():
    assert StreamingPCA("mle").fit(np.arange(5.0)[:, None]).n_components_ == 1
    assert StreamingPCA("mle").fit(np.ones((5, 3))).n_components_ == 1


@pytest.mark.parametrize(
    "make", [FederatedPCA, DistributedPCA, StreamingPCA], ids=lambda make: make.__name__
)
def test_mle_needs_as_many_rows_as_features(make):
    X = np.random.default_rng(0).standard_normal((9, 10))
    message = "n_components='mle' is only supported if n_samples >= n_features"
    with pytest.raises(ValueError, match=message):
        PCA("mle").fit(X)
    with pytest.raises(ValueError, match=f"{message}, got n_samples=9 and n_features=10"):
        make("mle").fit(X)


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


def test_mle_needs_all_directions():
    cut = [Subspace.from_rows(X, 8) for X in np.array_split(DIGITS, 3)]
    with pytest.raises(ValueError, match=r"'mle' needs the variances .* keeps 26 of 64"):
        FederatedPCA.from_subspaces(cut, "mle")


# ------------------------------------------------------------------------------ parallel analysis


def thresholds_from_rows(X, level, n_draws, rng):
    """Quantiles and deviations of eigenvalues of normal rows with the columns' variances of X."""
    draws = []
    for _ in range(n_draws):
        rows = rng.standard_normal(X.shape)
        rows *= X.std(axis=0) / rows.std(axis=0)
        draws.append(np.linalg.eigvalsh(np.cov(rows.T))[::-1])
    return np.quantile(draws, 1 - level, axis=0), np.std(draws, axis=0)


@pytest.mark.parametrize("shape", [(90, 8), (12, 20)], ids=["tall", "wide"])
def test_thresholds_are_those_of_drawn_rows(shape):
    rng = np.random.default_rng(0)
    X = rng.standard_normal(shape) * np.linspace(3, 1, shape[1])
    expected, spread = thresholds_from_rows(X, 0.05, 999, rng)
    found = parallel_analysis(Subspace.from_rows(X), n_draws=999).thresholds
    size = min(shape[0] - 1, shape[1])
    assert found.shape == (size,)
    # of normal draws: sqrt(level (1 - level) / 999) over the density at the quantile
    error = spread[:size] * np.sqrt(0.05 * 0.95 / 999) / stats.norm.pdf(stats.norm.ppf(0.95))
    assert np.all(np.abs(found - expected[:size]) < 5 * np.sqrt(2) * error)


def test_the_level_is_the_chance_of_a_component_where_there_is_none():
    rng = np.random.default_rng(1)
    found = 0
    for seed in range(400):
        X = rng.standard_normal((30, 4)) * [3, 2, 1, 1]
        analysis = parallel_analysis(
            Subspace.from_rows(X), level=0.25, n_draws=19, random_state=seed
        )
        found += analysis.n_components > 0
    least, most = stats.binom(400, 0.25).interval(1 - 1e-4)
    assert least <= found <= most


@given(seed=st.integers(0, 10_000), n_sites=st.integers(2, 12), d=st.integers(3, 40))
def test_sites_count_what_pooled_rows_count(seed, n_sites, d):
    rng = np.random.default_rng(seed)
    k = rng.integers(0, 3)
    X = make_spiked(n_sites * 8, d, spikes=rng.uniform(2, 9, k), random_state=seed)[0]
    pooled = parallel_analysis(Subspace.from_rows(X))
    parts = [Subspace.from_rows(part) for part in np.array_split(X, n_sites)]
    merged = parallel_analysis(merge_subspaces(parts))
    assert merged.n_components == pooled.n_components
    assert_allclose(merged.thresholds, pooled.thresholds, rtol=1e-9)


def test_every_route_gives_the_number_of_spikes():
    X = make_spiked(500, 20, spikes=[8, 5, 3], random_state=3)[0]
    for pca in every_route(X, "parallel"):
        assert pca.n_components_ == 3
        assert_allclose(pca.explained_variance_, PCA(3).fit(X).explained_variance_)


def test_parallel_analysis_of_standardised_digits_and_of_wide_rows():
    X = load_wine().data
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    expected, _ = thresholds_from_rows(X, 0.05, 199, np.random.default_rng(0))
    count = int(np.argmin(np.linalg.eigvalsh(np.cov(X.T))[::-1] > expected))
    assert parallel_analysis(Subspace.from_rows(X)).n_components == count == 3
    wide = make_spiked(60, 400, spikes=[90, 60], random_state=0)[0]
    assert StreamingPCA("parallel").fit(wide).n_components_ == 2


def test_at_least_one_component_is_shown():
    X = np.random.default_rng(3).standard_normal((200, 6))
    assert parallel_analysis(Subspace.from_rows(X)).n_components == 0
    assert StreamingPCA("parallel").fit(X).n_components_ == 1
    assert StreamingPCA("parallel").fit(np.ones((4, 3))).n_components_ == 1
    assert StreamingPCA("parallel").fit(np.ones((1, 3))).n_components_ == 1


def test_any_number_of_rows_that_a_site_claims_is_counted_with():
    whole = Subspace.from_rows(np.random.default_rng(0).standard_normal((60, 4)) * [4, 3, 2, 1])
    claims = [whole._replace(n_samples=float(n)) for n in (1e-300, 2**53, 2**64, 1e300)]
    found = [FederatedPCA.from_subspaces([one], "parallel").n_components_ for one in claims]
    assert found == [1, 2, 2, 2]


def test_the_thresholds_are_the_same_again():
    X = make_spiked(200, 10, spikes=[4], random_state=0)[0]
    first, second = (parallel_analysis(Subspace.from_rows(X)) for _ in range(2))
    assert_array_equal(first.thresholds, second.thresholds)
    other = parallel_analysis(Subspace.from_rows(X), random_state=1)
    assert not np.array_equal(first.thresholds, other.thresholds)


def test_a_cut_summary_is_refused_where_all_that_it_keeps_counts():
    X = make_spiked(400, 20, spikes=[8, 5, 3], random_state=3)[0]
    summary = Subspace.from_rows(X)
    analysis = parallel_analysis(summary.truncate(4))
    assert analysis.n_components == 3
    assert analysis.cut
    assert not parallel_analysis(summary).cut
    with pytest.raises(ValueError, match="keeps 3 directions, all of which"):
        parallel_analysis(summary.truncate(3))
    with pytest.raises(ValueError, match="keeps 2 directions, all of which"):
        FederatedPCA.from_subspaces([summary.truncate(2)], "parallel")


def test_variances_of_columns_from_all_directions_or_not_at_all():
    X = make_spiked(400, 20, spikes=[8, 5, 3], random_state=3)[0]
    assert parallel_analysis(Subspace.from_estimator(PCA().fit(X))).n_components == 3
    with pytest.raises(ValueError, match="columns are not known"):
        parallel_analysis(Subspace.from_estimator(PCA(5).fit(X)))


def test_about_the_origin_and_weights():
    X = make_spiked(300, 10, spikes=[6], random_state=0)[0]
    about_zero = Subspace.from_rows(X, center=False)
    assert parallel_analysis(about_zero).n_components == 1
    weight = np.arange(300) % 3
    weighted = parallel_analysis(Subspace.from_rows(X, sample_weight=weight))
    repeated = parallel_analysis(Subspace.from_rows(np.repeat(X, weight, axis=0)))
    assert_allclose(weighted.thresholds, repeated.thresholds)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"level": 0}, r"level must be in \(0, 1\), got 0"),
        ({"level": "high"}, r"level must be .* got 'high'"),
        ({"n_draws": 18}, r"n_draws must be an integer of at least 19 with level=0.05, got 18"),
        ({"n_draws": 19.5}, "n_draws must be an integer"),
    ],
)
def test_wrong_parameters_of_parallel_analysis_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        parallel_analysis(Subspace.from_rows(DIGITS[:20]), **wrong)


def test_rows_are_no_summary_to_parallel_analysis():
    with pytest.raises(TypeError, match=r"subspace must be a Subspace, .* got ndarray"):
        parallel_analysis(DIGITS)


# ------------------------------------------------------------------------------ who cannot count


@pytest.mark.parametrize("rule", ["parallel", "mle"])
def test_the_noise_of_a_mechanism_is_not_counted(rule):
    X = make_spiked(300, 10, spikes=[6], random_state=0)[0]
    mechanism = AnalyzeGauss(epsilon=1.0, delta=1e-6, row_norm=10.0)
    pca = FederatedPCA(rule, mechanism=mechanism, random_state=0)
    with pytest.raises(ValueError, match=f"n_components='{rule}' .* a mechanism adds noise"):
        pca.fit(X)
    for options in ({}, {"merge": RobustMerge()}, {"scale": True}, {"n_refinements": 1}):
        with pytest.raises(ValueError, match=f"n_components='{rule}' .* mechanism=AnalyzeGauss"):
            pca.set_params(**options).fit(X)
    stated = Subspace.from_rows(X)._replace(privacy=(1.0, 1e-6, 10.0, "AnalyzeGauss", "client"))
    with pytest.raises(ValueError, match=f"n_components='{rule}' .* noise of a privacy mechanism"):
        FederatedPCA.from_subspaces([stated], rule)


@pytest.mark.parametrize(
    "merge",
    [NoiseAwareMerge(), RobustMerge(), ProjectionAverage(), SubspaceMerge(truncate=True)],
    ids=lambda merge: type(merge).__name__,
)
def test_strategies_that_need_a_number_say_so(merge):
    with pytest.raises(ValueError, match="n_components='parallel' must be an integer"):
        FederatedPCA("parallel", merge=merge).fit(DIGITS)
    with pytest.raises(ValueError, match="n_components='mle' must be an integer"):
        FederatedPCA.from_subspaces([Subspace.from_rows(DIGITS)], "mle", merge=merge)


def test_a_rule_of_a_stream_starts_from_a_number():
    pca = StreamingPCA("parallel", rank_rule=ContributionBounds())
    with pytest.raises(ValueError, match="n_components='parallel' must be an integer or None"):
        pca.fit(DIGITS)


def test_the_truncated_baseline_has_no_noise_to_compare_with():
    with pytest.raises(ValueError, match="'n_components' parameter of TruncatedDistributedPCA"):
        TruncatedDistributedPCA("parallel").fit(DIGITS)


def test_memory_is_stated_for_all_directions():
    assert StreamingPCA("mle").memory_bytes(500) == StreamingPCA().memory_bytes(500)
