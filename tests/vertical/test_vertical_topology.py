"""Topologies, groups of columns, and what travels with VerticalFederatedPCA.

Oracles are known graphs, numpy's Chebyshev polynomials of the weights, the average, and the results
with a server.
"""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from helpers import arrays_in
from hypothesis import given
from hypothesis import strategies as st
from numpy.polynomial import Chebyshev
from numpy.testing import assert_allclose, assert_array_equal
from rounds_helpers import Recorder, assert_same, examples, seeds
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted
from test_vertical_pca import alike, every_method, holds_a_column, rows, vertical

from fedpca_sklearn import CommunicationLog, Graph, Ring, Topology, VFedPCA
from fedpca_sklearn.communication._topology import (
    Gossip,
    Peers,
    as_topology,
    metropolis,
    neighbours_of,
)
from fedpca_sklearn.vertical._vfedpca import Columns, left_factor, local_power

UNEQUAL = [[7, 0], [3], [1, 6, 2, 5], [4]]


def adjacency(topology, n):
    topology = as_topology(topology)
    return None if topology is None else neighbours_of(topology, n)


def connected(p, seed):
    """A connected graph: a random tree with some more edges."""
    rng = np.random.default_rng(seed)
    A = rng.random((p, p)) < rng.random() / 2
    for i in range(1, p):
        A[i, rng.integers(i)] = True
    A |= A.T
    A[np.diag_indices(p)] = False
    return A


def path(p):
    return np.eye(p, k=1) + np.eye(p, k=-1)


# ------------------------------------------------------------------------------------ topologies


def test_known_topologies():
    assert adjacency("server", 4) is adjacency(None, 4) is None
    assert_array_equal(adjacency("complete", 3), ~np.eye(3, dtype=bool))
    assert_array_equal(adjacency("ring", 3), adjacency("complete", 3))
    assert_array_equal(adjacency("ring", 4), [[0, 1, 0, 1], [1, 0, 1, 0]] * 2)
    assert_array_equal(adjacency("star", 3), [[0, 1, 1], [1, 0, 0], [1, 0, 0]])
    for name in "complete", "ring", "star":
        assert_array_equal(adjacency(name, 1), [[False]])
        assert_array_equal(adjacency(name, 2), [[False, True], [True, False]])
    assert_array_equal(adjacency(np.ones((3, 3)), 3), adjacency("complete", 3))
    for same in csr_array(path(4)), path(4).tolist(), path(4) > 0:
        assert_array_equal(adjacency(same, 4), path(4))


def test_graphs_of_networkx():
    nx = pytest.importorskip("networkx")
    named = nx.relabel_nodes(nx.path_graph(4), dict(enumerate("wxyz")))
    both, several = nx.DiGraph(nx.path_graph(4)), nx.MultiGraph(nx.path_graph(4))
    several.add_edge(0, 1)
    for G in nx.path_graph(4), named, both, several, nx.to_scipy_sparse_array(named):
        assert_array_equal(adjacency(G, 4), path(4))
    one_way, cut = nx.path_graph(4, create_using=nx.DiGraph), nx.from_numpy_array(DISCONNECTED)
    for G in nx.path_graph(5), one_way, nx.empty_graph(4), cut:
        with pytest.raises(ValueError, match="topology must be"):
            adjacency(G, 4)
    X = alike()
    by_graph = vertical(2, feature_groups=4, topology=named).fit(X)
    assert_same(by_graph, vertical(2, feature_groups=4, topology=path(4)).fit(X), 1e-12)


def without(A, i, j, both=True):
    A = np.array(A)
    A[i, j] = 0
    A[j, i] *= not both
    return A


DISCONNECTED = without(path(4), 1, 2)
WRONG = [DISCONNECTED, without(path(4), 1, 2, both=False)]
WRONG += [path(5), np.ones((4, 3)), np.ones(4), path(4) / 2, -path(4), path(4) * np.nan]
WRONG += ["mesh", "Ring", 4, [["a", "b"], ["c", "d"]], [[0, 1], [1]], object(), csr_array(path(3))]


def test_wrong_topologies_are_named():
    for topology in WRONG:
        model = vertical(feature_groups=4, topology=topology)
        with pytest.raises(ValueError, match="topology must be"):
            model.fit(rows())
        with pytest.raises(NotFittedError):
            check_is_fitted(model)


