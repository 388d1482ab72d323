"""Rows in arrays of torch and of the strict implementation of the array API.

scikit-learn's own checks of the array API run in test_common.py, in a process of their own.
"""

import copy
import pickle
from itertools import pairwise

import numpy as np
import pytest
from device_helpers import (
    ON_A_DEVICE,
    as_if_on_a_device,
    as_numpy,
    close,
    dispatch,
    on_strict,
    strict,
    torch,
)
from helpers import fitted_attributes
from numpy.testing import assert_allclose
from sklearn import config_context
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.utils import get_tags
from sklearn.utils._array_api import get_namespace_and_device

import fedpca_sklearn
from fedpca_sklearn import (
    GROUSE,
    AvailablePairs,
    DistributedPCA,
    EnergyBounds,
    FederatedPCA,
    FederatedPowerPCA,
    FrequentDirections,
    OjaPCA,
    PersonalizedPCA,
    RobustSubspaceTracker,
    StreamingPCA,
    StreamingPowerMethod,
    Subspace,
    SubspaceMonitor,
    VerticalFederatedPCA,
    evaluate_stream,
    make_power_law,
    merge_subspaces,
    parallel_analysis,
    subspace_distance,
)
from fedpca_sklearn._kernels import linalg, routes
from fedpca_sklearn._validation import arrays
from fedpca_sklearn._validation.arrays import Place, in_numpy, place_of
from fedpca_sklearn.summary import _exact

__all__ = ["dispatch"]

ROWS = make_power_law(300, 12, random_state=0) + np.linspace(-5, 5, 12)
OWNERS = np.arange(300) % 3
PLACES = {
    "torch": torch.asarray,
    "strict": strict.asarray,
    "strict on a device": on_strict,
}
ESTIMATORS = [
    StreamingPCA(4),
    StreamingPCA(3, whiten=True),
    StreamingPCA(0.8, forgetting_factor=0.99),
    FederatedPCA(4, n_clients=3),
    DistributedPCA(4, n_clients=3),
    FederatedPowerPCA(4, n_clients=3, random_state=0),
    FrequentDirections(4),
    OjaPCA(4, random_state=0),
    StreamingPowerMethod(4, random_state=0),
]
# kernels of which are numpy's only
AT_HOME = [
    StreamingPCA(3, scale=True, partial_out=[1]),
    FederatedPCA(4, n_clients=3, scale=True, partial_out=[0, 5]),
    FederatedPCA("parallel", n_clients=3),
    DistributedPCA(4, n_clients=3, missing=AvailablePairs()),
]
OTHERS = [GROUSE(2), PersonalizedPCA(), RobustSubspaceTracker(2), VerticalFederatedPCA(2)]


def named(value):
    return str(value).replace(" ", "")


@pytest.fixture(params=PLACES)
def put(request):
    return PLACES[request.param]


def shown(model):
    """Names of the fitted attributes that are arrays of numbers."""
    return [
        name
        for name, value in fitted_attributes(model).items()
        if isinstance(value, np.ndarray) and value.dtype.kind in "fi"
    ]


@pytest.mark.parametrize("model", [*ESTIMATORS, *AT_HOME], ids=named)
def test_results_are_those_of_numpy_and_where_the_rows_are(model, put):
    X, weight = put(ROWS), np.linspace(0.5, 1.5, len(ROWS))
    weights = [None, weight] if "sample_weight" in model.fit.__code__.co_varnames else [None]
    for w in weights:
        options = {} if w is None else {"sample_weight": w}
        ours = {} if w is None else {"sample_weight": put(w)}
        expected, found = clone(model).fit(ROWS, **options), clone(model).fit(X, **ours)
        assert shown(expected)
        for name in shown(expected):
            close(getattr(found, name), getattr(expected, name))
            assert getattr(found, name).device == X.device
        Z = found.transform(X)
        assert Z.device == X.device
        close(Z, expected.transform(ROWS))
        close(found.inverse_transform(Z), expected.inverse_transform(as_numpy(Z)))
        close(found.score_samples(X), expected.score_samples(ROWS))
        close(found.get_covariance(), expected.get_covariance())
        close(found.get_precision(), expected.get_precision())
        assert isinstance(found.score(X), float)
        score = expected.score(ROWS, sample_weight=weight)
        assert np.isclose(found.score(X, sample_weight=put(weight)), score, rtol=1e-12)
        close(found.subspace_.components, expected.subspace_.components)
        close(found.subspace_.mean, expected.subspace_.mean)
        assert len(found.subspace_.to_bytes()) == expected.subspace_.nbytes


