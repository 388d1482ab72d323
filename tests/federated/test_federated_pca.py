"""FederatedPCA, and DistributedPCA, against numpy's SVD of the pooled rows; the contract around."""

import copy

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn
from client_helpers import rows_of_clients
from golden_cases import made
from helpers import naming, rows_of_decay, sine, unlike_sites
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from triangle_helpers import Oracle, assert_is_pca_of, examples, seven_sites

from fedpca_sklearn import (
    ContributionBounds,
    DistributedPCA,
    FederatedPCA,
    OjaPCA,
    ProjectionAverage,
    StreamingPCA,
    Subspace,
    SubspaceMerge,
    make_power_law,
)


@pytest.fixture
def sites():
    """Seven unlike clients of 1 to 70 rows."""
    return seven_sites()


# -------------------------------------------------------------------- exactness


merges = st.builds(
    SubspaceMerge,
    st.sampled_from(["auto", "gram", "qr", "svd", "orthogonal"]),
    fan_in=st.sampled_from([None, 2, 3]),
)


@settings(examples, max_examples=60)
@given(
    rows_of_clients(
        st.one_of(*[st.integers(1, 24)] * 19, st.just(256)),
        ("none", "whole", "fractions"),
        sparse=True,
    ),
    st.one_of(st.builds(FederatedPCA, merge=merges), st.builds(DistributedPCA)),
    st.sampled_from([None, 1, 3]),
)
def test_any_clients_at_any_time_are_pca_of_all_rows_so_far(drawn, pca, k):
    X, clients, by_qr = drawn.X, drawn.clients, isinstance(pca, DistributedPCA)
    d = X.shape[1]
    k = None if k is None and by_qr else min(k or 3, d)
    pca = clone(pca).set_params(n_components=k)
    for rows, options, seen, weight in drawn.calls():
        pca.partial_fit(rows, **options)
        assert_is_pca_of(pca, X[seen], k, weight, size=drawn.mean)
        assert pca.clients_ == sorted(set(clients[seen].tolist()))
    assert pca.communication_.floats_pooled == np.count_nonzero(X)
    if by_qr:
        want = clone(pca).fit(X, clients=clients, sample_weight=drawn.weight)
        if len(X) > d + 1 and not drawn.sparse:  # of full rank: the factor is unique
            assert_allclose(pca.r_factor_, want.r_factor_, atol=1e-7)
    elif drawn.weight is None:
        for label, m in zip(*np.unique(clients, return_counts=True), strict=True):
            assert pca.estimators_[label].n_samples_seen_ == m


