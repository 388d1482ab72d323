"""What holds for every estimator of rows at clients, however its clients are merged.

The oracle of each property is another fit of the same estimator; that a fit is right is shown where
the estimator is tested. Two fits differ by rounding, and those that go in rounds by their tolerance
of 1e-10: 1e-8 is above both, and far below any error in the algebra.
"""

import numpy as np
import pytest
import scipy.sparse as sp
from golden_cases import made
from helpers import assert_same_summary, unlike_sites
from numpy.testing import assert_allclose

SIZES = [40, 1, 70, 33, 50, 2, 64]
MODELS = """
FederatedPCA(3)
FederatedPCA(3, merge=SubspaceMerge("qr", fan_in=2))
FederatedPCA(3, merge=SubspaceMerge(fan_in=3))
FederatedPCA(3, merge=SubspaceMerge(center="site"))
FederatedPCA(3, merge=ProjectionAverage(4))
FederatedPCA(3, merge=ProjectionAverage(4, "rows"))
FederatedPCA(3, merge=NoiseAwareMerge())
FederatedPCA(3, merge=RobustMerge())
FederatedPCA(3, scale=True, partial_out=[0])
DistributedPCA(3)
TruncatedDistributedPCA(3, local_threshold=0.7)
OnlineDistributedPCA(3)
OnlineDistributedPCA(3, weighting="rows")
OnlineDistributedPCA(3, average="steps", center=False, variances="sent")
FederatedPowerPCA(3, n_rounds=2000, tol=1e-10, random_state=0)
FederatedPowerPCA(3, acceleration="krylov", tol=1e-10, random_state=0)
FederatedHeteroscedasticPCA(3, n_rounds=2000, tol=1e-10, random_state=0)
""".strip().splitlines()
every_model = pytest.mark.parametrize("code", MODELS)


@pytest.fixture
def sites():
    """Seven unlike clients of 1 to 70 rows, a third of whose entries is zero."""
    rng = np.random.default_rng(0)
    X, clients = unlike_sites(rng, SIZES, 9)
    return X * (rng.random(X.shape) < 0.7), clients


def assert_same(a, b, tol=1e-8):
    assert_same_summary(a, b, tol)
    assert_allclose(a.components_, b.components_, atol=100 * tol)  # signs included
    assert_allclose(a.explained_variance_, b.explained_variance_, rtol=tol)


@every_model
def test_order_of_rows_and_names_of_clients_do_not_matter(code, sites):
    X, clients = sites
    rng = np.random.default_rng(1)
    shuffle, want = rng.permutation(len(X)), made(code).fit(X, clients=clients)
    for rows, labels in [
        (X[shuffle], clients[shuffle]),
        (X, rng.permutation(7)[clients]),
        (X, np.array(list("pzamkby"))[clients]),
        (X, -10 * clients),
    ]:
        assert_same(made(code).fit(rows, clients=labels), want)


@every_model
def test_weights_are_repeated_rows_and_a_client_without_weight_is_absent(code, sites):
    X, clients = sites
    weight = np.random.default_rng(2).integers(0, 4, len(X)) * (clients != 2)
    weighted = made(code).fit(X, clients=clients, sample_weight=weight)
    rows, labels = np.repeat(X, weight, axis=0), np.repeat(clients, weight)
    repeated = made(code).fit(rows, clients=labels)
    assert_same(weighted, repeated)
    assert weighted.clients_ == repeated.clients_ == sorted(set(labels.tolist()))
    sent = weighted.communication_.table[0]["messages_up"]
    assert sent == repeated.communication_.table[0]["messages_up"]


@every_model
@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_matrix, sp.coo_array])
def test_sparse_rows_are_the_dense_ones(code, sites, kind):
    X, clients = sites
    dense, sparse = made(code).fit(X, clients=clients), made(code).fit(kind(X), clients=clients)
    assert_same(sparse, dense)
    assert_allclose(sparse.transform(kind(X)), dense.transform(X), atol=1e-6)
    assert sparse.communication_.floats_pooled == np.count_nonzero(X)


@every_model
def test_clients_may_work_in_parallel(code, sites):
    X, clients = sites
    both = [made(code).set_params(n_jobs=n).fit(X, clients=clients) for n in (1, 2)]
    assert_same(*both, tol=1e-12)
    assert both[0].communication_ == both[1].communication_


@every_model
def test_float32_rows_are_computed_in_float64(code, sites):
    X, clients = sites
    X = (X + 10).astype(np.float32)
    found = made(code).fit(X, clients=clients)
    for name in ("components_", "mean_", "singular_values_"):
        assert getattr(found, name).dtype == np.float32
    exact = made(code).fit(X.astype(np.float64), clients=clients)
    # each is rounded once on the way and once at the end, over gaps of a tenth
    assert_same_summary(found, exact, 100 * np.finfo(np.float32).eps)