@pytest.mark.parametrize("model", [m for m in ESTIMATORS if hasattr(m, "partial_fit")], ids=named)
def test_batches_of_any_size_and_streams(model, put):
    cuts = [0, 1, 2, 3, 103, 290, 300]
    batches = [ROWS[a:b] for a, b in pairwise(cuts)]
    expected, found = clone(model), clone(model)
    for batch in batches:
        found.partial_fit(put(batch))
        expected.partial_fit(batch)
        close(found.components_, expected.components_)
        assert found.n_samples_ == expected.n_samples_
    if not hasattr(model, "n_clients"):
        streamed = clone(model).fit(put(batch) for batch in batches)
        close(streamed.components_, clone(model).fit(iter(batches)).components_)


@pytest.mark.parametrize("model", [FederatedPCA(3), DistributedPCA(3), FederatedPowerPCA(3)])
def test_clients_are_told_apart_by_labels_of_any_library(model, put):
    model.set_params(**({"random_state": 0} if "random_state" in model.get_params() else {}))
    expected = clone(model).fit(ROWS, clients=OWNERS)
    for labels in (OWNERS, put(OWNERS)):
        found = clone(model).fit(put(ROWS), clients=labels)
        close(found.components_, expected.components_)
        assert found.clients_ == [0, 1, 2]


def test_what_else_a_fit_shows_is_where_its_rows_are(put):
    X = put(ROWS)
    exact = DistributedPCA(3).fit(X)
    close(exact.r_factor_, DistributedPCA(3).fit(ROWS).r_factor_)
    streams = [StreamingPCA(2, oversampling=0, block_size=20).fit(part) for part in (X, ROWS)]
    close(streams[0].explained_variance_interval_, streams[1].explained_variance_interval_)
    for stream, part in zip(streams, (X, ROWS), strict=True):
        stream.refine(part, n_rounds=2)
    # of vectors at random, whose seed is a digest of the directions
    truth = PCA(2, svd_solver="full").fit(ROWS).components_
    assert subspace_distance(streams[0].components_, truth) <= streams[0].subspace_error_bound_ < 1
    close(streams[0].explained_variance_, streams[1].explained_variance_, 1e-4)


def test_a_federation_is_refined_where_its_rows_are(put):
    X = ROWS
    model = FederatedPCA(2, estimator=StreamingPCA(2, oversampling=0, block_size=20), n_clients=3)
    found, expected = clone(model).fit(put(X)), clone(model).fit(X)
    close(found.subspace_.mean, expected.subspace_.mean)
    truth = PCA(2, svd_solver="covariance_eigh").fit(X).components_
    before = subspace_distance(found.components_, truth)
    found.refine(put(X), n_rounds=3)
    assert subspace_distance(found.components_, truth) < before / 10
    assert found.components_.device == put(X).device


@pytest.mark.parametrize("model", [StreamingPCA(3), OjaPCA(3, random_state=0)], ids=named)
def test_one_row_at_a_time(model, put):
    expected, found = clone(model), clone(model)
    for i in range(20):
        expected.partial_fit(ROWS[i : i + 1])
        found.partial_fit(put(ROWS[i : i + 1]))
    close(found.components_, expected.components_)
    close(found.transform(put(ROWS)), expected.transform(ROWS))


