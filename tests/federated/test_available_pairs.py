"""Rows with missing entries at clients: covariances from the pairs that are there."""

import struct
import zlib

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers import peak_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from pair_helpers import covariance_of_pairs, nearest_model, rows_with_holes

from fedpca_sklearn import (
    AnalyzeGauss,
    AvailablePairs,
    ConditionalFill,
    DistributedPCA,
    FederatedPCA,
    PairMoments,
    PersonalizedPCA,
    StreamingPCA,
    SubspaceMerge,
    SubspaceTracker,
)

BOTH = pytest.mark.parametrize("Estimator", [FederatedPCA, DistributedPCA])
examples = settings(max_examples=25, derandomize=True, deadline=None, database=None)


def fit(Estimator, X, n_components=3, clients=None, weight=None, **parameters):
    pca = Estimator(n_components, missing=AvailablePairs(**parameters))
    return pca.fit(X, clients=clients, sample_weight=weight)


def assert_is_of_pairs(pca, X, weight=None, tol=1e-10, mean_tol=None):
    """Mean, variances and components are those of the pairwise covariance of all rows."""
    values, vectors = nearest_model(covariance_of_pairs(X, weight))
    k = pca.n_components_
    assert_allclose(pca.explained_variance_, values[:k], rtol=tol, atol=tol * values[0])
    assert_allclose(pca.explained_variance_ratio_, values[:k] / values.sum(), rtol=tol, atol=tol)
    rows = X if weight is None else np.repeat(X, weight, axis=0)
    origin = np.nanmean(rows, axis=0)
    mean = origin + np.nanmean(rows - origin, axis=0)
    assert_allclose(pca.mean_ - origin, mean - origin, atol=mean_tol or tol * np.sqrt(values[0]))
    for v, u, value in zip(pca.components_, vectors, values, strict=False):
        gap = np.sort(np.abs(values - value))[1]
        if gap > 1e-3 * values[0]:
            assert 1 - abs(v @ u) <= tol * values[0] / gap


def test_the_oracle_is_the_covariance_of_pandas():
    X = rows_with_holes(0, 40, 5)
    assert_allclose(covariance_of_pairs(X), pd.DataFrame(X).cov(), rtol=1e-12)


@pytest.mark.filterwarnings("ignore:The covariance of available pairs")
@BOTH
@examples
@given(
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 25), min_size=1, max_size=6),
    d=st.integers(2, 6),
    share=st.sampled_from([0.0, 0.1, 0.3]),
    weighted=st.booleans(),
    mean=st.sampled_from([0.0, 100.0]),
    calls=st.integers(1, 2),
)
def test_equal_to_the_pairs_of_all_rows(Estimator, seed, sizes, d, share, weighted, mean, calls):
    n = sum(sizes) + 60
    X = rows_with_holes(seed, n, d, share, mean)
    rng = np.random.default_rng(seed)
    clients = rng.permutation(np.repeat(np.arange(len(sizes) + 1), [*sizes, 60]))
    weight = rng.integers(0, 4, n) if weighted else None
    pca = Estimator(d - 1, missing=AvailablePairs())
    with np.errstate(all="raise"):
        first = clients >= len(sizes) if calls == 2 else np.ones(n, bool)
        for rows in (first, ~first)[:calls]:
            w = None if weight is None else weight[rows]
            pca.partial_fit(X[rows], clients=clients[rows], sample_weight=w)
    assert_is_of_pairs(pca, X, weight)


@BOTH
def test_rows_without_holes_are_pca(Estimator):
    X = rows_with_holes(1, 80, 6, share=0.0, mean=5.0)
    pca, pooled = fit(Estimator, X, clients=np.arange(80) % 3), Estimator(3).fit(X)
    for name in ("explained_variance_", "explained_variance_ratio_", "mean_", "noise_variance_"):
        assert_allclose(getattr(pca, name), getattr(pooled, name), rtol=1e-10)
    assert_allclose(pca.components_, pooled.components_, atol=1e-10)
    assert pca.n_samples_ == 80