def test_32_unlike_clients_of_power_law_data_lose_almost_nothing():
    X, S = make_power_law(10_000, 500, alpha=1, random_state=0, return_components=1)
    order = np.argsort(X @ S[0])  # a client sees one slice of the leading direction
    clients = np.empty(len(X), dtype=int)
    clients[order] = np.searchsorted(np.cumsum(np.arange(1, 33)), np.arange(len(X)) * 528 // 10_000)
    k = 20
    pca = FederatedPCA(k).fit(X, clients=np.minimum(clients, 31))
    assert len(pca.clients_) == 32
    C = np.cov(X, rowvar=False)
    best = np.trace(C) - np.linalg.eigvalsh(C)[-k:].sum()
    V = pca.components_
    assert_allclose(V @ V.T, np.eye(k), atol=1e-9)
    excess = (np.trace(C) - np.trace(V @ C @ V.T)) / best - 1
    assert excess <= 1e-4
    assert_allclose(pca.subspace_.scatter, np.trace(C) * 9999, rtol=1e-10)


@pytest.mark.parametrize("d", [60, 400])
@pytest.mark.parametrize(("fraction", "fan_in"), [(0.5, None), (0.9, 2), (0.99, None)])
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
        assert pca.estimators_[label] is pca.estimators_[label]
        assert_allclose(pca.estimators_[label].mean_, part.mean(axis=0), atol=1e-12)


LABELS = {
    "list": lambda c: [f"site {i}" for i in c],
    "series": lambda c: pd.Series([f"site {i}" for i in c], index=np.arange(len(c))[::-1]),
    "categorical": lambda c: pd.Categorical([f"site {i}" for i in c]),
    "nullable": lambda c: pd.array(c, dtype="Int64"),
    "whole floats": lambda c: c.astype(float),
    "boolean": lambda c: c > 2,
}


def test_labels_may_be_strings_numbers_or_pandas(sites):
    X, clients = sites
    for kind, of in LABELS.items():
        labels = of(clients)
        pca = FederatedPCA(4).fit(X, clients=labels)
        assert pca.clients_ == sorted(set(np.asarray(labels).tolist())), kind
        assert all(type(label) in (int, str, bool) for label in pca.clients_), kind
        for label in pca.clients_:
            mine = X[np.asarray(labels) == label].mean(axis=0)
            assert_allclose(pca.estimators_[label].mean_, mine, atol=1e-12, err_msg=kind)


# -------------------------------------------------------------------- sub-estimators


@pytest.mark.parametrize(
    "estimator",
    [
        StreamingPCA(0.5),
        StreamingPCA(4, svd_solver="qr"),
        StreamingPCA(4, block_size=7, whiten=True),
        StreamingPCA(rank_rule=ContributionBounds(), block_size=16),
        PCA(svd_solver="full"),
        PCA(svd_solver="covariance_eigh", whiten=True),
        IncrementalPCA(copy=False),
        FederatedPCA(n_clients=3),
    ],
    ids=repr,
)
def test_sub_estimators_that_keep_all_directions_are_exact(estimator):
    X, clients = unlike_sites(np.random.default_rng(6), [30, 45, 60, 31], 6)
    order = np.argsort(clients)  # clients see parts of X itself
    X, clients = X[order], clients[order]
    before, rows = joblib.hash(estimator.get_params()), X.copy()
    pca = FederatedPCA(3, estimator=estimator).fit(X, clients=clients)
    assert_is_pca_of(pca, rows, 3)
    assert_array_equal(X, rows)
    assert joblib.hash(estimator.get_params()) == before
    assert not hasattr(estimator, "components_")
    assert {type(e) for e in pca.estimators_.values()} == {type(estimator)}
    if hasattr(estimator, "partial_fit"):
        assert_is_pca_of(pca.partial_fit(X[:9], clients=clients[:9]), np.concatenate([X, X[:9]]), 3)
    else:
        assert not hasattr(pca, "partial_fit")


@pytest.mark.parametrize(
    ("estimator", "container"),
    [
        (StreamingPCA(2, oversampling=0), np.asarray),
        (StreamingPCA(2, oversampling=0), sp.csr_array),
        (PCA(2), np.asarray),
        (IncrementalPCA(2), np.asarray),
        (TruncatedSVD(2), sp.csr_array),
    ],
)
def test_what_clients_drop_stays_in_the_total_variance(estimator, container):
    X = np.random.default_rng(8).integers(0, 200, (60, 5)).astype(np.uint8)  # squares overflow
    pca = FederatedPCA(2, estimator=estimator, n_clients=3).fit(container(X))
    mean = X.mean(axis=0) * (not isinstance(estimator, TruncatedSVD))
    scatter = np.sum((X - mean) ** 2)
    assert_allclose(pca.subspace_.scatter, scatter, rtol=1e-9)
    rest = (scatter - np.sum(pca.singular_values_**2)) / 59 / 3
    assert_allclose(pca.noise_variance_, rest, rtol=1e-9)
    assert_allclose(pca.mean_, mean, atol=1e-9)


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


@pytest.mark.parametrize("seed", [0, np.random.RandomState(0)], ids=["int", "RandomState"])
def test_each_client_draws_its_own_random_numbers_and_keeps_them(sites, seed):
    pca, known = FederatedPCA(2, estimator=OjaPCA(2), random_state=seed), {}
    for labels in ("ab", "bcd", "ae"):
        pca.partial_fit(sites[0][: 5 * len(labels)], clients=list(labels) * 5)
        now = {k: e.random_state for k, e in pca.estimators_.items()}
        assert known.items() <= now.items()
        known = now
    assert len(set(known.values())) == len(known) == 5
    assert pca.estimator.random_state is None
    if isinstance(seed, int):
        fits = [clone(pca).set_params(random_state=s).fit(*sites) for s in (0, 0, 1)]
        a, b, c = ({e.random_state for e in fit.estimators_.values()} for fit in fits)
        assert a == b
        assert not a & c


# -------------------------------------------------------------------- summaries from elsewhere


def test_given_summaries_go_on_with_further_clients(sites):
    X, clients = sites
    subspaces = [Subspace.from_rows(X[clients == label]) for label in range(4)]
    pca = FederatedPCA.from_subspaces([*subspaces, Subspace.empty(9)], 4)  # one without rows
    assert_is_pca_of(pca, X[clients < 4], 4)
    names = np.array(list("abcdefg"))[clients]
    for label in (4, 5, 6):
        pca.partial_fit(X[clients == label], clients=names[clients == label])
        assert pca.communication_.table[-1]["messages_up"] == 1
    assert_is_pca_of(pca, X, 4)
    assert pca.clients_ == [0, 1, 2, 3, 4, "e", "f", "g"]
    with pytest.raises(ValueError, match="9 features"):
        pca.partial_fit(X[:, :5], clients=clients)
    first = FederatedPCA.from_subspaces([subspaces[0], Subspace.empty(9)], 4)
    first.set_params(estimator=IncrementalPCA(9))  # of the client without rows one that begins
    first.partial_fit(X[clients == 2], clients=[1] * 70)
    assert_is_pca_of(first, X[np.isin(clients, [0, 2])], 4)


@pytest.mark.parametrize("light", [1.0, 1e-280])
def test_summaries_of_rows_that_weigh_little_show_all_that_they_know(light):
    X = np.random.default_rng(0).standard_normal((40, 6)) * np.arange(1, 7)
    weight = light * 0.5 ** np.arange(40)  # two rows, by their sum
    parts = [Subspace.from_rows(X[i::2], sample_weight=weight[i::2]) for i in range(2)]
    pca = FederatedPCA.from_subspaces(parts, 5)
    Z = np.sqrt(weight / weight.sum())[:, None] * (X - np.average(X, axis=0, weights=weight))
    s, V = np.linalg.svd(Z)[1:]
    assert_allclose(pca.explained_variance_ratio_, (s**2 / np.sum(s**2))[:5], rtol=1e-9)
    assert sine(pca.components_, V[:5]) < 1e-9


@pytest.mark.parametrize(
    "merge", [None, SubspaceMerge(fan_in=2), ProjectionAverage()], ids=["flat", "tree", "average"]
)
def test_a_client_that_is_removed_has_never_been_there(merge):
    X = np.random.default_rng(0).standard_normal((120, 12)) * np.arange(1, 13)
    clients = np.repeat(list("abcde"), 24)
    pca = FederatedPCA(3, merge=merge).fit(X, clients=clients)
    floats, there = pca.communication_.floats_up, clients != "c"
    assert pca.remove("c") is pca
    others = FederatedPCA(3, merge=merge).fit(X[there], clients=clients[there])
    assert_array_equal(pca.components_, others.components_)
    assert_array_equal(pca.mean_, others.mean_)
    assert (pca.clients_, pca.n_samples_) == (list("abde"), 96)
    if merge is None:
        assert pca.communication_.floats_up == floats  # nobody sends again
    assert pca.partial_fit(X[~there], clients=["c"] * 24).n_samples_ == 120
    with pytest.raises(ValueError, match=r"label must be one of clients_, \['a', .*\], got 7"):
        pca.remove(7)
    for label in "abcd":
        pca.remove(label)
    with pytest.raises(ValueError, match="label='e' is the last client"):
        pca.remove("e")


# -------------------------------------------------------------------- communication


def floats_of_triangle(d):
    """Of all directions: an upper triangle, mean and scatter of the columns, number and scatter."""
    return d * (d + 1) // 2 + 2 * d + 2


@pytest.mark.parametrize(
    ("n_clients", "fan_in", "messages"),
    [
        (6, None, [6]),
        (1, 2, [1]),
        (8, 2, [8, 4, 2]),
        (9, 3, [9, 3]),
        (5, 2, [4, 2, 2]),  # a node alone in its group waits for the next level
        (10, 3, [9, 3, 2]),
    ],
)
def test_communication_is_the_closed_formula(n_clients, fan_in, messages):
    d = 7  # so few that every message has all directions
    X = np.random.default_rng(15).standard_normal((20 * n_clients, d))
    merge = SubspaceMerge(fan_in=fan_in)
    log = FederatedPCA(5, n_clients=n_clients, merge=merge).fit(X).communication_
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


def test_partial_fit_counts_only_summaries_that_changed():
    X, clients = np.random.default_rng(16).standard_normal((160, 7)), np.arange(160) % 8
    pca = FederatedPCA(5).fit(X, clients=clients)
    first = pca.communication_
    for changed in ([0], [2, 3], [0, 8]):
        pca.partial_fit(X[:40], clients=np.resize(changed, 40))
        row = pca.communication_.table[-1]
        assert row["messages_up"] == len(changed)
        assert row["floats_up"] == len(changed) * floats_of_triangle(7)
    assert (first.rounds, pca.communication_.rounds) == (1, 4)  # a log handed out stays as it was
    tree = FederatedPCA(5, merge=SubspaceMerge(fan_in=2)).fit(X, clients=clients)
    for model in (tree, copy.deepcopy(tree)):  # a leaf, a node, a child of the root are new
        for _ in range(3):
            model.partial_fit(X[:10], clients=[0] * 10)
        sent = [row["messages_up"] for row in model.communication_.table]
        assert sent == [8, 4, 2, *[1, 1, 1] * 3]


# -------------------------------------------------------------------- what is refused


class Picky(StreamingPCA):
    """Refuses rows with entries beyond 1000."""

    def fit(self, X, y=None, sample_weight=None):
        return self.partial_fit(X, y, sample_weight)

    def partial_fit(self, X, y=None, sample_weight=None):
        if np.abs(X).max() > 1000:
            raise KeyError("rows of no use")
        return super().partial_fit(X, y, sample_weight)


@pytest.mark.parametrize(("n_jobs", "method"), [(1, "partial_fit"), (2, "fit")])
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


ONE_LABEL = "integers.*strings.*"
BAD_LABELS = [
    ([0, 1], r"\(12,\).*\(2,\)"),
    (3, r"\(12,\).*\(\)"),
    (np.zeros((12, 1), dtype=int), r"\(12,\).*\(12, 1\)"),
    (["a"] * 11 + [np.nan], f"{ONE_LABEL}nan"),
    (pd.Series(["a"] * 11 + [None]), f"{ONE_LABEL}(nan|None)"),
    (pd.array([0] * 11 + [None], dtype="Int64"), f"{ONE_LABEL}(nan|<NA>)"),
    (np.array([1] * 6 + ["a"] * 6, dtype=object), f"{ONE_LABEL}(1|'a')"),
    ([1.0] * 11 + [2.5], rf"{ONE_LABEL}2\.5"),
    ([2**70] * 12, f"{ONE_LABEL}1180591620717411303424"),
    ([2.0**63] * 12, rf"{ONE_LABEL}9\.22"),
    ([-(2.0**63) - 2048] * 12, rf"{ONE_LABEL}-9\.22"),
    ([b"a"] * 12, f"{ONE_LABEL}b'a'"),
    (pd.date_range("2020", periods=12), f"{ONE_LABEL}2020"),
]


@pytest.mark.parametrize("code", ["FederatedPCA(2)", "FederatedSubspaceTracker(2, random_state=0)"])
def test_bad_clients_are_refused_by_name_value_and_expectation(code):
    X = np.random.default_rng(18).standard_normal((12, 3))
    pca = made(code).fit(X)
    before = joblib.hash(vars(pca))
    for labels, message in BAD_LABELS:
        for method in (pca.fit, pca.partial_fit):
            with naming(message), pytest.raises(ValueError, match=f"^clients must.*{message}"):
                method(X, clients=labels)
    assert joblib.hash(vars(pca)) == before


# -------------------------------------------------------------------- pipelines and searches


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