def test_summaries_are_where_their_rows_are(put):
    parts = [Subspace.from_rows(put(part)) for part in (ROWS[:100], ROWS[100:250])]
    expected = [Subspace.from_rows(part) for part in (ROWS[:100], ROWS[100:250])]
    parts.append(parts[0].update(put(ROWS[250:]), 5))
    expected.append(expected[0].update(ROWS[250:], 5))
    for part, other in zip(parts, expected, strict=True):
        for name in ("components", "singular_values", "mean", "column_scatter"):
            close(getattr(part, name), getattr(other, name))
            assert getattr(part, name).device == put(ROWS).device
        close(part.explained_variance_ratio, other.explained_variance_ratio)
        assert repr(part) == repr(other)
        assert (part.n_components, part.nbytes) == (other.n_components, other.nbytes)
    for method in ("auto", "gram", "qr", "svd", "orthogonal"):
        merged = merge_subspaces(parts[:2], 4, method=method)
        close(merged.components, merge_subspaces(expected[:2], 4, method=method).components)
        assert merged.n_samples == 250
    close(
        merged.truncate(2).decay(0.5).singular_values,
        as_numpy(merged.singular_values)[:2] * 0.5**0.5,
    )


def test_summaries_come_home(put):
    home, there = Subspace.from_rows(ROWS, 3), Subspace.from_rows(put(ROWS), 3)
    message = there.to_bytes()
    loaded = Subspace.from_bytes(message)
    assert loaded.to_bytes() == message
    assert isinstance(loaded.components, np.ndarray)
    assert_allclose(loaded.components, home.components, atol=1e-12)
    close(pickle.loads(pickle.dumps(there)).components, home.components)
    assert isinstance(there.update(ROWS).components, np.ndarray)
    close(home.update(put(ROWS)).components, home.update(ROWS).components)


def test_fits_go_on_from_summaries_where_they_are(put):
    there = Subspace.from_rows(put(ROWS[:200]))
    expected = StreamingPCA.from_subspace(Subspace.from_rows(ROWS[:200]), 3)
    found = StreamingPCA.from_subspace(there, 3)
    close(found.components_, expected.components_)
    found.partial_fit(put(ROWS[200:]))
    close(found.components_, expected.partial_fit(ROWS[200:]).components_)
    federated = FederatedPCA.from_subspaces([there, there.update(put(ROWS[200:]))], 3)
    close(federated.transform(put(ROWS)), as_numpy(federated.transform(put(ROWS))))
    close(federated.components_, np.array(as_numpy(federated.subspace_.components)[:3]))


def test_the_last_rows_say_where_results_are(put):
    pca = StreamingPCA(3).fit(put(ROWS[:100]))
    pca.partial_fit(ROWS[100:])
    assert isinstance(pca.components_, np.ndarray)
    assert_allclose(pca.components_, StreamingPCA(3).fit(ROWS).components_, atol=1e-12)
    pca.partial_fit(put(ROWS))
    assert not isinstance(pca.components_, np.ndarray)


def test_rows_from_elsewhere_than_those_of_the_fit_are_refused(put):
    for rows, others in ((put(ROWS), ROWS), (ROWS, put(ROWS)), (put(ROWS), ROWS.tolist())):
        pca = StreamingPCA(3).fit(rows)
        with pytest.raises(ValueError, match=r"StreamingPCA\.transform\(\) must use the same name"):
            pca.transform(others)


def test_what_fails_leaves_everything_as_it_was(put):
    pca = StreamingPCA(3).fit(put(ROWS))
    before = dict(vars(pca))
    broken = ROWS.copy()
    broken[7, 2] = np.nan
    with pytest.raises(ValueError, match="contains NaN"):
        pca.partial_fit(put(broken))
    with pytest.raises(ValueError, match="contains NaN"):
        pca.fit(broken)
    assert vars(pca) == before or all(vars(pca)[name] is before[name] for name in before)


def test_copies_and_pickles_are_where_the_fit_was(put):
    pca = StreamingPCA(3).fit(put(ROWS))
    for twin in (copy.deepcopy(pca), pickle.loads(pickle.dumps(pca))):
        assert twin.components_.device == pca.components_.device
        close(twin.transform(put(ROWS)), as_numpy(pca.transform(put(ROWS))))


