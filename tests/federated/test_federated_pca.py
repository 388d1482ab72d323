"""FederatedPCA against numpy's SVD of the pooled rows, and the contract around it."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn
from helpers import (
    as_dense,
    assert_same_summary,
    client_sizes,
    floats_of,
    rows_of_decay,
    sine,
    unlike_sites,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    cross_val_score,
)
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import (
    ContributionBounds,
    FederatedPCA,
    ProjectionAverage,
    StreamingPCA,
    Subspace,
    SubspaceMerge,
    make_power_law,
)

EPS = np.finfo(np.float64).eps
TREES = [None, 2, 3]
each_tree = pytest.mark.parametrize("fan_in", TREES)


class Oracle:
    """PCA of weighted rows, all in one place, by numpy's SVD."""

    def __init__(self, X, weight=None, center=True):
        X = as_dense(X)
        weight = np.ones(len(X)) if weight is None else np.asarray(weight, dtype=np.float64)
        Z, self.mean = X, np.zeros(X.shape[1])
        if center:  # relative to a row first: exact where the mean is large
            offset = np.average(X - X[0], axis=0, weights=weight)
            Z, self.mean = X - X[0] - offset, X[0] + offset
        Z = np.sqrt(weight)[:, None] * Z
        _, s, self.components = np.linalg.svd(Z, full_matrices=False)
        self.s = np.concatenate([s, np.zeros(X.shape[1])])
        self.scatter = float(np.sum(Z * Z))
        self.n, self.d, self.n_rows = weight.sum(), X.shape[1], int(np.ceil(weight).sum())

    def gapped_rank(self, k, gap=1e-3):
        """Largest rank up to k where a gap in the spectrum defines a subspace."""
        gaps = (self.s[:-1] - self.s[1:])[: min(k, self.d)] > gap * max(self.s[0], 1e-300)
        return int(np.flatnonzero(gaps)[-1]) + 1 if gaps.any() else 0


def assert_is_pca_of(pca, X, k, *, tol=1e-9, size=0.0, dtype=np.float64, **how):
    """Compare with the oracle.

    ``size``: magnitude of the mean where that dominates. Each mean on the way to the server is
    rounded to eps * size, which perturbs the stack of all centred rows by that much in every entry;
    at most ten such roundings add up. Weyl: singular values move by no more than the norm of the
    perturbation; Wedin: the subspace by the norm over the gap.
    """
    o = Oracle(X, **how)
    moved = 10 * EPS * size * np.sqrt(o.n * o.d)
    exist = min(k, o.n_rows, o.d)
    r = o.gapped_rank(exist)
    assert pca.components_.shape == (exist, o.d)
    assert pca.n_components_ == exist
    assert pca.n_samples_ == o.n_rows
    assert pca.components_.dtype == dtype
    V = pca.components_.astype(np.float64)
    assert_allclose(V @ V.T, np.eye(exist), atol=1e-9 if dtype == np.float64 else 1e-5)
    if r:
        gap = o.s[r - 1] - o.s[r]
        assert sine(V[:r], o.components[:r]) <= tol + moved / gap
    s = pca.singular_values_
    # where only rounding is left, a Gram matrix gives its root: sqrt(eps)
    strong = o.s[:exist] > 1e-3 * o.s[0]
    assert_allclose(s[strong], o.s[:exist][strong], rtol=tol, atol=moved)
    assert np.all(abs(s - o.s[:exist])[~strong] <= np.sqrt(o.d * EPS) * o.s[0] + moved)
    dof = max(o.n - 1, o.n / 2)
    energy_moved = 2 * moved * np.sqrt(o.scatter) + moved**2
    assert_allclose(pca.explained_variance_, s.astype(np.float64) ** 2 / dof, rtol=max(tol, 1e-12))
    rest = (o.scatter - np.sum(o.s[:exist] ** 2)) / dof / max(o.d - exist, 1)
    total = o.scatter / dof
    assert_allclose(pca.noise_variance_, rest, rtol=tol, atol=tol * total + energy_moved / dof)
    assert_allclose(pca.mean_, o.mean, rtol=tol, atol=tol * np.sqrt(total) + 10 * EPS * size)
    assert_allclose(pca.subspace_.scatter, o.scatter, rtol=tol, atol=energy_moved)


@pytest.fixture
def sites():
    """Seven unlike clients of 1 to 70 rows."""
    return unlike_sites(np.random.default_rng(0), [40, 1, 70, 33, 50, 2, 64], 9)


# -------------------------------------------------------------------- exactness