def test_a_topology_of_ones_own_is_checked_as_all_are():
    class Path(Topology):
        def neighbours(self, n):
            return path(n) if n != 3 else path(2)

    X = alike()
    own = vertical(2, feature_groups=4, topology=Path()).fit(X)
    assert_same(own, vertical(2, feature_groups=4, topology=Graph(path(4))).fit(X), 1e-12)
    with pytest.raises(ValueError, match=r"topology must be .*\(3, 3\).* got shape \(2, 2\)"):
        vertical(2, feature_groups=3, topology=Path()).fit(X)
    assert clone(own).topology.get_params() == {"tol": 1e-10}
    searched = vertical(topology=Graph(path(4))).set_params(topology__tol=1e-3)
    assert searched.topology.tol == 1e-3


@every_method
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_groups_by_name(method, library):
    X = rows()
    frame = pytest.importorskip(library).DataFrame(
        dict(zip([*"ab", "e\u0301", *"defgh"], X.T, strict=True))
    )
    groups = [["h", "a"], "\xe9", pd.Index(["b", "g"]), ("d", "f", 4)]
    model = vertical(method=method, feature_groups=groups).fit(frame)
    assert [list(g) for g in model.feature_groups_] == [[7, 0], [2], [1, 6], [3, 5, 4]]
    assert_same(model, clone(model).set_params(feature_groups=model.feature_groups_).fit(X), 1e-12)
    Z = model.set_output(transform=library).transform(frame)
    assert type(Z) is type(frame)
    assert_allclose(Z.to_numpy(), (X - X.mean(axis=0)) @ model.components_.T, atol=1e-9)
    if library == "pandas":
        with pytest.raises(ValueError, match="feature names"):
            model.transform(frame[frame.columns[::-1]])


# ------------------------------------------------------------------------------------- gossip


@examples
@given(seed=seeds, p=st.integers(2, 12), digits=st.integers(1, 6))
def test_gossip_is_chebyshevs_polynomial_of_the_weights(seed, p, digits):
    A = connected(p, seed)
    gossip = Gossip(A, 10.0**-digits)
    values, Q = np.linalg.eigh(metropolis(A))
    r, m = np.sort(np.abs(values))[-2], gossip.n_exchanges
    if r > 1e-6:
        T = Chebyshev.basis(m)
        start = np.random.default_rng(seed).standard_normal((p, 3))
        want = Q @ (T(values / r) / T(1 / r) * (Q.T @ start).T).T
        assert_allclose(gossip.average(start), want, atol=1e-9)
        # one exchange less would not do
        assert 1 / T(1 / r) <= 10.0**-digits < 1 / Chebyshev.basis(m - 1)(1 / r) * (1 + 1e-6)


def test_numbers_of_exchanges():
    assert Gossip(adjacency("complete", 5), 1e-12).n_exchanges == 1
    alone = Gossip(adjacency("ring", 1), 1e-12)
    assert alone.n_exchanges == 0
    assert_array_equal(alone.average(np.arange(3.0)[None]), [[0, 1, 2]])
    assert Gossip(path(4) > 0, 1.0).n_exchanges == Gossip(path(4) > 0, 10.0).n_exchanges == 0
    # tol of zero is rounding
    assert Gossip(path(4) > 0, 0.0).n_exchanges == Gossip(path(4) > 0, 2.0**-52).n_exchanges
    # by the weights alone, the gap of a ring of 60 takes 6,000
    r = (1 + 2 * np.cos(2 * np.pi / 60)) / 3
    assert np.log(1e-10) / np.log(r) > 6000
    want = np.ceil(np.arccosh(1e10) / np.arccosh(1 / r))
    assert Gossip(adjacency("ring", 60), 1e-10).n_exchanges == want < 300
    # between two sides of three clients the least eigenvalue counts: -1/2, beside 1/4
    sides = np.kron(1 - np.eye(2), np.ones((3, 3))) > 0
    assert Gossip(sides, 1e-10).n_exchanges == np.ceil(np.arccosh(1e10) / np.arccosh(2))


# --------------------------------------------------------------------------- without a server


def test_clients_that_hear_their_neighbours_alone_disagree():
    model = vertical(2, feature_groups=3, topology=path(3))
    U = model.set_params(method=VFedPCA(exchange="neighbours")).fit(alike()).client_vectors_
    apart = [np.linalg.norm(a - b, axis=1).max() for a in U for b in U]
    assert model.disagreement_ == max(apart) > 1e-3
    # all signs are tried, of vectors of which some are turned by the last exchange
    signs, near = np.array(list(product([1, -1], repeat=6))), Ring().neighbours(6) + np.eye(6)
    for seed in (3, 6, 26):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((40, 12)) * np.linspace(3, 1, 12) + rng.standard_normal((40, 1))
        options = {"feature_groups": 6, "topology": Ring(), "exchange": "neighbours"}
        for V in np.swapaxes(vertical(3, **options).fit(X).client_vectors_, 0, 1):
            sums = np.einsum("si,ij,sj->s", signs, V @ V.T * near, signs)
            assert sums[0] == pytest.approx(sums.max())
    assert not hasattr(model.set_params(method="vfedpca").fit(alike()), "client_vectors_")