def power_law(n, d, seed=1):
    return make_power_law(n, d, random_state=seed) + np.linspace(-5, 5, d)


# for which a few passes over all rows pay
MANY = np.random.default_rng(0).standard_normal((4100, 800)) / np.sqrt(np.arange(1.0, 801))
ROUTES = {
    "scatter matrix": (StreamingPCA(3), power_law(500, 40)),
    "far from zero": (StreamingPCA(3), power_law(500, 40) + 1e6),
    "one column constant": (StreamingPCA(3), power_law(500, 40) * (np.arange(40) != 7) + 3.0),
    "Gram matrices of blocks": (StreamingPCA(3, block_size=50), power_law(180, 300)),
    "about the origin": (StreamingPCA(3, block_size=50, center=False), power_law(180, 300)),
    "triangles": (StreamingPCA(3, svd_solver="qr"), power_law(90, 40)),
    "triangles of wide blocks": (StreamingPCA(3, svd_solver="qr"), power_law(60, 300)),
    "no certificate": (StreamingPCA(8), power_law(90, 12) * 10.0 ** -np.arange(12)),
    "triangles at clients": (DistributedPCA(3), power_law(90, 12) + 1e8),
    "fewer rows than features at clients": (DistributedPCA(3, n_clients=3), power_law(25, 40)),
    "a rank rule": (StreamingPCA(rank_rule=EnergyBounds(), block_size=20), power_law(200, 300)),
    "rounds": (FederatedPowerPCA(3, random_state=0, local_steps=2), power_law(300, 20)),
    "passes": (StreamingPCA(2), MANY),
    "other estimators at clients": (FederatedPCA(3, estimator=PCA(3)), power_law(90, 12)),
    "merges of wide rows": (FederatedPCA(3, n_clients=4), power_law(200, 300)),
}


@pytest.mark.parametrize(
    ("route", "weighted"),
    [(route, False) for route in ROUTES] + [(route, True) for route in list(ROUTES)[:-3]],
)
@pytest.mark.parametrize("library", ["strict", "torch"])
def test_each_route_on_a_device_leads_where_that_at_home_does(
    route, weighted, library, monkeypatch
):
    model, X = ROUTES[route]
    there, options = on_strict(X), {}
    if library == "torch":  # its processor in the place of a device
        there = torch.asarray(X)
        as_if_on_a_device(monkeypatch)
    if weighted:
        weight = np.random.default_rng(0).uniform(0.1, 2.0, len(X))
        weight[5:9] = 0.0
        options["sample_weight"] = weight
    found, expected = clone(model).fit(there, **options), clone(model).fit(X, **options)
    size = np.abs(X).max() / np.sqrt(expected.explained_variance_.max())  # rounding of the rows
    for name in ("components_", "singular_values_", "mean_"):
        close(getattr(found, name), getattr(expected, name), 1e-12 * max(1.0, size))
    close(found.transform(there), expected.transform(X), 1e-12 * max(1.0, size))
    if hasattr(model, "partial_fit") and hasattr(found, "_state"):
        found.partial_fit(there, **options)
        expected.partial_fit(X, **options)
        close(found.components_, expected.components_, 1e-12 * max(1.0, size))


def test_rows_on_a_device_have_one_eigenproblem(monkeypatch):
    found, eigh_top = [], linalg.eigh_top

    def counted(*args, **options):
        found.append(args)
        return eigh_top(*args, **options)

    monkeypatch.setattr(_exact, "eigh_top", counted)
    monkeypatch.setattr(routes, "rows_of_scatter_block", lambda d: 400)
    X = MANY[:1000, :270]
    pca = StreamingPCA(10).fit(on_strict(X))
    assert len(found) == 1
    close(pca.components_, PCA(10, svd_solver="covariance_eigh").fit(X).components_, 1e-9)


STAYING = [
    (StreamingPCA(3), power_law(3000, 40)),
    (StreamingPCA(2), MANY),
    (FederatedPCA(3), power_law(3000, 40)),
    (DistributedPCA(3), power_law(3000, 40)),
    (FederatedPowerPCA(3, n_rounds=3, tol=0.0, random_state=0), power_law(3000, 40)),
]