@settings(max_examples=120, derandomize=True, deadline=None, database=None)
@given(
    sizes=client_sizes,
    d=st.integers(2, 24),
    far=st.booleans(),
    merge=st.builds(
        SubspaceMerge,
        st.sampled_from(["auto", "gram", "qr", "svd", "orthogonal"]),
        fan_in=st.sampled_from(TREES),
    ),
    weights=st.sampled_from(["none", "whole", "fractions"]),
    calls=st.integers(1, 4),
    seed=st.integers(0, 2**20),
)
def test_any_clients_at_any_time_are_pca_of_all_rows_so_far(
    sizes, d, far, merge, weights, calls, seed
):
    rng = np.random.default_rng(seed)
    X, clients = unlike_sites(rng, sizes, d)
    size = 1e8 if far else 0.0
    X, n, k = X + size, len(X), min(3, d)
    weight = {"whole": rng.integers(1, 4, n), "fractions": rng.uniform(0.1, 3, n)}.get(weights)
    call, pca = rng.integers(0, calls, n), FederatedPCA(k, merge=merge)
    for time in sorted(set(call.tolist())):
        now, seen = call == time, call <= time
        w = None if weight is None else weight[now]
        pca.partial_fit(X[now], clients=clients[now], sample_weight=w)
        w = None if weight is None else weight[seen]
        assert_is_pca_of(pca, X[seen], k, size=size, weight=w)
        assert pca.clients_ == sorted(set(clients[seen].tolist())) == list(pca.estimators_)
    if weight is None:
        for label, m in zip(*np.unique(clients, return_counts=True), strict=True):
            assert pca.estimators_[label].n_samples_seen_ == m


@each_tree
@pytest.mark.parametrize("d", [100, 256])
def test_wide_rows_up_to_256_features_are_exact(d, fan_in):
    X, clients = unlike_sites(np.random.default_rng(1), [1, 300, 5, 90, 1, 40], d)
    pca = FederatedPCA(6, merge=SubspaceMerge(fan_in=fan_in)).fit(X, clients=clients)
    assert_is_pca_of(pca, X, 6)