@pytest.mark.parametrize("tol", [1e-2, 1e-4, 1e-6])
def test_disagreement_is_of_the_size_of_tol(tol):
    peers = Peers(adjacency("ring", 6), tol, None, None, CommunicationLog())
    # all messages are nearly one, so their weights make the differences
    messages = np.outer(np.linspace(1, 2, 6), np.ones(9)) + 0.01 * alike(6, 9)
    peers.sum(lambda label, message: message, list(enumerate(messages)))
    assert 0 < peers.disagreement < 2 * tol
    values = peers.gossip.average(6 * messages)
    furthest = np.linalg.norm(values - values[0], axis=1).max()
    assert peers.disagreement == pytest.approx(furthest / np.linalg.norm(values, axis=1).max())


# --------------------------------------------------------------------------------- communication


def floats(model, direction="up"):
    return [row[f"floats_{direction}"] for row in model.communication_.table]


def end(r, p=4):
    """Floats up of the two sums after all rounds, for components and their variances."""
    return [p * (r * r + 1), p * (r * r + 60 * r), 0]


@pytest.mark.parametrize(
    ("topology", "edges", "diameter"), [("ring", 5, 2), ("star", 4, 2), (path(5), 4, 4)], ids=str
)
@pytest.mark.parametrize("weighting", ["eigenvalue", "equal"])
def test_floats_of_vfedpca_between_neighbours(topology, edges, diameter, weighting):
    size = 60 if weighting == "equal" else 61
    options = {"feature_groups": 5, "n_rounds": 1, "topology": topology, "weighting": weighting}
    model = vertical(1, **options).fit(rows())
    *passed_on, third, second, last = floats(model)
    assert [third, second, last] == end(1, 5)
    assert len(passed_on) == diameter
    assert passed_on[0] == 2 * edges * size
    assert sum(passed_on) == 5 * 4 * size
    # vectors once, then the products of neighbours to all; and the same of the common vectors
    for r in (1, 2):
        near = floats(vertical(r, **options, exchange="neighbours").fit(rows()))
        *periods, signs = np.split(near[:-3], (1 + diameter) * np.arange(1, r + 1))
        for period in periods:
            assert period[0] == 2 * edges * size
            assert sum(period[1:]) == 2 * edges * 4
        assert signs[0] == 2 * edges * 60 * r
        assert sum(signs[1:]) == 2 * edges * 4 * r
        assert near[-3:] == end(r, 5)
        assert {type(n) for n in near} == {int}


# --------------------------------------------------------------------------- what the server sees


def test_messages_of_power_hold_no_column():
    X, Recorder.seen = rows(), []
    vertical(method="power", feature_groups=UNEQUAL, channel=Recorder()).fit(X)
    assert Recorder.seen
    for messages in Recorder.seen:
        assert len(messages) == 4
        for message in [sum(messages), messages[0], messages[2]]:  # of clients with several columns
            assert message.shape[1] == 60
            assert not holds_a_column(message, X)


def test_a_client_with_one_column_sends_it_up_to_sign_and_mean():
    # "Columns never leave a client" holds for clients with several columns only
    X = rows()
    column = X[:, 3] - X[:, 3].mean()
    factor = left_factor(0, column[None], None)
    value, vector = local_power(Columns(0, 1, column[None]), X[:, 0], 3)
    assert_allclose(np.abs(factor.singular_values[0] * factor.components[0]), np.abs(column))
    assert_allclose(np.abs(np.sqrt(value) * vector), np.abs(column))


@every_method
@pytest.mark.parametrize("topology", ["server", "ring"])
def test_no_fitted_attribute_holds_columns(method, topology):
    X = rows()
    copy = X.copy()
    X.flags.writeable = False
    model = vertical(method=method, feature_groups=UNEQUAL, topology=topology).fit(X)
    for array in arrays_in(vars(model)):
        assert len(X) not in array.shape  # nothing of the length of a column
        assert not np.shares_memory(array, X)
    assert_array_equal(X, copy)
