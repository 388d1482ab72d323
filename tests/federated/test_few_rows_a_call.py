"""Rows of clients that come a few at a time: what is found, what is sent, what is kept."""

import copy
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import FederatedPCA, SubspaceMerge

D = 12


def rows(n, d=D, seed=0):
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


def of_numpy(X):
    Y = X.astype(float) - X.mean(axis=0, dtype=float)
    return np.linalg.svd(Y, full_matrices=False)[1:]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("size", "d"), [(1, 6), (4, D), (7, 40), (1500, D)])
def test_the_result_is_that_of_all_rows(size, d, dtype):
    X = rows(max(40 * size, 3000) if size < 1000 else 9000, d).astype(dtype)[: 400 * size]
    model = streamed(X, size)
    s, V = of_numpy(X)
    tol = 1e-12 if dtype == np.float64 else 1e-5
    assert_allclose(model.singular_values_, s[:3], rtol=tol)
    gap = (s[:3] ** 2 - s[1:4] ** 2).min() / s[0] ** 2
    assert_allclose(abs((model.components_ * V[:3]).sum(axis=1)), 1, rtol=0, atol=tol / gap)
    assert model.n_samples_ == len(X) == sum(s.n_samples for s in model.summaries_.values())


@pytest.mark.parametrize("name", ["components_", "summaries_", "communication_", "estimators_"])
def test_what_is_read_changes_no_later_bit(name):
    X = rows(3000)
    plain, other = streamed(X, 5), streamed(X, 5, read=[name, "components_"])
    assert_array_equal(plain.components_, other.components_)
    assert_array_equal(plain.explained_variance_, other.explained_variance_)
    for label, summary in plain.summaries_.items():
        assert summary.to_bytes() == other.summaries_[label].to_bytes()
    assert plain.communication_ == other.communication_


@pytest.mark.parametrize("constant", [0, 3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_each_call_sends_the_summaries_of_its_clients(dtype, constant):
    X = rows(1200).astype(dtype)
    X[:, :constant] = 2.0
    model, sent, n_messages = FederatedPCA(3), 0, 0
    for part, clients in calls(X, 6):
        model.partial_fit(part, clients=clients)
        messages = [model.summaries_[label].to_bytes() for label in set(clients)]
        sent, n_messages = sent + sum(map(len, messages)), n_messages + len(messages)
    log = model.communication_
    assert log.rounds == 200
    assert log.bytes_up == sent
    assert log.totals["messages_up"] == n_messages
    assert log.floats_pooled == X.size


def test_a_summary_that_was_sent_is_not_sent_again():
    X = rows(300)
    model = streamed(X, 5)
    before = model.communication_.totals["messages_up"]
    model.set_params(merge=SubspaceMerge("qr")).partial_fit(X[:5], clients=np.full(5, 1))
    assert model.communication_.totals["messages_up"] == before + 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_a_wrong_row_is_an_error_and_changes_nothing(bad):
    X = rows(100)
    model, other = streamed(X, 5), streamed(X, 5)
    wrong = X[:4].copy()
    wrong[2, 1] = bad
    with pytest.raises(ValueError, match="Client 1"):
        model.partial_fit(wrong, clients=[1] * 4)
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:4, 1:], clients=[1] * 4)
    with pytest.raises(ValueError, match="one label per row"):
        model.partial_fit(X[:4], clients=[1] * 3)
    for one in model, other:
        one.partial_fit(X[50:60], clients=np.arange(10) % 2)
    assert_array_equal(model.components_, other.components_)
    assert model.communication_ == other.communication_


def test_pickles_and_copies_have_no_rows_and_go_on():
    X = rows(400)
    model = FederatedPCA(3)
    for part, clients in calls(X[:200], 5):
        model.partial_fit(part, clients=clients)
    stored = pickle.dumps(model)
    assert not any(row.tobytes() in stored for row in X[:200])
    for other in pickle.loads(stored), copy.deepcopy(model):
        assert_array_equal(other.components_, model.components_)
        other.partial_fit(X[200:300], clients=np.full(100, 1))
        assert_allclose(other.singular_values_, of_numpy(X[:300])[0][:3], rtol=1e-12)
    assert model.n_samples_ == 200


def test_a_parameter_that_is_set_is_noticed():
    X = rows(100)
    model = streamed(X, 5)
    model.n_components = -1
    with pytest.raises(ValueError, match="n_components"):
        model.partial_fit(X[:2], clients=[0, 0])
    model.n_components = 2
    assert model.partial_fit(X[:2], clients=[0, 0]).components_.shape == (2, D)


def test_new_clients_and_clients_that_leave():
    X = rows(300)
    model = streamed(X, 5)
    model.partial_fit(X[:4], clients=np.full(4, 7)).partial_fit(X[4:6], clients=np.full(2, 7))
    assert model.clients_ == [0, 1, 2, 7]
    assert list(model.estimators_) == model.clients_
    assert model.estimators_[7].n_samples_seen_ == 6
    model.remove(7)
    assert_allclose(model.singular_values_, of_numpy(X)[0][:3], rtol=1e-12)
    assert model.n_samples_ == 300


def test_weights_and_other_rows_end_the_wait():
    X = rows(300)
    model = streamed(X, 5)
    model.partial_fit(X[:20], clients=np.full(20, 1), sample_weight=np.full(20, 2.0))
    model.partial_fit(X[20:30], clients=np.full(10, 1))
    expected = of_numpy(np.concatenate([X, X[:20], X[:20], X[20:30]]))[0]
    assert_allclose(model.singular_values_, expected[:3], rtol=1e-12)