@BOTH
def test_means_far_from_zero(Estimator):
    X = rows_with_holes(2, 200, 5, mean=1e8)
    X[:100] += 3.0  # two sites whose means differ
    pca = fit(Estimator, X, clients=np.arange(200) // 100)
    assert_is_of_pairs(pca, X, mean_tol=1e-7)  # a mean is one float: eps of 2e8 is 3e-8


@BOTH
def test_a_column_that_one_site_lacks(Estimator):
    X = rows_with_holes(3, 120, 4, mean=1e6)
    clients = np.arange(120) // 60
    X[clients == 0, 2] = np.nan
    assert_is_of_pairs(fit(Estimator, X, clients=clients), X)


@BOTH
def test_pairs_that_nobody_has_raise_and_change_nothing(Estimator):
    X = pd.DataFrame(rows_with_holes(4, 60, 4, share=0.0), columns=["age", "bmi", "iron", "zinc"])
    clients = np.arange(60) // 30
    X.loc[clients == 0, "zinc"] = np.nan
    pca = fit(Estimator, X.iloc[:, :4], clients=np.zeros(60, int))
    before = pca.components_.copy()
    X.loc[clients == 1, "iron"] = np.nan
    with pytest.raises(ValueError, match=r"'iron' and 'zinc'.* 0 rows .*min_rows=2"):
        pca.fit(X, clients=clients)
    assert_allclose(pca.components_, before)
    with pytest.raises(ValueError, match=r"column 1.* 0 rows"):
        fit(Estimator, np.where(np.arange(4) == 1, np.nan, np.ones((5, 4))))


def test_a_long_run_of_rows_without_weight():
    X = rows_with_holes(12, 2_000, 4)
    weight = np.repeat([0.0, 1.0], 1_000)
    for clients in (np.zeros(2_000, int), np.repeat([0, 1], 1_000)):  # a part of one, all of one
        assert_is_of_pairs(fit(FederatedPCA, X, clients=clients, weight=weight), X[1_000:])
    empty = PairMoments.from_rows(X, sample_weight=0 * weight)
    assert empty.n_samples == 0
    with pytest.raises(TypeError, match=r"pairs must be a sequence .*, got one PairMoments"):
        FederatedPCA.from_pairs(empty)


@BOTH
def test_the_least_number_of_rows_of_a_pair(Estimator):
    X = rows_with_holes(5, 30, 3, share=0.0)
    X[:20, 0], X[25:, 1] = np.nan, np.nan
    assert_is_of_pairs(fit(Estimator, X, 2, min_rows=5), X)
    with pytest.raises(ValueError, match=r"columns 0 and 1.* 5 rows .*min_rows=6"):
        fit(Estimator, X, 2, min_rows=6)
    with pytest.raises(ValueError, match="min_rows"):
        fit(Estimator, X, 2, min_rows=0)


def indefinite():
    """Rows whose three correlations by pairs are near 1, 1 and -1: a negative eigenvalue."""
    rng = np.random.default_rng(0)
    a, nan = rng.standard_normal(200), np.full(200, np.nan)
    noise = 0.1 * rng.standard_normal((3, 200))
    return np.concatenate(
        [
            np.c_[a, a + noise[0], nan],
            np.c_[nan, a, a + noise[1]],
            np.c_[a, nan, -a + noise[2]],
        ]
    )


@BOTH
def test_negative_eigenvalues_are_set_to_zero_and_told(Estimator):
    X = indefinite()
    values = np.linalg.eigvalsh(covariance_of_pairs(X))
    assert values[0] < -0.3
    pca = fit(Estimator, X, 1)  # its variance is far above the negative one
    assert_allclose(pca.negative_variance_, -values[0], rtol=1e-10)
    assert_is_of_pairs(pca, X)
    assert pca.explained_variance_ratio_.sum() <= 1
    with pytest.warns(UserWarning, match=r"negative eigenvalues, down to -.*: 1 of 3"):
        fit(Estimator, X, 3)
    complete = fit(Estimator, np.nan_to_num(X), 3)
    assert complete.negative_variance_ == 0


@BOTH
def test_sparse_rows_and_single_precision(Estimator):
    X = rows_with_holes(6, 90, 5)
    X[np.abs(X) < 0.3] = 0.0
    clients = np.arange(90) % 4
    dense = fit(Estimator, X, clients=clients)
    assert_is_of_pairs(dense, X)
    sparse = fit(Estimator, sp.csr_array(X), clients=clients)
    assert_allclose(sparse.components_, dense.components_, atol=1e-12)
    single = fit(Estimator, X.astype(np.float32), clients=clients)
    assert single.components_.dtype == np.float32 == single.transform(X.astype("f4")).dtype
    assert_allclose(single.explained_variance_, dense.explained_variance_, rtol=1e-5)


@BOTH
@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_infinity_is_no_missing_entry(Estimator, bad):
    X = rows_with_holes(7, 20, 3)
    X[12, 1] = bad
    with pytest.raises(ValueError, match=r"Client 1: .*infinity"):
        fit(Estimator, X, clients=np.arange(20) // 10)


@BOTH
def test_without_a_model_missing_entries_are_refused(Estimator):
    with pytest.raises(ValueError, match=r"missing=AvailablePairs"):
        Estimator(2).fit(rows_with_holes(8, 20, 3))


@BOTH
def test_what_is_sent_and_kept(Estimator):
    d, s = 6, 4
    X = rows_with_holes(9, 100, d)
    log = fit(Estimator, X, clients=np.arange(100) % s).communication_
    assert (log.rounds, log.floats_down) == (1, 0)
    assert log.floats_up == s * (2 * d * d + 2 * d + 1)


@BOTH
def test_rows_with_holes_are_transformed_by_conditional_means(Estimator):
    X = rows_with_holes(10, 300, 5, mean=10.0)
    pca = fit(Estimator, X, 2, clients=np.arange(300) % 3)
    V, noise = pca.components_, pca.noise_variance_
    C = (V.T * (pca.explained_variance_ - noise)) @ V + noise * np.eye(5)
    filled = pca.impute(X)
    for x, row, z in zip(X[:20], filled, pca.transform(X), strict=False):
        o = ~np.isnan(x)
        expected = pca.mean_ + C[:, o] @ np.linalg.solve(C[np.ix_(o, o)], (x - pca.mean_)[o])
        assert_allclose(row, np.where(o, x, expected), rtol=1e-10)
        assert_allclose(z, V @ (row - pca.mean_), atol=1e-10)
    whole = np.nan_to_num(X)
    assert_allclose(pca.transform(whole), (whole - pca.mean_) @ V.T, atol=1e-12)
    assert np.isfinite(pca.score_samples(X)).all()
    assert pca.score(X) == pytest.approx(pca.score_samples(X).mean())
    full = fit(Estimator, X, 5)  # no noise beside the components: the covariance itself
    C = full.get_covariance()
    x, o = X[0], ~np.isnan(X[0])
    expected = full.mean_ + C[:, o] @ np.linalg.solve(C[np.ix_(o, o)], (x - full.mean_)[o])
    assert_allclose(full.impute(X[:1])[0], np.where(o, x, expected), rtol=1e-8)


def test_what_pairs_cannot_do_is_refused():
    X = rows_with_holes(11, 40, 3)
    for name, value in {
        "estimator": StreamingPCA(2),
        "merge": SubspaceMerge(),
        "mechanism": AnalyzeGauss(1.0, 1e-5, 1.0),
        "n_refinements": 1,
        "tol": 0.1,
    }.items():
        pca = FederatedPCA(2, missing=AvailablePairs(), **{name: value})
        with pytest.raises(ValueError, match=f"{name} must be .* with missing=AvailablePairs"):
            pca.fit(X)
    pca = fit(FederatedPCA, X, 2)
    with pytest.raises(ValueError, match=r"missing=AvailablePairs.*refine"):
        pca.refine(X)
    assert pca.subspace_error_bound_ == np.inf
    with pytest.raises(ValueError, match=r"d=300.*at most 256.*DistributedPCA"):
        fit(FederatedPCA, np.ones((5, 300)))
    with pytest.raises(AttributeError, match="r_factor_"):
        fit(DistributedPCA, X, 2).r_factor_  # noqa: B018
    for Estimator in (FederatedPCA, DistributedPCA):
        for missing in (None, AvailablePairs()):
            pca = Estimator(2, missing=missing).fit(np.nan_to_num(X))
            pca.set_params(missing=AvailablePairs() if missing is None else None)
            with pytest.raises(ValueError, match="missing must not change"):
                pca.partial_fit(np.nan_to_num(X))
    assert not hasattr(FederatedPCA(2), "impute")


def test_a_client_leaves():
    X, clients = rows_with_holes(12, 90, 4), np.arange(90) % 3
    pca = fit(FederatedPCA, X, clients=clients).remove(1)
    assert (pca.clients_, pca.n_samples_) == ([0, 2], 60)
    assert_is_of_pairs(pca, X[clients != 1])


def test_a_tracker_at_a_client_that_lacks_a_column_is_refused():
    """Its summary would say that the column is zero, and half the rows would be there."""
    X, clients = rows_with_holes(17, 80, 4, mean=10.0), np.arange(80) // 40
    X[clients == 0, 2] = np.nan
    pca = FederatedPCA(2, estimator=SubspaceTracker(2))
    for rows in X, sp.csr_array(X):
        with pytest.raises(ValueError, match="Client 0: column 2 has no entries"):
            pca.fit(rows, clients=clients)
    X[0, 2] = 10.0
    assert pca.fit(X, clients=clients).mean_[2] > 5


# ------------------------------------------------------------------------------ files


def test_files_give_the_numbers_of_one_process(tmp_path):
    X = pd.DataFrame(rows_with_holes(13, 90, 4, mean=50.0), columns=list("abcd"))
    clients = np.array(["north", "south", "west"])[np.arange(90) % 3]
    here = fit(FederatedPCA, X, clients=clients)
    files = []
    for site in np.unique(clients):
        files.append(tmp_path / f"{site}.pairs")
        PairMoments.from_rows(X[clients == site]).save(files[-1], site=str(site))
        assert files[-1].stat().st_size == PairMoments.load(files[-1]).nbytes
    pca = FederatedPCA.from_pairs(map(PairMoments.load, files), 3)
    for name in ("components_", "explained_variance_", "mean_", "noise_variance_"):
        assert np.array_equal(getattr(pca, name), getattr(here, name)), name
    assert pca.clients_ == ["north", "south", "west"]
    assert pca.feature_names_in_.tolist() == list("abcd")
    with pytest.raises(ValueError, match="of site 'north'"):
        FederatedPCA.from_pairs([PairMoments.load(files[0])] * 2, 3)
    PairMoments.from_rows(X.rename(columns={"a": "e"})).save(tmp_path / "other", site="other")
    other = PairMoments.load(tmp_path / "other")
    for wrong, text in (([], "got None"), ([here.subspace_], "got \\['Subspace'\\]")):
        with pytest.raises(TypeError, match=text):
            FederatedPCA.from_pairs(wrong, 3)
    with pytest.raises(TypeError, match="missing must be AvailablePairs"):
        FederatedPCA.from_pairs([other], 3, missing=ConditionalFill())
    with pytest.raises(TypeError, match="PersonalizedPCA takes no moments of pairs"):
        PersonalizedPCA.from_pairs([other], 3)
    with pytest.raises(ValueError, match="lacks 'a'"):
        FederatedPCA.from_pairs([PairMoments.load(files[0]), other], 3)
    pca.partial_fit(X, clients=["east"] * 90)
    assert_is_of_pairs(pca, np.concatenate([X, X]))


def test_a_file_may_come_from_anybody():
    moments = PairMoments.from_rows(rows_with_holes(14, 30, 3))
    data = moments.to_bytes()
    same = PairMoments.from_bytes(data)
    for name in ("counts", "means", "products", "origin"):
        assert np.array_equal(getattr(same, name), getattr(moments, name))
    with pytest.raises(ValueError, match="max_bytes=10"):
        PairMoments.from_bytes(data, max_bytes=10)
    for at in range(0, len(data), 7):
        broken = bytearray(data)
        broken[at] ^= 255
        with pytest.raises(ValueError, match=r"moments of pairs"):
            PairMoments.from_bytes(bytes(broken))
    with pytest.raises(ValueError, match=r"header announces"):
        PairMoments.from_bytes(data[:-8])


def test_changed_files_are_refused_or_are_moments():
    """Bytes of a file, or its numbers, are changed at random, and the checksum is made right."""
    rng = np.random.default_rng(0)
    names = pd.DataFrame(rows_with_holes(18, 30, 3), columns=["a", "b", "c"])
    original = PairMoments.from_rows(names).to_bytes()
    read = 0
    for number in range(400):
        data = bytearray(original[:-4])
        at = int(rng.integers(len(data) - 8))
        if number % 2:
            data[at] ^= 1 << int(rng.integers(8))
        else:
            at -= at % 8
            value = rng.choice([0.0, -1.0, 1e300, -1e200, np.inf, np.nan, 1e-300, 2.0**60])
            data[at : at + 8] = struct.pack("<d", value)
        data += struct.pack("<I", zlib.crc32(data))
        try:
            moments = PairMoments.from_bytes(bytes(data))
        except ValueError:
            continue
        read += 1
        again = PairMoments.from_bytes(moments.to_bytes())
        assert np.array_equal(again.products, moments.products)
    assert 0 < read < 200


def test_memory_is_that_of_three_matrices_and_a_block():
    X = rows_with_holes(19, 260, 1000)
    block = 256 * 1000 * 8
    assert peak_bytes(lambda: PairMoments.from_rows(X)) < 3 * 8 * 1000**2 + 8 * block


def changed(moments, name, i, j, value):
    array = getattr(moments, name).copy()
    array[i, j] = value
    if name != "means":
        array[j, i] = value
    fields = ("counts", "means", "products", "origin", "n_samples")
    return PairMoments(**{f: array if f == name else getattr(moments, f) for f in fields})


def test_moments_that_no_rows_have_are_refused():
    """A server's side: what a site sends cannot tilt the result beyond what rows could."""
    m = PairMoments.from_rows(rows_with_holes(15, 50, 3))
    for name, i, j, value, text in [
        ("counts", 0, 1, 51.0, "counts"),
        ("counts", 0, 1, -1.0, "counts"),
        ("counts", 0, 0, 51.0, "n_samples"),
        ("products", 1, 1, -1.0, "products"),
        ("products", 0, 1, 2 * np.sqrt(m.products[0, 0] * m.products[1, 1]), "products"),
        ("means", 0, 1, m.means[0, 0] + np.sqrt(m.products[0, 0]), "means"),
        ("means", 0, 1, np.nan, "means"),
    ]:
        with pytest.raises(ValueError, match=text):
            changed(m, name, i, j, value)
    crooked = m.counts.copy()
    crooked[0, 1] -= 1
    with pytest.raises(ValueError, match="counts must be symmetric"):
        PairMoments(crooked, m.means, m.products, m.origin, m.n_samples)


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
