"""Clients with few rows are worked on together, with the results that each has by itself.

Below: rows of clients that come a few at a time; what is found, what is sent, what is kept.
"""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import assert_same_summary, svd_of
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import (
    EnergyBounds,
    FederatedPCA,
    StreamingPCA,
    Subspace,
    SubspaceMerge,
    subspace_distance,
)
from fedpca_sklearn.federated import _summaries


def clients_of(sizes, d, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((sum(sizes), d)) / np.arange(1, d + 1) ** 0.5
    labels = np.repeat(np.arange(len(sizes)), sizes)
    X += rng.standard_normal((len(sizes), d))[labels]
    order = rng.permutation(len(X))
    return X[order].astype(dtype), labels[order]


@pytest.fixture
def by_themselves(monkeypatch):
    """Labels of the clients that have a call of their own."""
    called, fit_site = [], _summaries.fit_site

    def counted(label, *args):
        called.append(label)
        return fit_site(label, *args)

    monkeypatch.setattr(_summaries, "fit_site", counted)
    return called


class Another(StreamingPCA):
    """Not known to be the same, so that each client has a copy of it, and a call."""


def one_by_one(pca):
    k, usual = pca.n_components, 10 if pca.n_features_in_ > 256 else "auto"
    oversampling = getattr(pca.estimator, "oversampling", usual)
    return FederatedPCA(k, estimator=Another(k, oversampling=oversampling), merge=pca.merge)


def assert_same(found, expected, tol):
    assert found.clients_ == expected.clients_
    assert found.communication_ == expected.communication_
    assert found.components_.dtype == expected.components_.dtype
    assert found.n_samples_ == expected.n_samples_
    assert_same_summary(found, expected, 100 * tol)
    assert found.estimators_.keys() == expected.estimators_.keys()


@pytest.mark.parametrize("d", [5, 50, 300])
@pytest.mark.parametrize("merge", [None, SubspaceMerge(fan_in=4)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("estimator", [None, StreamingPCA(3, oversampling=5)])
def test_together_as_one_by_one(d, merge, dtype, estimator, by_themselves):
    tol = 1e-12 if dtype == np.float64 else 1e-5
    X, labels = clients_of([1, 20, 3, 2, 20, 70, 20, 4, 3, 9], d, dtype=dtype)
    few = FederatedPCA(3, merge=merge, estimator=estimator).fit(X, clients=labels)
    alone = set(by_themselves)
    assert 0 in alone  # one row
    assert (5 in alone) or d < 300  # many entries
    if d == 50 and dtype == np.float64:
        assert alone == ({0} if estimator is None else {0, 5})  # who cuts needs directions
    each = one_by_one(few).fit(X, clients=labels)
    assert_same(few, each, tol)
    for label in few.clients_:
        ours, theirs = few.estimators_[label], each.estimators_[label]
        assert ours.get_params() == theirs.get_params() or d == 300
        assert ours.n_samples_seen_ == theirs.n_samples_seen_
        assert ours.subspace_.n_components == theirs.subspace_.n_components
        a, b = ours.subspace_, theirs.subspace_
        assert_allclose(a.singular_values, b.singular_values, rtol=tol, atol=tol)
        assert_allclose(a.components, b.components, atol=1e4 * tol)
        assert_allclose(a.column_scatter, b.column_scatter, rtol=tol)
        assert_allclose(a.mean, b.mean, rtol=tol, atol=tol)
    more, new = clients_of([5, 20, 3, 8], d, 1, dtype)
    new = np.array([3, 4, 77, 78])[new]
    by_themselves.clear()
    assert_same(few.partial_fit(more, clients=new), each.partial_fit(more, clients=new), tol)
    assert {3, 4} <= set(by_themselves)


@pytest.mark.parametrize(
    ("sizes", "d", "options"),
    [
        ([1, 20, 3, 40, 20], 30, {}),
        ([2, 8, 5], 900, {}),
        ([20, 3, 40, 20], 30, {"scale": True}),
        ([20, 3, 40, 20], 30, {"partial_out": [1]}),
    ],
)
def test_sparse_rows_together_are_as_dense_ones(sizes, d, options, by_themselves):
    X, labels = clients_of(sizes, d)
    X[np.random.default_rng(2).random(X.shape) < 0.5] = 0.0
    few = FederatedPCA(3, **options).fit(sp.csr_array(X), clients=labels)
    assert set(by_themselves) == {i for i, size in enumerate(sizes) if size == 1}
    assert_same(few, FederatedPCA(3, **options).fit(X, clients=labels), 1e-12)
    X[0, 0] = np.inf
    with pytest.raises(ValueError, match=f"Client {labels[0]}: .*infinity"):
        few.fit(sp.csr_array(X), clients=labels)


@pytest.mark.parametrize("size", [5, 30])
def test_clients_of_which_too_little_is_certain_have_their_own_calls(size, by_themselves):
    X, labels = clients_of([size] * 4, 9, dtype=np.float32)
    X[labels == 1] *= 1e-25  # squares underflow in float32
    X[np.flatnonzero(labels == 2)[3:]] = X[labels == 2][0]  # of lower rank
    X[labels == 3] = 0.0
    few = FederatedPCA(3).fit(X, clients=labels)
    assert set(by_themselves) == {2, 3}
    each = one_by_one(few).fit(X, clients=labels)
    assert_allclose(few.singular_values_, each.singular_values_, rtol=1e-5)
    assert subspace_distance(few.components_, each.components_) <= 1e-3


def test_an_estimator_with_other_parameters_has_its_own_call(by_themselves):
    X, labels = clients_of([20, 20, 20], 50)
    for options in (
        {"rank_rule": EnergyBounds()},
        {"center": False},
        {"forgetting_factor": 0.9},
        {"svd_solver": "qr"},
        {"block_size": 3},
    ):
        by_themselves.clear()
        FederatedPCA(3, estimator=StreamingPCA(3, **options)).fit(X, clients=labels)
        assert by_themselves == [0, 1, 2], options
    with pytest.raises(ValueError, match=r"Client 0: .*n_components"):
        FederatedPCA(3, estimator=StreamingPCA(51)).fit(X, clients=labels)


def test_estimators_of_small_clients_are_whole(by_themselves):
    X, labels = clients_of([20, 20, 7], 50)
    pca = FederatedPCA(3).fit(X, clients=labels)
    assert not by_themselves
    for label, estimator in pca.estimators_.items():
        rows = X[labels == label]
        alone = StreamingPCA(3).fit(rows)
        for twin in (pickle.loads(pickle.dumps(estimator)), copy.deepcopy(estimator), estimator):
            assert type(twin) is StreamingPCA
            assert {"n_features_in_", "components_"} <= set(dir(twin))
            assert_allclose(twin.transform(rows), alone.transform(rows), atol=1e-12)
        goes_on = copy.deepcopy(estimator).partial_fit(X)
        assert_allclose(goes_on.components_, alone.partial_fit(X).components_, atol=1e-10)
        assert estimator.partial_fit(X[:1]).n_samples_seen_ == len(rows) + 1


@pytest.mark.parametrize("options", [{"scale": True}, {"partial_out": [1]}])
def test_columns_that_become_unlike_keep_their_digits(options):
    """First as many rows as a summary of plain rows serves for, then columns in other units."""
    rng = np.random.default_rng(3)
    X, labels = rng.standard_normal((300, 6)), np.arange(300) % 3
    later = rng.standard_normal((300, 6)) @ np.triu(np.ones((6, 6))) * 10.0 ** np.arange(0, 12, 2)
    pca = FederatedPCA(2, **options).fit(X, clients=labels).partial_fit(later, clients=labels)
    rows = np.concatenate([X, later])
    rows = rows - rows.mean(axis=0)
    if "scale" in options:
        left = rows / rows.std(axis=0)
    else:
        a, left = rows[:, [1]], np.delete(rows, 1, axis=1)
        left = left - a @ (np.linalg.pinv(a) @ left)
    assert_allclose(pca.singular_values_, np.linalg.svd(left, compute_uv=False)[:2], rtol=1e-10)


# ------------------------------------------------------------------ rows that come a few at a time

D = 12


def far_rows(n, d=D, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) * np.linspace(3, 1, d) + 5.0


def calls(X, size, n_clients=3):
    """Rows and labels of each call, of one client or of all."""
    for i, start in enumerate(range(0, len(X), size)):
        part = X[start : start + size]
        clients = np.full(len(part), i % n_clients)
        yield part, np.arange(len(part)) % n_clients if i % 5 == 4 else clients


def streamed(X, size, read=(), **parameters):
    model = FederatedPCA(3, **parameters)
    for i, (part, clients) in enumerate(calls(X, size)):
        model.partial_fit(part, clients=clients)
        for name in read if i % 3 == 1 else ():
            getattr(model, name)
    return model


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("size", "d"), [(1, 6), (4, D), (7, 40), (1500, D)])
def test_the_result_is_that_of_all_rows(size, d, dtype):
    X = far_rows(max(40 * size, 3000) if size < 1000 else 9000, d).astype(dtype)[: 400 * size]
    model = streamed(X, size)
    _, s, V = svd_of(X)
    tol = 1e-12 if dtype == np.float64 else 1e-5
    assert_allclose(model.singular_values_, s[:3], rtol=tol)
    gap = (s[:3] ** 2 - s[1:4] ** 2).min() / s[0] ** 2
    assert_allclose(abs((model.components_ * V[:3]).sum(axis=1)), 1, rtol=0, atol=tol / gap)
    assert model.n_samples_ == len(X) == sum(s.n_samples for s in model.summaries_.values())


def test_what_is_read_changes_no_later_bit():
    X = far_rows(400)
    plain = streamed(X, 5)
    for name in ("components_", "summaries_", "communication_", "estimators_"):
        other = streamed(X, 5, read=[name, "components_"])
        assert_array_equal(plain.components_, other.components_, name)
        assert_array_equal(plain.explained_variance_, other.explained_variance_, name)
        for label, summary in plain.summaries_.items():
            assert summary.to_bytes() == other.summaries_[label].to_bytes(), name
        assert plain.communication_ == other.communication_


@pytest.mark.parametrize(("size", "copied"), [(60, True), (700, False)])
def test_a_client_of_many_columns_cuts_what_it_sends_and_not_what_it_knows(size, copied):
    """By hand: twenty-three directions of all rows of each client, and the means, in one stack."""
    d, n = 300, 2100
    X = far_rows(n, d)
    pca, labels = FederatedPCA(10), np.arange(n) // size % 3
    for i, start in enumerate(range(0, n, size)):
        pca.partial_fit(X[start : start + size], clients=labels[start : start + size])
        log = pca.communication_
        assert (log.rounds, log.floats_pooled) == (i + 1, (start + size) * d)
        if copied and start == 1020:
            pca = copy.deepcopy(pca)
    stack = []
    for label in range(3):
        rows = X[labels == label]
        mean, s, V = svd_of(rows)
        stack += [s[:23, None] * V[:23], np.sqrt(len(rows)) * (mean - X.mean(axis=0))[None]]
        assert_allclose(pca.summaries_[label].singular_values, s[:23], rtol=1e-10)
    s = np.linalg.svd(np.concatenate(stack), compute_uv=False)
    assert_allclose(pca.singular_values_, s[:10], rtol=1e-10)
    sent = pca.summaries_[0].n_floats
    assert pca.communication_.floats_up == n // size * sent


@pytest.mark.parametrize("bad", [np.nan, 1e200])
def test_an_error_while_rows_wait_changes_nothing(bad):
    X = far_rows(100)
    model, other = streamed(X, 5), streamed(X, 5)
    wrong = X[:4].copy()
    wrong[2, 1] = bad
    for rows, parameters, words in [
        (wrong, {}, "Client 1"),
        (X[:4, 1:], {}, "features"),
        (X[:4], {"n_components": -1}, "n_components"),
    ]:
        with pytest.raises(ValueError, match=words):
            model.set_params(**parameters).partial_fit(rows, clients=[1] * 4)
    model.n_components = 3
    for one in model, other:
        one.partial_fit(X[50:60], clients=np.arange(10) % 2)
    assert_array_equal(model.components_, other.components_)
    assert model.communication_ == other.communication_
    model.n_components = 2  # is noticed
    assert model.partial_fit(X[:2], clients=[0, 0]).components_.shape == (2, D)


def test_pickles_and_copies_have_no_rows_and_go_on():
    X = far_rows(300)
    model = streamed(X[:200], 5)
    stored = pickle.dumps(model)
    assert not any(row.tobytes() in stored for row in X[:200])
    for other in pickle.loads(stored), copy.deepcopy(model):
        assert_array_equal(other.components_, model.components_)
        other.partial_fit(X[200:], clients=np.full(100, 1))
        assert_allclose(other.singular_values_, svd_of(X)[1][:3], rtol=1e-12)
    assert model.n_samples_ == 200


def test_a_client_that_joins_named_sites_has_a_name():
    X = far_rows(300)
    sites = [Subspace.from_rows(X[i::3])._replace(site=name) for i, name in enumerate("abc")]
    model = FederatedPCA.from_subspaces(sites, 2)
    model.partial_fit(X[:30], clients=np.repeat(["a", "b", "c"], 10))
    for start in 30, 40:
        model.partial_fit(X[start : start + 10], clients=["d"] * 10)
    assert {label: sent.site for label, sent in model.summaries_.items()} == {
        name: name for name in "abcd"
    }
    with pytest.warns(UserWarning, match="has no site, unlike"):  # a name is a text
        model.partial_fit(X[50:60], clients=[7] * 10)
    assert model.summaries_[7].site is None


def test_few_rows_go_on_from_a_summary_without_the_scatter_of_columns():
    X = far_rows(300)
    first = Subspace.from_rows(X[:100])._replace(column_scatter=None)
    model = FederatedPCA.from_subspaces([first], 3)
    for start in range(100, 130, 10):
        model.partial_fit(X[start : start + 10], clients=[0] * 10)
    assert_allclose(model.singular_values_, svd_of(X[:130])[1][:3], rtol=1e-9)


def test_new_clients_weights_another_merge_and_a_client_that_leaves_end_the_wait():
    X = far_rows(300)
    model = streamed(X, 5)
    model.partial_fit(X[:4], clients=np.full(4, 7)).partial_fit(X[4:6], clients=np.full(2, 7))
    assert model.clients_ == list(model.estimators_) == [0, 1, 2, 7]
    assert model.estimators_[7].n_samples_seen_ == 6
    model.partial_fit(X[:20], clients=np.full(20, 1), sample_weight=np.full(20, 2.0))
    model.remove(7)
    before = model.communication_.totals["messages_up"]
    model.set_params(merge=SubspaceMerge("qr")).partial_fit(X[20:30], clients=np.full(10, 1))
    assert model.communication_.totals["messages_up"] == before + 1  # nobody sends again
    expected = svd_of(np.concatenate([X, X[:20], X[:20], X[20:30]]))[1]
    assert_allclose(model.singular_values_, expected[:3], rtol=1e-12)
