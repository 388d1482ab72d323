"""Sites that own columns: rows matched by hashed keys, and the components of all columns."""

import hmac
import os

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA, KernelPCA

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from test_flower import grid_of, without

from fedpca_sklearn import (
    LeftVectorMerge,
    PowerRounds,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
    VFedPCA,
    subspace_distance,
)
from fedpca_sklearn.engines.flower import SiteRows, fit_sites

pd = pytest.importorskip("pandas")

SALT = b"agreed by telephone, 32 bytes long"
WHOLE = load_breast_cancer(as_frame=True).data.iloc[:120]
WHOLE = (WHOLE - WHOLE.mean()) / WHOLE.std() + np.arange(30)
RNG = np.random.default_rng(5)
COLUMNS = {"bank": slice(0, 12), "clinic": slice(12, 13), "shop": slice(13, 30)}
# each has other rows, in an order of its own, and some that nobody else has
ROWS = {"bank": np.arange(0, 110), "clinic": np.arange(10, 120), "shop": np.arange(5, 115)}
ROWS = {site: RNG.permutation(rows) for site, rows in ROWS.items()}
COMMON = np.arange(10, 110)
JOINED = WHOLE.iloc[COMMON]


def owner(site, salt=SALT, **changes):
    rows = WHOLE.iloc[ROWS[site], COLUMNS[site]]
    given = {"X": rows, "keys": [f"person {i}" for i in ROWS[site]], "salt": salt}
    return SiteRows(**(given | changes))


OWNERS = {site: owner(site) for site in COLUMNS}


def fitted_at(estimator, owners=OWNERS, spoil=None, **options):
    return fit_sites(grid_of(estimator, owners, spoil), estimator, wait=0, **options)


def in_one_process(estimator):
    groups = [list(range(30))[columns] for columns in COLUMNS.values()]
    return clone(estimator).set_params(feature_groups=groups)


EXACT = [
    VerticalFederatedPCA(4, method="power", random_state=0),
    VerticalFederatedPCA(4, method="merge"),
    VerticalFederatedPCA(4, method=PowerRounds(tol=1e-13), center=False, random_state=0),
]
METHODS = [
    *EXACT,
    VerticalFederatedPCA(3, random_state=0),
    VerticalFederatedPCA(2, method=LeftVectorMerge(2)),
    VerticalFederatedPCA(
        2,
        method=VFedPCA(n_rounds=3, weighting="eigenvalue", update="cumulative", warm_start=False),
        random_state=0,
    ),
]


@pytest.mark.parametrize("estimator", EXACT, ids=lambda e: str(e.method))
def test_owners_with_partly_overlapping_rows_give_pca_of_the_joined_table(estimator):
    fitted = fitted_at(estimator)
    table = JOINED.to_numpy()
    mean = table.mean(axis=0) if estimator.center else np.zeros(30)
    _, s, V = np.linalg.svd(table - mean, full_matrices=False)
    assert subspace_distance(fitted.components_, V[:4]) <= 1e-8
    np.testing.assert_allclose(np.abs(np.sum(fitted.components_ * V[:4], axis=1)), 1, atol=1e-8)
    np.testing.assert_allclose(fitted.singular_values_, s[:4], rtol=1e-8)
    np.testing.assert_allclose(fitted.mean_, mean, atol=1e-8)
    assert fitted.n_samples_ == 100
    assert fitted.n_rows_left_out_ == {"bank": 10, "clinic": 10, "shop": 10}
    assert fitted.clients_ == list(COLUMNS)
    assert fitted.feature_names_in_.tolist() == WHOLE.columns.tolist()
    assert fitted.n_features_in_ == 30
    np.testing.assert_allclose(
        fitted.transform(JOINED), (table - fitted.mean_) @ fitted.components_.T, atol=1e-10
    )
    if estimator.center:
        np.testing.assert_allclose(
            fitted.explained_variance_ratio_, PCA(4).fit(table).explained_variance_ratio_, rtol=1e-8
        )


@pytest.mark.parametrize("estimator", METHODS, ids=lambda e: str(e.method))
def test_owners_give_what_clients_in_one_process_give(estimator):
    estimator = clone(estimator)
    order = order_of_keys()
    fitted = fitted_at(estimator)
    expected = in_one_process(estimator).fit(JOINED.iloc[order].to_numpy())
    np.testing.assert_allclose(fitted.components_, expected.components_, atol=1e-8)
    np.testing.assert_allclose(fitted.singular_values_, expected.singular_values_, rtol=1e-8)
    np.testing.assert_allclose(fitted.noise_variance_, expected.noise_variance_, rtol=1e-8)
    assert fitted.n_iter_ == expected.n_iter_
    for part, of_one in zip(fitted.client_components_, expected.client_components_, strict=True):
        np.testing.assert_allclose(part, of_one, atol=1e-8)