@pytest.mark.parametrize(("model", "X"), STAYING)
def test_rows_stay_on_their_device(model, X, monkeypatch):
    home, come = Place.numpy, []

    def counted(place, array):
        come.append(array.size)
        return home(place, array)

    monkeypatch.setattr(Place, "numpy", counted)
    there = on_strict(X)
    found = clone(model).fit(there)
    found.transform(there)
    assert 0 < sum(come) < X.size / 5  # a sample of 128 rows, and products
    come.clear()
    found.inverse_transform(found.transform(there))
    found.score(there)
    assert sum(come) <= len(X) * (found.n_components_ + 1)


def test_products_in_float32_are_added_up_in_float64():
    X = (MANY[:, :100].reshape(-1, 20) + 3.0).astype(np.float32)[:9000]
    found = StreamingPCA(3).fit(on_strict(X))
    expected = StreamingPCA(3).fit(X.astype(np.float64))
    s, V = np.linalg.svd(X - X.mean(axis=0, dtype=float), full_matrices=False)[1:]
    assert_allclose(found.subspace_._home.singular_values, s, rtol=1e-6)
    assert subspace_distance(found.components_, V[:3]) < 1e-6
    assert_allclose(as_numpy(found.mean_), expected.mean_, atol=1e-6)


@pytest.mark.parametrize("sizes", [(5,), (5, 7), (40, 30)])
def test_float32_rows_far_from_zero_are_centred_in_two_steps(sizes):
    X = (np.random.default_rng(0).standard_normal((sum(sizes), 300)) + 54_321.1).astype(np.float32)
    weight = np.random.default_rng(1).uniform(0.5, 2.0, len(X))
    for w in (None, weight):
        pca, at = StreamingPCA(3, oversampling=20, block_size=50), 0
        for n in sizes:
            part = None if w is None else w[at : at + n]
            pca.partial_fit(on_strict(X[at : at + n]), sample_weight=part)
            at += n
        all_w = np.ones(len(X)) if w is None else w
        Z = X - np.average(X.astype(float), axis=0, weights=all_w)
        squares = all_w @ Z**2
        close(pca.subspace_.column_scatter, squares, 1e-6)
        close(pca.subspace_.mean, np.average(X.astype(float), axis=0, weights=all_w), 1e-10)


def test_float32_stays(put):
    X = ROWS.astype(np.float32)
    expected, found = StreamingPCA(3).fit(X), StreamingPCA(3).fit(put(X))
    dtypes = {as_numpy(a).dtype for a in (found.components_, found.transform(put(X)))}
    assert dtypes == {np.dtype(np.float32)}
    close(found.components_, expected.components_, 1e-6)


def test_tensors_that_numpy_cannot_read():
    with_gradients = torch.tensor(ROWS, requires_grad=True)
    found = StreamingPCA(3).fit(with_gradients)
    assert not found.transform(with_gradients).requires_grad
    close(found.components_, StreamingPCA(3).fit(ROWS).components_)
    brain_floats = torch.tensor(ROWS).to(torch.bfloat16)
    found = StreamingPCA(3).fit(brain_floats)
    close(found.components_, StreamingPCA(3).fit(brain_floats.float().numpy()).components_)


def test_a_device_without_float64_gets_float32():
    X = strict.asarray(ROWS.astype(np.float32), device=strict.Device("no_float64"))
    found = StreamingPCA(3).fit(X)
    assert found.mean_.dtype == found.subspace_.mean.dtype == strict.float32
    home = StreamingPCA(3).fit(ROWS.astype(np.float32))
    assert np.isclose(found.score(X), home.score(ROWS.astype(np.float32)), rtol=1e-5)
    for model in (DistributedPCA(3), FederatedPowerPCA(3, random_state=0)):
        expected = clone(model).fit(ROWS.astype(np.float32))
        close(model.fit(X).components_, expected.components_, 1e-5)
    close(found.components_, StreamingPCA(3).fit(ROWS.astype(np.float32)).components_, 1e-6)