@pytest.mark.parametrize("fan_in", TREES[:2])
def test_32_unlike_clients_of_power_law_data_lose_almost_nothing(fan_in):
    X, S = make_power_law(10_000, 500, alpha=1, random_state=0, return_components=1)
    order = np.argsort(X @ S[0])  # a client sees one slice of the leading direction
    clients = np.empty(len(X), dtype=int)
    clients[order] = np.searchsorted(np.cumsum(np.arange(1, 33)), np.arange(len(X)) * 528 // 10_000)
    k, merge = 20, SubspaceMerge(fan_in=fan_in)
    pca = FederatedPCA(k, merge=merge).fit(X, clients=np.minimum(clients, 31))
    assert len(pca.clients_) == 32
    C = np.cov(X, rowvar=False)
    best = np.trace(C) - np.linalg.eigvalsh(C)[-k:].sum()
    V = pca.components_
    assert_allclose(V @ V.T, np.eye(k), atol=1e-9)
    excess = (np.trace(C) - np.trace(V @ C @ V.T)) / best - 1
    assert excess <= 1e-4
    assert_allclose(pca.subspace_.scatter, np.trace(C) * 9999, rtol=1e-10)


@pytest.mark.parametrize("d", [60, 400])
@pytest.mark.parametrize("fraction", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("fan_in", [None, 2])
def test_a_fraction_of_the_variance_is_reached_by_unlike_clients(d, fraction, fan_in):
    rng = np.random.default_rng(d)
    X = np.concatenate([3 * rng.standard_normal(d) + rows_of_decay(rng, 40, d) for _ in range(6)])
    clients = np.repeat(np.arange(6), 40)
    pca = FederatedPCA(fraction, merge=SubspaceMerge(fan_in=fan_in)).fit(X, clients=clients)
    o = Oracle(X)
    captured = np.sum(((X - o.mean) @ pca.components_.T) ** 2) / o.scatter
    assert captured >= fraction
    assert_allclose(pca.explained_variance_ratio_.sum(), captured, rtol=0.02 * (1 - fraction))
    # what clients and nodes drop is a tenth of the rest each, at most four times on the way
    reached = np.cumsum(o.s**2) / o.scatter
    least, most = (int(np.sum(reached <= f)) + 1 for f in (fraction, 1 - (1 - fraction) * 0.6))
    assert least <= pca.n_components_ <= most


@pytest.mark.parametrize(("n", "s"), [(51, 5), (54, 5), (55, 5), (7, 5), (5, 5), (3, 5), (9, 1)])
def test_clients_without_labels_are_shards_of_which_the_first_hold_one_row_more(n, s):
    X = np.random.default_rng(n).standard_normal((n, 3))
    pca = FederatedPCA(1, n_clients=s).fit(X)
    parts = [part for part in np.array_split(X, s) if len(part)]
    assert pca.clients_ == list(range(len(parts)))
    for label, part in zip(pca.clients_, parts, strict=True):
        assert pca.estimators_[label].n_samples_ == len(part)
        assert_allclose(pca.estimators_[label].mean_, part.mean(axis=0), atol=1e-12)


def test_labelled_and_other_calls_and_pickles_are_one_model(sites):
    X, clients = sites
    names = np.array(list("abcdefg"))[clients]
    pca = FederatedPCA(4, n_clients=3).fit(X[:100], clients=names[:100])
    pca.partial_fit(X[100:101], clients=["h"])  # one row of a new client
    pca.partial_fit(X[101:150])  # shards 0, 1, 2
    pca = pickle.loads(pickle.dumps(pca))
    pca.partial_fit(X[150:], clients=pd.Series(names[150:], index=np.arange(len(X) - 150) + 7))
    assert_is_pca_of(pca, X, 4)
    assert pca.clients_ == [0, 1, 2, *sorted({*names[:100], *names[150:], "h"})]
    pca.fit(X[:50], clients=clients[:50])  # starts afresh
    assert_is_pca_of(pca, X[:50], 4)
    assert pca.clients_ == np.unique(clients[:50]).tolist()
    assert pca.communication_.rounds == 1


LABELS = {
    "list": lambda c: [f"site {i}" for i in c],
    "object": lambda c: np.array([f"site {i}" for i in c], dtype=object),
    "series": lambda c: pd.Series([f"site {i}" for i in c], index=np.arange(len(c))[::-1]),
    "categorical": lambda c: pd.Categorical([f"site {i}" for i in c]),
    "nullable": lambda c: pd.array(c, dtype="Int64"),
    "whole floats": lambda c: c.astype(float),
    "unsigned": lambda c: c.astype(np.uint8),
    "boolean": lambda c: c > 2,
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_may_be_strings_numbers_or_pandas(sites, kind):
    X, clients = sites
    labels = LABELS[kind](clients)
    pca = FederatedPCA(4).fit(X, clients=labels)
    assert pca.clients_ == sorted(set(np.asarray(labels).tolist()))
    assert all(type(label) in (int, str, bool) for label in pca.clients_)
    for label in pca.clients_:
        mine = X[np.asarray(labels) == label]
        assert_allclose(pca.estimators_[label].mean_, mine.mean(axis=0), atol=1e-12)


# -------------------------------------------------------------------- sub-estimators


@pytest.mark.parametrize(
    "estimator",
    [
        StreamingPCA(),
        StreamingPCA(2),
        StreamingPCA(0.5),
        StreamingPCA(4, svd_solver="qr"),
        StreamingPCA(4, block_size=7, whiten=True),
        StreamingPCA(rank_rule=ContributionBounds(), block_size=16),
        PCA(svd_solver="full"),
        PCA(svd_solver="covariance_eigh", whiten=True),
        IncrementalPCA(),
        FederatedPCA(n_clients=3),
    ],
    ids=repr,
)
def test_sub_estimators_that_keep_all_directions_are_exact(estimator):
    X, clients = unlike_sites(np.random.default_rng(6), [30, 45, 60, 31], 6)
    before = joblib.hash(estimator.get_params())
    pca = FederatedPCA(3, estimator=estimator).fit(X, clients=clients)
    assert_is_pca_of(pca, X, 3)
    assert joblib.hash(estimator.get_params()) == before
    assert not hasattr(estimator, "components_")
    assert {type(e) for e in pca.estimators_.values()} == {type(estimator)}
    if hasattr(estimator, "partial_fit"):
        half = np.arange(len(X)) < 110
        again = FederatedPCA(3, estimator=estimator)
        for rows in (half, ~half):
            again.partial_fit(X[rows], clients=clients[rows])
        assert_is_pca_of(again, X, 3)
    else:
        assert not hasattr(FederatedPCA(3, estimator=estimator), "partial_fit")


@pytest.mark.parametrize(
    "estimator",
    [StreamingPCA(4, center=False), TruncatedSVD(6), TruncatedSVD(6, algorithm="arpack")],
    ids=repr,
)
@pytest.mark.parametrize("container", [np.asarray, sp.csr_array])
def test_sub_estimators_about_the_origin_give_the_svd_of_the_rows(estimator, container):
    rng = np.random.default_rng(7)
    X = rng.standard_normal((150, 6)) @ np.linalg.qr(rng.standard_normal((6, 8)).T)[0].T
    X = X * (0.6 ** np.arange(8)) + np.outer(np.ones(150), X[0])  # rank 6, mean not zero
    X = X @ np.linalg.svd(X, full_matrices=False)[2][:6].T @ np.linalg.svd(X)[2][:6]
    pca = FederatedPCA(3, estimator=estimator)
    pca.fit(container(X), clients=rng.integers(0, 4, 150))
    assert_is_pca_of(pca, X, 3, center=False)
    assert_array_equal(pca.mean_, 0)
    assert_allclose(pca.transform(container(X)), X @ pca.components_.T, atol=1e-10)


@pytest.mark.parametrize(
    ("estimator", "container"),
    [
        (StreamingPCA(2, oversampling=0), np.asarray),
        (StreamingPCA(2, oversampling=0), sp.csr_array),
        (PCA(2), np.asarray),
        (IncrementalPCA(2), np.asarray),
        (TruncatedSVD(2), np.asarray),
        (TruncatedSVD(2), sp.csr_array),
    ],
)
@pytest.mark.parametrize("dtype", [np.float64, np.uint8])  # squares of small integers overflow
def test_what_clients_drop_stays_in_the_total_variance(estimator, container, dtype):
    X = np.random.default_rng(8).integers(0, 200, (60, 5)).astype(dtype)
    pca = FederatedPCA(2, estimator=estimator, n_clients=3).fit(container(X))
    o = Oracle(X, center=not isinstance(estimator, TruncatedSVD))
    assert_allclose(pca.subspace_.scatter, o.scatter, rtol=1e-9)
    rest = (o.scatter - np.sum(pca.singular_values_**2)) / 59 / 3
    assert_allclose(pca.noise_variance_, rest, rtol=1e-9)
    assert_allclose(pca.mean_, o.mean, atol=1e-9)


def test_forgetting_runs_within_each_client(sites):
    X, clients = sites
    pca = FederatedPCA(4, estimator=StreamingPCA(4, forgetting_factor=0.95))
    pca.fit(X, clients=clients)
    age = np.empty(len(X))
    for label in np.unique(clients):
        mine = clients == label
        age[mine] = np.arange(mine.sum())[::-1]
    o = Oracle(X, 0.95**age)
    assert_allclose(pca.singular_values_, o.s[:4], rtol=1e-9)
    assert sine(pca.components_, o.components[:4]) <= 1e-9
    assert_allclose(pca.mean_, o.mean, atol=1e-9)
    assert_allclose(pca.explained_variance_, o.s[:4] ** 2 / (o.n - 1), rtol=1e-9)


@each_tree
def test_clients_of_different_rank_lose_no_direction(fan_in):
    rng = np.random.default_rng(9)
    ranks, Q, parts, first = [1, 3, 2, 4], np.linalg.qr(rng.standard_normal((20, 20)))[0], [], 0
    for i, rank in enumerate(ranks):  # clients share no direction
        own = Q[first : first + rank] * np.linspace(6, 5, rank)[:, None] * 0.8**i
        parts.append(rng.standard_normal((50, rank)) @ own)
        first += rank
    X, merge = np.concatenate(parts), SubspaceMerge(fan_in=fan_in)
    pca = FederatedPCA(10, estimator=PCA(1 - 1e-9), merge=merge)
    pca.fit(X, clients=np.repeat(np.arange(4), 50))
    assert [pca.estimators_[i].n_components_ for i in range(4)] == ranks
    assert_is_pca_of(pca, X, 10)
    given_ = [Subspace.from_rows(part, rank) for part, rank in zip(parts, ranks, strict=True)]
    assert_is_pca_of(FederatedPCA.from_subspaces(given_, 10, merge=merge), X, 10)


class SeededStream(StreamingPCA):
    """Says which seed it was given."""

    def __init__(self, n_components=None, *, random_state=None):
        super().__init__(n_components)
        self.random_state = random_state


@pytest.mark.parametrize("seed", [0, np.random.RandomState(0)], ids=["int", "RandomState"])
@pytest.mark.parametrize("calls", [("ab", "ac", "d", "e"), ("ab", "bcd", "ae"), tuple("abcde")])
def test_each_client_draws_its_own_random_numbers_and_keeps_them(sites, seed, calls):
    X, _ = sites
    pca = FederatedPCA(2, estimator=SeededStream(2), random_state=seed)
    for labels in calls:
        known = {k: e.random_state for k, e in getattr(pca, "estimators_", {}).items()}
        pca.partial_fit(X[: 5 * len(labels)], clients=list(labels) * 5)
        now = {k: e.random_state for k, e in pca.estimators_.items()}
        assert known.items() <= now.items()
    assert len(set(now.values())) == len(now) == 5
    assert pca.estimator.random_state is None
    if isinstance(seed, int):
        of_fits = []
        for seed in (0, 0, 1):
            pca.set_params(random_state=seed).fit(X[:5], clients=list("abcde"))
            of_fits.append([e.random_state for e in pca.estimators_.values()])
        assert of_fits[0] == of_fits[1]
        assert not set(of_fits[0]) & set(of_fits[2])


# -------------------------------------------------------------------- kinds of input


@pytest.mark.parametrize("container", [sp.csr_array, sp.csc_matrix])
def test_many_sparse_columns_with_weights_equal_dense_ones(container):
    rng, d = np.random.default_rng(12), 400
    X = sp.random(90, d, density=0.2, random_state=rng).toarray() * 0.9 ** np.arange(d)
    clients = rng.permutation(np.repeat(np.arange(6), 15))  # no more rows than a client may keep
    weight = rng.integers(1, 3, 90)
    pca = FederatedPCA(6).fit(container(X), clients=clients, sample_weight=weight)
    assert_is_pca_of(pca, np.repeat(X, weight, axis=0), 6)
    dense = FederatedPCA(6).fit(X, clients=clients, sample_weight=weight)
    assert_same_summary(pca, dense)
    assert_allclose(pca.transform(container(X)), dense.transform(X), atol=1e-9)
    assert_allclose(pca.score(container(X)), dense.score(X), rtol=1e-9)


# -------------------------------------------------------------------- summaries from elsewhere


@pytest.mark.parametrize("d", [9, 300])
@each_tree
def test_files_of_sites_give_the_same_model_as_fit(tmp_path, d, fan_in):
    X, clients = unlike_sites(np.random.default_rng(14), [40, 1, 70, 33], d)
    for label in range(4):
        site = StreamingPCA(4).fit(X[clients == label])
        site.subspace_.save(tmp_path / f"{label}.bin")
    subspaces = [Subspace.load(tmp_path / f"{label}.bin") for label in range(4)]
    merge = SubspaceMerge(fan_in=fan_in)
    pca = FederatedPCA.from_subspaces(subspaces, 4, merge=merge)
    want = FederatedPCA(4, merge=merge).fit(X, clients=clients)
    for name in ("components_", "singular_values_", "mean_", "noise_variance_"):
        assert_allclose(getattr(pca, name), getattr(want, name), rtol=1e-12, atol=1e-12)
    assert pca.n_features_in_ == d
    assert pca.n_samples_ == len(X)
    assert pca.clients_ == [0, 1, 2, 3]
    assert pca.communication_ == want.communication_
    assert_allclose(pca.transform(X), want.transform(X), rtol=0, atol=1e-10)


def test_given_summaries_go_on_with_further_clients(sites):
    X, clients = sites
    subspaces = [Subspace.from_rows(X[clients == label]) for label in range(4)]
    before = [s.to_bytes() for s in subspaces]
    pca = FederatedPCA.from_subspaces([*subspaces, Subspace.empty(9)], 4)  # one without rows
    assert_is_pca_of(pca, X[clients < 4], 4)
    names = np.array(list("abcdefg"))[clients]
    for label in (4, 5, 6):
        pca.partial_fit(X[clients == label], clients=names[clients == label])
        assert pca.communication_.table[-1]["messages_up"] == 1
    assert_is_pca_of(pca, X, 4)
    assert pca.clients_ == [0, 1, 2, 3, 4, "e", "f", "g"]
    assert [s.to_bytes() for s in subspaces] == before
    with pytest.raises(ValueError, match="9 features"):
        pca.partial_fit(X[:, :5], clients=clients)
    fraction = FederatedPCA.from_subspaces(list(pca.summaries_.values()), 0.9)
    o = Oracle(X)
    assert fraction.n_components_ == np.sum(np.cumsum(o.s**2) <= 0.9 * o.scatter) + 1


@pytest.mark.parametrize("d", [20, 300])
def test_a_site_that_is_known_by_its_summary_goes_on(d):
    X = make_power_law(300, d, random_state=0)
    sites = [StreamingPCA(5).fit(X[i::3][:60]) for i in range(3)]
    pca = FederatedPCA.from_subspaces([site.subspace_ for site in sites[:2]], 5)
    labels = np.repeat([0, 2, 1], [40, 100, 40])
    pca.partial_fit(np.concatenate([X[::3][60:], X[2::3], X[1::3][60:]]), clients=labels)
    assert pca.clients_ == list(pca.estimators_) == [0, 1, 2]
    assert pca.n_samples_ == 300
    for i, site in enumerate(sites[:2]):  # as if the site had gone on by itself
        site.partial_fit(X[i::3][60:])
        assert_array_equal(pca.estimators_[i].components_, site.components_)
        assert_array_equal(pca.estimators_[i].singular_values_, site.singular_values_)
    assert_allclose(pca.singular_values_, Oracle(X).s[:5], rtol=1e-9 if d == 20 else 2e-2)
    pca = FederatedPCA.from_subspaces([Subspace.from_rows(X[:90], 5), Subspace.empty(d)], 5)
    pca.partial_fit(X[90:120], clients=[1] * 30)  # of no rows so far
    with pytest.raises(ValueError, match=r"Client 0: it was given as a summary.*IncrementalPCA"):
        pca.set_params(estimator=IncrementalPCA(5)).partial_fit(X[120:], clients=[0] * 180)
    assert pca.n_samples_ == 120


def test_none_shows_what_truncated_summaries_still_hold():
    X = make_power_law(900, 400, random_state=0)
    given_ = [StreamingPCA(5).fit(X[i::3]).subspace_ for i in range(3)]
    pca = FederatedPCA.from_subspaces(given_)
    assert pca.components_.shape == (pca.subspace_.n_components, 400)
    assert pca.noise_variance_ > 0
    # what was cut is noise to the model, not certainty
    assert pca.score(X) > FederatedPCA.from_subspaces(given_, 1).score(X)


@pytest.mark.parametrize(
    "merge", [None, SubspaceMerge(fan_in=2), ProjectionAverage()], ids=["flat", "tree", "average"]
)
def test_a_client_that_is_removed_has_never_been_there(merge):
    X = np.random.default_rng(0).standard_normal((120, 12)) * np.arange(1, 13)
    clients = np.repeat(list("abcde"), 24)
    pca = FederatedPCA(3, merge=merge).fit(X, clients=clients)
    floats, rest = pca.communication_.floats_up, X[clients != "c"]
    assert pca.remove("c") is pca
    others = FederatedPCA(3, merge=merge).fit(rest, clients=clients[clients != "c"])
    assert_array_equal(pca.components_, others.components_)
    assert_array_equal(pca.mean_, others.mean_)
    assert pca.clients_ == list("abde")
    assert pca.n_samples_ == 96
    if not isinstance(merge, ProjectionAverage):  # which is no PCA of the rows
        assert_is_pca_of(pca, rest, 3)
    if merge is None:
        assert pca.communication_.floats_up == floats  # nobody sends again
    assert pca.partial_fit(X[clients == "c"], clients=["c"] * 24).n_samples_ == 120
    with pytest.raises(ValueError, match=r"label must be one of clients_, \['a', .*\], got 7"):
        pca.remove(7)
    for label in "abcd":
        pca.remove(label)
    with pytest.raises(ValueError, match="label='e' is the last client"):
        pca.remove("e")
    assert pca.n_samples_ == 24


# -------------------------------------------------------------------- communication


def floats_of_triangle(d):
    """Of all directions: an upper triangle, mean and scatter of the columns, number and scatter."""
    return d * (d + 1) // 2 + 2 * d + 2


@pytest.mark.parametrize(
    ("n_clients", "fan_in", "messages"),
    [
        (6, None, [6]),
        (1, None, [1]),
        (1, 2, [1]),
        (2, 2, [2]),
        (8, 2, [8, 4, 2]),
        (9, 3, [9, 3]),
        (5, 2, [4, 2, 2]),  # a node alone in its group waits for the next level
        (10, 3, [9, 3, 2]),
    ],
)
@pytest.mark.parametrize("n_components", [5, None])
def test_communication_is_the_closed_formula(n_clients, fan_in, messages, n_components):
    d = 7  # so few that every message has all directions
    X = np.random.default_rng(15).standard_normal((20 * n_clients, d))
    merge = SubspaceMerge(fan_in=fan_in)
    log = FederatedPCA(n_components, n_clients=n_clients, merge=merge).fit(X).communication_
    down = {"messages_down": 0, "floats_down": 0, "bytes_down": 0}
    floats = floats_of_triangle(d)
    assert log.table == [
        {"messages_up": m, "floats_up": m * floats, "bytes_up": m * (8 * floats + 36)}
        | down
        | {"floats_busiest": min(m, fan_in or m) * floats}  # a full node of the tree
        for m in messages
    ]
    assert (log.rounds, log.floats_up) == (len(messages), sum(messages) * floats)
    assert log.floats_pooled == X.size


def test_communication_of_many_features_and_of_scikit_learns_clients(sites):
    d = 300
    X = np.random.default_rng(16).standard_normal((160, d))
    log = FederatedPCA(5, n_clients=8).fit(X).communication_
    assert log.floats_up == 8 * floats_of(5 + 10, d)
    # where nothing may be dropped, a node that stands for m rows sends m - 1 directions
    log = FederatedPCA(n_clients=8, merge=SubspaceMerge(fan_in=2)).fit(X).communication_
    sizes = [(8, 19), (4, 39), (2, 79)]
    assert [row["floats_up"] for row in log.table] == [m * floats_of(k, d) for m, k in sizes]
    pca = FederatedPCA(2, estimator=PCA(3), n_clients=5).fit(sites[0])
    assert pca.communication_.floats_up == 5 * (floats_of(3, 9) - 9)  # scatter of columns unknown
    for rows in (sites[0], sites[0].astype(np.float32)):
        pca = FederatedPCA(4).fit(rows, clients=sites[1])
        files = [len(e.subspace_.to_bytes()) for e in pca.estimators_.values()]
        assert pca.communication_.bytes_up == sum(files)


def test_partial_fit_counts_only_summaries_that_changed():
    X = np.random.default_rng(16).standard_normal((160, 7))
    pca = FederatedPCA(5).fit(X, clients=np.arange(160) % 8)
    first = pca.communication_
    for changed in ([0], [2, 3], [0, 8]):
        pca.partial_fit(X[:40], clients=np.resize(changed, 40))
        row = pca.communication_.table[-1]
        assert row["messages_up"] == len(changed)
        assert row["floats_up"] == len(changed) * floats_of_triangle(7)
    assert (first.rounds, pca.communication_.rounds) == (1, 4)  # a log handed out stays as it was
    tree = FederatedPCA(5, merge=SubspaceMerge(fan_in=2)).fit(X, clients=np.arange(160) % 8)
    again = pickle.loads(pickle.dumps(tree))
    for model in (tree, again):  # one path of the tree is new: a leaf, a node, a child of the root
        model.partial_fit(X[:10], clients=[0] * 10)
        assert [row["messages_up"] for row in model.communication_.table] == [8, 4, 2, 1, 1, 1]
    assert_array_equal(tree.components_, again.components_)


# -------------------------------------------------------------------- what is refused


class Picky(StreamingPCA):
    """Refuses rows with entries beyond 1000, and counts its fits."""

    fitted: list = []

    def fit(self, X, y=None, sample_weight=None):
        Picky.fitted.append(len(X))
        return self.partial_fit(X, y, sample_weight)

    def partial_fit(self, X, y=None, sample_weight=None):
        if np.abs(X).max() > 1000:
            raise KeyError("rows of no use")
        return super().partial_fit(X, y, sample_weight)


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_an_error_of_another_kind_at_a_client_names_it_and_leaves_no_trace(sites, n_jobs, method):
    X, clients = sites
    names = np.array(list("abcdefg"))[clients]
    pca = FederatedPCA(3, estimator=Picky(2), n_jobs=n_jobs, merge=SubspaceMerge(fan_in=2))
    pca.fit(X, clients=names).partial_fit(X[:50], clients=names[:50])
    before, wrong = joblib.hash(vars(pca)), X.copy()
    wrong[np.flatnonzero(names == "c")[3], 1] = 1e6
    with pytest.raises(RuntimeError, match=r"Client 'c'.*no use") as caught:
        getattr(pca, method)(wrong, clients=names)
    assert caught.value.__cause__ is not None
    assert joblib.hash(vars(pca)) == before
    pca.partial_fit(X, clients=names)  # and it goes on
    assert_is_pca_of(pca, np.concatenate([X, X[:50], X]), 3)


def test_a_bad_merge_strategy_is_refused_before_any_client_works():
    Picky.fitted.clear()
    with pytest.raises(ValueError, match="'method' parameter of SubspaceMerge"):
        FederatedPCA(2, estimator=Picky(2), merge=SubspaceMerge("foo")).fit(np.eye(9))
    assert Picky.fitted == []


@pytest.mark.parametrize("estimator", [PCA(3), IncrementalPCA(3), TruncatedSVD(3)])
def test_weights_are_refused_where_the_sub_estimator_takes_none(sites, estimator):
    pca = FederatedPCA(3, estimator=estimator)
    with pytest.raises(TypeError, match=rf"sample_weight.*{type(estimator).__name__}"):
        pca.fit(sites[0], clients=sites[1], sample_weight=np.ones(len(sites[0])))
    assert not hasattr(pca, "components_")


ONE_LABEL = "integers.*strings.*"
BAD_LABELS = {
    "too short": ([0, 1], r"\(12,\).*\(2,\)"),
    "scalar": (3, r"\(12,\).*\(\)"),
    "2-D": (np.zeros((12, 1), dtype=int), r"\(12,\).*\(12, 1\)"),
    "NaN": ([0.0] * 11 + [np.nan], f"{ONE_LABEL}nan"),
    "infinite": ([0.0] * 11 + [np.inf], f"{ONE_LABEL}inf"),
    "NaN among strings": (["a"] * 11 + [np.nan], f"{ONE_LABEL}nan"),
    "NaN in a series": (pd.Series(["a"] * 11 + [None]), f"{ONE_LABEL}(nan|None)"),
    "NA": (pd.array([0] * 11 + [None], dtype="Int64"), f"{ONE_LABEL}(nan|<NA>)"),
    "None": (["a"] * 11 + [None], f"{ONE_LABEL}None"),
    "mixed list": ([1] * 6 + ["a"] * 6, f"{ONE_LABEL}(1|'a')"),
    "mixed object": (np.array([1] * 6 + ["a"] * 6, dtype=object), f"{ONE_LABEL}(1|'a')"),
    "fractions": ([1.0] * 11 + [2.5], rf"{ONE_LABEL}2\.5"),
    "beyond 64 bits": ([2**70] * 12, f"{ONE_LABEL}1180591620717411303424"),
    "beyond 64 bits, floats": ([1e20] * 6 + [2e20] * 6, rf"{ONE_LABEL}1e\+20"),
    "bytes": ([b"a"] * 12, f"{ONE_LABEL}b'a'"),
    "dates": (pd.date_range("2020", periods=12), f"{ONE_LABEL}2020"),
}


@pytest.mark.parametrize("kind", BAD_LABELS)
def test_bad_clients_are_refused_by_name_value_and_expectation(kind):
    labels, message = BAD_LABELS[kind]
    X = np.random.default_rng(18).standard_normal((12, 3))
    pca = FederatedPCA(2).fit(X)
    before = joblib.hash(vars(pca))
    for method in (pca.fit, pca.partial_fit):
        with pytest.raises(ValueError, match=f"^clients must.*{message}"):
            method(X, clients=labels)
    assert joblib.hash(vars(pca)) == before


# -------------------------------------------------------------------- pipelines and searches


def low_rank_rows(rng, n=360, d=12, rank=3):
    """Probabilistic PCA: columns of equal variance, so that scaling keeps the noise isotropic."""
    loadings = rng.standard_normal((rank, d))
    loadings /= np.linalg.norm(loadings, axis=0)
    return rng.standard_normal((n, rank)) @ loadings + 0.4 * rng.standard_normal((n, d))


@pytest.mark.parametrize("routing", [False, True])
def test_clients_reach_a_step_of_a_pipeline_in_a_search(routing):
    rng = np.random.default_rng(20)
    X, clients = low_rank_rows(rng), np.array(list("abcdefghijkl"))[rng.integers(0, 12, 360)]
    pipe = Pipeline([("scale", StandardScaler(with_std=False)), ("pca", FederatedPCA())])
    grid = {"pca__n_components": [1, 3, 6]}
    with sklearn.config_context(enable_metadata_routing=routing):
        search = GridSearchCV(pipe, grid, cv=KFold(3), error_score="raise")
        search.fit(X, **{"clients" if routing else "pca__clients": clients})
    assert search.best_params_ == {"pca__n_components": 3}
    assert search.best_estimator_["pca"].clients_ == list("abcdefghijkl")
    train, test = next(KFold(3).split(X))  # scores are those of PCA of the pooled training rows
    want = PCA(3, svd_solver="full").fit(X[train]).score(X[test])
    assert_allclose(search.cv_results_["split0_test_score"][1], want, rtol=1e-9)


@pytest.mark.parametrize("routing", [False, True])
def test_a_pipeline_keeps_a_column_of_labels_and_columns_have_names_of_methods(routing):
    rng = np.random.default_rng(0)
    X, site = rng.standard_normal((90, 4)) * [4, 3, 2, 1], rng.choice(["east", "west"], 90)
    names = ["select", "columns", "a", "b"]
    frame = pd.DataFrame(X, columns=names).assign(shape=site)
    scaler = make_column_transformer(
        (StandardScaler(), names), remainder="passthrough", verbose_feature_names_out=False
    ).set_output(transform="pandas")
    pipeline = make_pipeline(scaler, FederatedPCA(2))
    with sklearn.config_context(enable_metadata_routing=routing):
        pipeline.fit(frame, **{"clients" if routing else "federatedpca__clients": "shape"})
    want = FederatedPCA(2).fit(StandardScaler().fit_transform(X), clients=site)
    assert pipeline[-1].clients_ == ["east", "west"]
    assert_allclose(pipeline[-1].components_, want.components_, atol=1e-12)
    assert pipeline.transform(frame).shape == (90, 2)
    folds = cross_val_score(FederatedPCA(1), frame, params={"clients": "shape"}, cv=3)
    assert np.isfinite(folds).all()


def test_weights_are_routed_to_fit_and_score(sites):
    X, clients = sites
    weight = np.random.default_rng(22).integers(1, 4, len(X))
    repeated = np.repeat(X, weight, axis=0)
    with sklearn.config_context(enable_metadata_routing=True):
        pca = FederatedPCA(3).set_fit_request(sample_weight=True)
        pca.set_score_request(sample_weight=True)
        pipe = Pipeline([("same", "passthrough"), ("pca", pca)])
        pipe.set_score_request(sample_weight=True)  # scikit-learn before 1.8 asks for it
        pipe.fit(X, clients=clients, sample_weight=weight)
        score = pipe.score(X, sample_weight=weight)
        search = GridSearchCV(pipe, {"pca__n_components": [1, 2]}, cv=3, error_score="raise")
        search.fit(X, clients=clients, sample_weight=weight)
    assert_is_pca_of(pipe["pca"], repeated, 3)
    pooled = PCA(3, svd_solver="full").fit(repeated)
    assert_allclose(score, pooled.score(repeated), rtol=1e-9)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


# -------------------------------------------------------------------- callbacks

needs_callbacks = pytest.mark.skipif(
    not hasattr(FederatedPCA, "set_callbacks"), reason="callbacks need scikit-learn 1.9"
)


class Counter:
    """A callback that writes down what it is told."""

    def __init__(self, stop_after=None):
        self.events, self.stop_after = [], stop_after

    def setup(self, estimator, context):
        self.events.append("setup")

    def teardown(self, estimator, context):
        self.events.append("teardown")

    def on_fit_task_begin(self, estimator, context, **kwargs):
        self.events.append(f"begin {context.task_name}")

    def on_fit_task_end(self, estimator, context, **kwargs):
        self.events.append(f"end {context.task_name}")
        return self.events.count("end clients") == self.stop_after


@needs_callbacks
@pytest.mark.parametrize(("n_clients", "n_tasks"), [(1, 1), (7, 7), (100, 100), (250, 84)])
def test_a_client_is_a_task_and_there_are_at_most_a_hundred(n_clients, n_tasks):
    X = np.random.default_rng(23).standard_normal((250, 4))
    counter = Counter()
    pca = FederatedPCA(2, n_clients=n_clients).set_callbacks(counter).fit(X)
    tasks = ["begin clients", "end clients"] * n_tasks
    assert counter.events == ["setup", "begin fit", *tasks, "end fit", "teardown"]
    assert_is_pca_of(pca, X, 2)


@needs_callbacks
def test_callbacks_are_torn_down_after_errors_and_can_stop_a_fit():
    X = np.random.default_rng(25).standard_normal((60, 4))
    stopped = FederatedPCA(2, n_clients=6).set_callbacks(Counter(stop_after=2)).fit(X)
    assert stopped.clients_ == [0, 1]
    assert_is_pca_of(stopped, X[:20], 2)
    pca, bad = FederatedPCA(2, n_clients=3).set_callbacks(Counter()).fit(X), X.copy()
    bad[-1] = np.nan
    for method in (pca.fit, pca.partial_fit):
        with pytest.raises(ValueError, match="Client 2"):
            method(bad)
        (counter,) = pca._skl_callbacks
        assert counter.events.count("setup") == counter.events.count("teardown")