def order_of_keys():
    """Positions of the common rows in the order in which the sites use them."""
    hashes = [hmac.digest(SALT, f"key person {i}".encode(), "sha256") for i in COMMON]
    return np.argsort(np.array(hashes, dtype=object), kind="stable")


# -------------------------------------------------------------------- kernels

KERNELS = [
    VerticalFederatedKernelPCA(3, gamma=0.05),
    VerticalFederatedKernelPCA(3, kernel="linear", projection="features"),
    VerticalFederatedKernelPCA(2, kernel="poly", n_landmarks=40, random_state=0),
    VerticalFederatedKernelPCA(2, aggregation=VFedPCA(n_rounds=2), random_state=0),
    VerticalFederatedKernelPCA(
        2, aggregation=VFedPCA(n_rounds=3, update="original_columns"), random_state=0
    ),
    VerticalFederatedKernelPCA(
        2, kernel="poly", degree=2, aggregation="paper", projection="features", random_state=0
    ),
]


@pytest.mark.parametrize("estimator", KERNELS, ids=lambda e: f"{e.kernel}-{e.projection}")
def test_kernels_of_owners_are_those_of_clients_in_one_process(estimator):
    fitted = fitted_at(estimator)
    joined = JOINED.iloc[order_of_keys()].to_numpy()
    expected = in_one_process(estimator).fit(joined)
    np.testing.assert_allclose(fitted.eigenvalues_, expected.eigenvalues_, rtol=1e-8)
    np.testing.assert_allclose(fitted.eigenvectors_, expected.eigenvectors_, atol=1e-7)
    np.testing.assert_allclose(fitted.gamma_, expected.gamma_)
    assert fitted.n_rows_left_out_ == {"bank": 10, "clinic": 10, "shop": 10}
    assert fitted.feature_names_in_.tolist() == WHOLE.columns.tolist()
    if estimator.projection == "features":
        np.testing.assert_allclose(fitted.components_, expected.components_, atol=1e-7)
        np.testing.assert_allclose(
            fitted.transform(JOINED), expected.transform(JOINED.to_numpy()), atol=1e-6
        )
    else:
        with pytest.raises(ValueError, match="needs projection='features'"):
            fitted.transform(JOINED)


def test_the_kernel_of_all_columns_is_that_of_the_joined_table():
    fitted = fitted_at(KERNELS[0])
    pooled = KernelPCA(3, kernel="rbf", gamma=0.05, eigen_solver="dense").fit(JOINED)
    np.testing.assert_allclose(fitted.eigenvalues_, pooled.eigenvalues_, rtol=1e-8)


# -------------------------------------------------------------------- who takes part, and names


@pytest.mark.parametrize("kind", ["keys", "times_columns"])
def test_an_owner_that_is_lost(kind):
    estimator = EXACT[0]
    with pytest.warns(UserWarning, match=r"Fitted without site '(shop|node 3)'"):
        fitted = fitted_at(estimator, spoil=without("shop", kind, "timeout"))
    assert fitted.clients_ == ["bank", "clinic"]
    pooled = PCA(4).fit(JOINED.iloc[:, :13])
    assert subspace_distance(fitted.components_, pooled.components_) <= 1e-8
    assert fitted.n_rows_left_out_ == {"bank": 10, "clinic": 10}


def test_columns_of_one_name_at_two_owners():
    changed = {s: o.X.rename(columns=lambda c: c.replace("worst", "mean")) for s, o in _all()}
    fitted = fitted_at(EXACT[1], {site: owner(site, X=rows) for site, rows in changed.items()})
    assert fitted.feature_names_in_[0] == "bank: mean radius"
    assert len(set(fitted.feature_names_in_)) == 30
    bare = {site: owner(site, X=o.X.to_numpy()) for site, o in _all()}
    assert not hasattr(fitted_at(EXACT[1], bare), "feature_names_in_")


def _all():
    return OWNERS.items()


def test_columns_without_variance():
    constant = {site: owner(site, X=0 * o.X.to_numpy() + 7.0) for site, o in _all()}
    fitted = fitted_at(VerticalFederatedPCA(2, method="power", random_state=0), constant)
    assert not fitted.explained_variance_.any()
    np.testing.assert_allclose(fitted.mean_, 7.0)
    np.testing.assert_allclose(fitted.components_ @ fitted.components_.T, np.eye(2), atol=1e-12)


def test_single_precision():
    narrow = {site: owner(site, X=o.X.to_numpy(np.float32)) for site, o in _all()}
    fitted = fitted_at(EXACT[1], narrow)
    assert fitted.components_.dtype == np.float32
    assert subspace_distance(fitted.components_, PCA(4).fit(JOINED).components_) < 1e-4


def test_another_method_is_refused():
    class Mine(PowerRounds.__base__):
        def left_vectors(self, federation, clients, rank, rounds=range):
            raise NotImplementedError

    with pytest.raises(TypeError, match="LeftVectorMerge, PowerRounds, VFedPCA over a network"):
        fitted_at(VerticalFederatedPCA(2, method=Mine()))