def test_rows_on_a_device_are_checked_there():
    whole = strict.asarray(np.arange(40).reshape(10, 4), device=ON_A_DEVICE)
    expected = StreamingPCA(2).fit(np.arange(40.0).reshape(10, 4))
    close(StreamingPCA(2).fit(whole).components_, expected.components_)
    for wrong, words in [
        (strict.zeros((3,), device=ON_A_DEVICE), "Expected 2D array"),
        (strict.zeros((0, 4), device=ON_A_DEVICE), "at least one row"),
        (strict.zeros((3, 4), dtype=strict.complex64, device=ON_A_DEVICE), "real numbers"),
        (strict.full((3, 4), float("inf"), device=ON_A_DEVICE), "infinity"),
        (strict.zeros((3, 5), device=ON_A_DEVICE), None),
    ]:
        with pytest.raises(ValueError, match=words or "X has 5 features, but StreamingPCA is exp"):
            clone(expected).fit(whole).partial_fit(wrong)


@pytest.mark.parametrize("route", ["scatter matrix", "Gram matrices of blocks", "triangles"])
def test_numbers_that_come_home_may_be_read_only(route, monkeypatch):
    def read_only(value):  # as JAX's
        found = in_numpy(value)
        if found is not value and isinstance(found, np.ndarray):
            found.flags.writeable = False
        return found

    monkeypatch.setattr(arrays, "in_numpy", read_only)
    model, X = ROUTES[route]
    found = clone(model).fit(on_strict(X))
    close(found.components_, clone(model).fit(X).components_)


def test_rows_on_a_device_come_home_for_code_that_knows_numpy_alone():
    X = on_strict(ROWS)
    rows = place_of(X).rows(X)
    np.testing.assert_array_equal(rows - ROWS.mean(axis=0), ROWS - ROWS.mean(axis=0))
    np.testing.assert_array_equal(rows[OWNERS == 1] @ np.eye(12), ROWS[OWNERS == 1])


def test_what_only_looks_like_an_array_is_read_by_numpy():
    class Column:
        def __dlpack__(self):
            raise BufferError

        def __array__(self, dtype=None, copy=None):
            return ROWS

    assert isinstance(StreamingPCA(2).fit(Column()).components_, np.ndarray)


def test_an_estimator_is_moved_by_scikit_learn(put):
    move = pytest.importorskip("sklearn.utils._array_api").move_estimator_to
    pca = StreamingPCA(3).fit(ROWS)
    X = put(ROWS)
    there = move(pca, *get_namespace_and_device(X)[::2])
    close(there.transform(X), pca.transform(ROWS))
    close(there.partial_fit(X).components_, clone(pca).fit(np.vstack([ROWS, ROWS])).components_)
    home = move(there, np, "cpu")
    assert isinstance(home.transform(ROWS), np.ndarray)
    assert isinstance(pca.components_, np.ndarray)


def test_scikit_learns_pca_goes_on_where_the_fit_was():
    X = torch.asarray(ROWS)
    pca = StreamingPCA(3).fit(X)
    close(pca.to_sklearn().transform(X), as_numpy(pca.transform(X)))


@pytest.mark.parametrize("model", OTHERS, ids=named)
def test_other_estimators_say_what_to_call(model, put):
    words = r"got one of .* while array_api_dispatch=True\. X\.detach\(\)\.cpu\(\)\.numpy\(\)"
    with pytest.raises(TypeError, match=words):
        model.fit(put(ROWS))
    fitted = clone(model).fit(ROWS)
    with pytest.raises(TypeError, match=words):
        fitted.transform(put(ROWS))


def test_the_error_names_those_that_take_arrays():
    listed = [
        name
        for name in fedpca_sklearn.__all__
        if isinstance(getattr(fedpca_sklearn, name), type)
        and hasattr(getattr(fedpca_sklearn, name), "_takes_arrays")
        and getattr(fedpca_sklearn, name)._takes_arrays
    ]
    with pytest.raises(TypeError) as error:
        GROUSE(2).fit(torch.tensor(ROWS))
    assert [name for name in listed if name not in str(error.value)] == []
    assert len(listed) == 7
    assert all(get_tags(model).array_api_support for model in ESTIMATORS)


def test_without_dispatch_numpy_reads_what_it_can():
    with config_context(array_api_dispatch=False):
        for model in [*ESTIMATORS, *OTHERS]:
            fitted = clone(model).fit(torch.tensor(ROWS))
            assert isinstance(fitted.transform(torch.tensor(ROWS)), np.ndarray)
    pca = StreamingPCA(3).fit(torch.tensor(ROWS))
    with config_context(array_api_dispatch=False):
        assert isinstance(pca.transform(ROWS), np.ndarray)
        assert isinstance(pca.transform(torch.tensor(ROWS)), np.ndarray)


def test_without_dispatch_nothing_asks_for_a_setting(monkeypatch):
    X, weight = torch.tensor(ROWS), torch.ones(300)
    with config_context(array_api_dispatch=False), monkeypatch.context() as patch:
        patch.delenv("SCIPY_ARRAY_API")
        pca = StreamingPCA(3).fit(X, sample_weight=weight)
        assert subspace_distance(torch.tensor(pca.components_), pca.components_) < 1e-12
        assert FederatedPCA(3).fit(X, clients=torch.tensor(OWNERS)).clients_ == [0, 1, 2]
        column = pytest.importorskip("pyarrow").array([str(owner) for owner in OWNERS])
        assert FederatedPCA(3).fit(X, clients=column).clients_ == ["0", "1", "2"]
        start = torch.eye(12, dtype=torch.float64)[:3]
        FederatedPowerPCA(3, init=start).fit(X)


def test_components_of_other_libraries_are_compared():
    pca, reference = StreamingPCA(3).fit(torch.tensor(ROWS)), PCA(3).fit(ROWS)
    assert subspace_distance(pca.components_, reference.components_) < 1e-10
    evaluated = evaluate_stream(StreamingPCA(3), torch.tensor(ROWS), n_checkpoints=2)
    np.testing.assert_array_equal(
        evaluated.excess, evaluate_stream(StreamingPCA(3), ROWS, n_checkpoints=2).excess
    )
    summary = Subspace.from_estimator(PCA(3).fit(torch.tensor(ROWS)))
    assert subspace_distance(summary.components, reference.components_) < 1e-10


def test_a_removed_site_leaves_the_others_where_they_are(put):
    pca = FederatedPCA(3).fit(put(ROWS), clients=put(OWNERS)).remove(1)
    others = FederatedPCA(3).fit(ROWS, clients=OWNERS).remove(1)
    close(pca.components_, others.components_)
    close(pca.transform(put(ROWS)), others.transform(ROWS))


def test_functions_of_summaries_and_monitors_take_those_of_other_libraries(put):
    pca, reference = StreamingPCA(3).fit(put(ROWS)), StreamingPCA(3).fit(ROWS)
    found, expected = parallel_analysis(pca.subspace_), parallel_analysis(reference.subspace_)
    assert found.n_components == expected.n_components
    assert_allclose(found.thresholds, expected.thresholds, rtol=1e-9)
    monitor = SubspaceMonitor.from_estimator(pca)
    before = SubspaceMonitor.from_estimator(reference)
    assert_allclose(monitor.score_samples(ROWS), before.score_samples(ROWS), rtol=1e-9)
    assert_allclose(monitor.partial_fit(ROWS).q_limit_, before.partial_fit(ROWS).q_limit_)
    assert not isinstance(pca.components_, np.ndarray)


def test_labels_in_a_tensor_need_no_support_of_scipy(monkeypatch):
    with config_context(array_api_dispatch=False), monkeypatch.context() as without:
        without.delenv("SCIPY_ARRAY_API")
        pca = FederatedPCA(2).fit(torch.tensor(ROWS), clients=torch.tensor(OWNERS))
    assert pca.clients_ == [0, 1, 2]
