"""Rows in arrays of torch and of the strict implementation of the array API.

scikit-learn's own checks of the array API run in test_common.py, in a process of their own.

Streams of batches on a device: added up there, with one eigenproblem at the end of a call.
"""

import copy
import pickle
import weakref

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from device_helpers import (
    ON_A_DEVICE,
    ON_A_GPU,
    as_if_on_a_device,
    as_numpy,
    close,
    come,
    dispatch,
    eigenproblems,
    on_strict,
    power_law,
    strict,
    torch,
)
from golden_cases import NAMES, made
from helpers import fitted_attributes
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.utils import get_tags
from sklearn.utils._array_api import get_namespace_and_device

from fedpca_sklearn import (
    FederatedPCA,
    FederatedPowerPCA,
    NpyRows,
    StreamingPCA,
    Subspace,
    make_power_law,
    merge_subspaces,
    on_device,
    subspace_distance,
)
from fedpca_sklearn._kernels import scatter
from fedpca_sklearn._validation import arrays

__all__ = ["come", "dispatch", "eigenproblems"]

ROWS = make_power_law(300, 12, random_state=0) + np.linspace(-5, 5, 12)
OWNERS = np.arange(300) % 3
PLACES = {"torch": torch.asarray, "strict": strict.asarray, "strict on a device": on_strict}
PLACES |= ON_A_GPU
ESTIMATORS = """
StreamingPCA(4)
StreamingPCA(3, whiten=True)
StreamingPCA(0.8, forgetting_factor=0.99)
FederatedPCA(4, n_clients=3)
DistributedPCA(4, n_clients=3)
FederatedPowerPCA(4, n_clients=3, random_state=0)
FrequentDirections(4)
OjaPCA(4, random_state=0)
StreamingPowerMethod(4, random_state=0)
""".strip().splitlines()
# kernels of which are numpy's only
AT_HOME = """
StreamingPCA(3, scale=True, partial_out=[1])
FederatedPCA(4, n_clients=3, scale=True, partial_out=[0, 5])
FederatedPCA("parallel", n_clients=3)
DistributedPCA(4, n_clients=3, missing=AvailablePairs())
""".strip().splitlines()
OTHERS = ["GROUSE(2)", "PersonalizedPCA()", "RobustSubspaceTracker(2)", "VerticalFederatedPCA(2)"]


@pytest.fixture(params=PLACES)
def put(request):
    return PLACES[request.param]


def shown(model):
    """Names of the fitted attributes that are arrays of numbers."""
    values = fitted_attributes(model).items()
    return [n for n, value in values if isinstance(value, np.ndarray) and value.dtype.kind in "fi"]


@pytest.mark.parametrize("code", [*ESTIMATORS, *AT_HOME])
def test_results_are_those_of_numpy_and_where_the_rows_are(code, put):
    X, weight = put(ROWS), np.linspace(0.5, 1.5, len(ROWS))
    takes = "sample_weight" in made(code).fit.__code__.co_varnames
    for w in [None, weight] if takes else [None]:
        options = {} if w is None else {"sample_weight": w}
        ours = {} if w is None else {"sample_weight": put(w)}
        expected, found = made(code).fit(ROWS, **options), made(code).fit(X, **ours)
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
    if code == "StreamingPCA(4)":
        for twin in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
            assert twin.components_.device == X.device
            close(twin.transform(X), as_numpy(found.transform(X)))


@pytest.mark.parametrize("code", ["FederatedPCA(3)", "DistributedPCA(3)", ESTIMATORS[5]])
def test_clients_are_told_apart_by_labels_of_any_library(code, put):
    expected = made(code).fit(ROWS, clients=OWNERS)
    for labels in (OWNERS, put(OWNERS)):
        found = made(code).fit(put(ROWS), clients=labels)
        close(found.components_, expected.components_)
        assert found.clients_ == [0, 1, 2]
    if code == "FederatedPCA(3)":
        close(found.remove(1).components_, expected.remove(1).components_)
        close(found.transform(put(ROWS)), expected.transform(ROWS))
    if code == "DistributedPCA(3)":
        close(found.r_factor_, expected.r_factor_)


@pytest.mark.parametrize("inner", ["StreamingPCA(2, oversampling=0, block_size=20)"])
@pytest.mark.parametrize("outer", ["{}", "FederatedPCA(2, estimator={}, n_clients=3)"])
def test_a_fit_is_refined_where_its_rows_are(inner, outer, put):
    code = outer.format(inner)
    found, expected = made(code).fit(put(ROWS)), made(code).fit(ROWS)
    close(found.subspace_.mean, expected.subspace_.mean)
    if outer == "{}":
        close(found.explained_variance_interval_, expected.explained_variance_interval_)
    truth = PCA(2, svd_solver="full").fit(ROWS).components_
    before = subspace_distance(found.components_, truth)
    for model, rows in ((found, put(ROWS)), (expected, ROWS)):
        model.refine(rows, n_rounds=3)
    # by vectors at random, whose seed is a digest of the directions
    error = subspace_distance(found.components_, truth)
    assert error <= min(found.subspace_error_bound_, before / 10)
    close(found.explained_variance_, expected.explained_variance_, 1e-4)
    assert found.components_.device == put(ROWS).device


def test_summaries_are_where_their_rows_are_and_their_messages_come_home(put):
    expected = [Subspace.from_rows(part) for part in (ROWS[:100], ROWS[100:250])]
    there = [Subspace.from_rows(put(part)) for part in (ROWS[:100], ROWS[100:250])]
    there.append(there[0].update(put(ROWS[250:]), 5))
    expected.append(expected[0].update(ROWS[250:], 5))
    for part, other in zip(there, expected, strict=True):
        for name in ("components", "singular_values", "mean", "column_scatter"):
            close(getattr(part, name), getattr(other, name))
            assert getattr(part, name).device == put(ROWS).device
        close(part.explained_variance_ratio, other.explained_variance_ratio)
        assert repr(part) == repr(other)
        assert (part.n_components, part.nbytes) == (other.n_components, other.nbytes)
        loaded = Subspace.from_bytes(part.to_bytes())
        assert loaded.to_bytes() == part.to_bytes()
        assert_allclose(loaded.components, other.components, atol=1e-12)
        close(pickle.loads(pickle.dumps(part)).components, other.components)
        # the last rows say where a summary is
        assert isinstance(part.update(ROWS).components, np.ndarray)
        close(other.update(put(ROWS)).components, other.update(ROWS).components)
    for method in ("auto", "gram", "qr", "svd", "orthogonal"):
        merged = merge_subspaces(there[:2], 4, method=method)
        close(merged.components, merge_subspaces(expected[:2], 4, method=method).components)
        assert merged.n_samples == 250
    values = as_numpy(merged.singular_values)[:2] * 0.5**0.5
    close(merged.truncate(2).decay(0.5).singular_values, values)


def test_the_last_rows_say_where_results_are_and_others_are_refused(put):
    pca = StreamingPCA(3).fit(put(ROWS[:100]))
    assert_allclose(pca.partial_fit(ROWS[100:]).components_, StreamingPCA(3).fit(ROWS).components_)
    pca.partial_fit(put(ROWS))
    assert not isinstance(pca.components_, np.ndarray)
    for rows, others in ((put(ROWS), ROWS), (ROWS, put(ROWS)), (put(ROWS), ROWS.tolist())):
        pca.fit(rows)
        with pytest.raises(ValueError, match=r"StreamingPCA\.transform\(\) must use the same name"):
            pca.transform(others)
    pca.fit(put(ROWS)).mean_ = put(np.zeros(ROWS.shape[1]))  # as it is shown
    Z = pca.transform(put(ROWS))
    V = arrays.in_numpy(pca.components_)
    assert_allclose(arrays.in_numpy(Z), ROWS @ V.T, atol=1e-9)


EPS = np.finfo(np.float64).eps


@pytest.fixture(params=["strict", "torch", *ON_A_GPU])
def put_there(request, monkeypatch):
    if request.param == "torch":
        as_if_on_a_device(monkeypatch)
        return torch.asarray
    return ON_A_GPU.get(request.param, on_strict)


def batches(X, *sizes):
    return np.split(X, np.cumsum(sizes)[:-1]) if sizes else np.array_split(X, 6)


def matches(found, X, r, eps=EPS):
    """Directions, values and mean are those of numpy's SVD of the rows.

    To 1e-12, or what rounding of a scatter matrix does to them: Davis and Kahan.
    """
    X = X.astype(np.float64)
    Z = X - X.mean(axis=0)
    s, V = np.linalg.svd(Z, full_matrices=False)[1:]
    rounding = 4 * eps * s[0] ** 2
    tol = max(1e-12, rounding / (s[r - 1] ** 2 - s[r] ** 2))
    assert subspace_distance(as_numpy(found.components_), V[:r]) < tol
    assert_allclose(as_numpy(found.singular_values_), s[:r], rtol=max(1e-12, rounding / s[r] ** 2))
    tol = max(1e-12, 4 * eps)
    close(found.mean_, X.mean(axis=0), tol)
    assert_allclose(found.subspace_.scatter, np.sum(Z**2), rtol=tol)
    close(found.subspace_.column_scatter, np.sum(Z**2, axis=0), tol)


WIDE = power_law(1800, 270)

# ------------------------------------------------------------------------------ sizes

# for which a few passes over all rows pay
MANY = np.random.default_rng(0).standard_normal((4100, 800)) / np.sqrt(np.arange(1.0, 801))
# estimator | rows, or batches of them; the first of these are added up
ROUTES = """
StreamingPCA(3) | power_law(500, 40) + 1e6
StreamingPCA(3) | power_law(500, 40) * (np.arange(40) != 7) + 3.0
StreamingPCA(3, block_size=50, center=False) | power_law(180, 300)
StreamingPCA(3, svd_solver="qr") | power_law(90, 40)
StreamingPCA(3, svd_solver="qr") | power_law(60, 300)
StreamingPCA(8) | power_law(90, 12) * 10.0 ** -np.arange(12)
DistributedPCA(3) | power_law(90, 12) + 1e8
DistributedPCA(3, n_clients=3) | power_law(25, 40)
StreamingPCA(rank_rule=EnergyBounds(), block_size=20) | power_law(200, 300)
FederatedPowerPCA(3, random_state=0, local_steps=2) | power_law(300, 20)
StreamingPCA(2) | MANY
FederatedPCA(3, estimator=PCA(3)) | power_law(90, 12)
FederatedPCA(3, n_clients=4) | power_law(200, 300)
""".strip().splitlines()
STREAMS = """
StreamingPCA(10) | batches(WIDE)
StreamingPCA(10) | batches(WIDE[:1200], 400, 100, 299, 1, 400)
StreamingPCA(3) | batches(power_law(900, 30))
StreamingPCA(10) | [part + 1.0 * i for i, part in enumerate(batches(WIDE))]
StreamingPCA(10) | [*batches(WIDE)[:3], 30 * batches(WIDE)[3]]
StreamingPCA(10) | batches(WIDE[:1200] + 1e6)
StreamingPCA(3) | [*batches(WIDE[:400]), WIDE[400:] + 1e6]
StreamingPCA(3, center=False) | batches(power_law(900, 40))
StreamingPCA(3) | batches(power_law(60, 8), *[1] * 60)
StreamingPCA(3) | batches(power_law(300, 40) * (np.arange(40) != 7) + 0.1)
StreamingPCA(8) | batches(power_law(300, 12) * 10.0 ** -np.arange(12))
StreamingPCA(5) | [*batches(power_law(300, 12)), 1e7 * np.outer(np.arange(1, 9), np.ones(12))]
StreamingPCA(30) | batches(power_law(200, 40)[:, :20] @ np.eye(20, 40))
StreamingPCA(3) | batches(1e90 * power_law(300, 12))
StreamingPCA(2) | batches(np.ones((30, 4)))
StreamingPCA() | batches(power_law(700, 40), 300, 400)
StreamingPCA(0.9) | batches(power_law(700, 40), 300, 400)
StreamingPCA(10, half_life=1000) | batches(power_law(700, 40), 300, 400)
StreamingPCA(10, forgetting="blocks", forgetting_factor=0.9) | batches(power_law(700, 40))
StreamingPCA(10, rank_rule=EnergyBounds()) | batches(power_law(700, 40), 300, 400)
StreamingPCA(10, oversampling=20) | batches(power_law(700, 40), 300, 400)
StreamingPCA(10, svd_solver="qr") | batches(power_law(700, 40), 300, 400)
""".strip().splitlines()
# each on one library; routes with weights, and the first streams, on the other one as well
PATHS = [(route, False, ("strict", "torch")[i % 2]) for i, route in enumerate(ROUTES + STREAMS)]
PATHS += [(route, True, ("torch", "strict")[i % 2]) for i, route in enumerate(ROUTES[:-3])]
PATHS += [(route, False, ("strict", "torch")[i % 2]) for i, route in enumerate(STREAMS[:5])]


def model_and_rows(route):
    code, rows = route.split(" | ")
    names = {"power_law": power_law, "MANY": MANY, "WIDE": WIDE, "batches": batches}
    return made(code), eval(rows, {**NAMES, **names})


@pytest.fixture
def read_only(monkeypatch):
    """Numbers come home in arrays that cannot be written, as JAX's."""
    in_numpy = arrays.in_numpy

    def held(value):
        found = in_numpy(value)
        if found is not value and isinstance(found, np.ndarray):
            found.flags.writeable = False
        return found

    monkeypatch.setattr(arrays, "in_numpy", held)


@pytest.mark.parametrize(("route", "weighted", "library"), PATHS)
def test_each_route_on_a_device_leads_where_that_at_home_does(
    route, weighted, library, eigenproblems, read_only, monkeypatch
):
    model, X = model_and_rows(route)
    to_device, options = on_strict, {}
    if library == "torch":
        to_device = ON_A_GPU.get("cuda", torch.asarray)
    if library == "torch" and not ON_A_GPU:  # its processor in the place of a device
        as_if_on_a_device(monkeypatch)
    if weighted:
        weight = np.random.default_rng(0).uniform(0.1, 2.0, len(X))
        weight[5:9] = 0.0
        options["sample_weight"] = weight
    streamed = isinstance(X, list)
    there = map(to_device, X) if streamed else to_device(X)
    found = clone(model).fit(there, **options)
    if route in STREAMS[:5]:  # one eigenproblem, when it is read
        assert not eigenproblems
        assert found.n_samples_ == sum(map(len, X))
        assert len(eigenproblems) == 1
        matches(found, np.concatenate(X), found.n_components_)
    expected = clone(model).fit(iter(X) if streamed else X, **options)
    rows = np.concatenate(X) if streamed else X
    variance = expected.explained_variance_[expected.explained_variance_ > 0].min(initial=1e300)
    if not streamed:
        variance = expected.explained_variance_.max()
    tol = 1e-12 * max(1.0, np.abs(rows).max() / np.sqrt(variance))  # rounding of the rows
    for name in ("components_", "singular_values_", "mean_"):
        close(getattr(found, name), getattr(expected, name), tol)
    if route in STREAMS[:5]:  # the other directions are there when they are read
        values = expected.subspace_.singular_values
        close(found.subspace_.singular_values, values, 1e-9)
    if streamed:
        assert_allclose(found.subspace_.scatter, expected.subspace_.scatter, rtol=tol)
        return
    close(found.transform(there), expected.transform(X), tol)
    if hasattr(model, "partial_fit") and hasattr(found, "_state"):
        expected.partial_fit(X, **options)
        close(found.partial_fit(there, **options).components_, expected.components_, tol)


@pytest.mark.parametrize(
    "route",
    [
        *(f"{kind}(3) | power_law(3000, 40)" for kind in ("StreamingPCA", "DistributedPCA")),
        "FederatedPCA(3) | power_law(3000, 40)",
        "StreamingPCA(2) | MANY",
        "FederatedPowerPCA(3, n_rounds=3, tol=0.0, random_state=0) | power_law(3000, 40)",
    ],
)
def test_rows_stay_on_their_device(route, come):
    model, X = model_and_rows(route)
    there = on_strict(X)
    model.fit(there).transform(there)
    assert 0 < sum(come) < X.size / 5  # a sample of 128 rows, and products
    come.clear()
    model.inverse_transform(model.transform(there))
    model.score(there)
    assert sum(come) <= len(X) * (model.n_components_ + 1)


# ------------------------------------------------------------------------------ dtypes


@pytest.mark.parametrize("sizes", [(5,), (5, 7), (40, 30)])
@pytest.mark.parametrize("weighted", [False, True])
def test_float32_rows_far_from_zero_are_centred_in_two_steps(sizes, weighted):
    n = sum(sizes)
    X = (np.random.default_rng(0).standard_normal((n, 300)) + 54_321.1).astype(np.float32)
    w = np.random.default_rng(1).uniform(0.5, 2.0, n) if weighted else np.ones(n)
    pca = StreamingPCA(3, oversampling=20, block_size=50)
    for part in np.split(np.arange(n), np.cumsum(sizes)[:-1]):
        pca.partial_fit(on_strict(X[part]), sample_weight=w[part] if weighted else None)
    mean = np.average(X.astype(float), axis=0, weights=w)
    close(pca.subspace_.column_scatter, w @ (X - mean) ** 2, 1e-6)
    close(pca.subspace_.mean, mean, 1e-10)


def test_tensors_that_numpy_cannot_read():
    with_gradients = torch.tensor(ROWS, requires_grad=True)
    brain_floats = torch.tensor(ROWS).to(torch.bfloat16)
    for X, rows in (with_gradients, ROWS), (brain_floats, brain_floats.float().numpy()):
        found = StreamingPCA(3).fit(X)
        close(found.components_, StreamingPCA(3).fit(rows).components_)
        Z = found.transform(X)
        assert not Z.requires_grad
        if X is with_gradients:
            close(found.to_sklearn().transform(torch.asarray(ROWS)), as_numpy(Z))


@pytest.mark.parametrize("code", ["StreamingPCA(3)", "DistributedPCA(3)", ESTIMATORS[5]])
def test_a_device_without_float64_gets_float32(code):
    rows = ROWS.astype(np.float32)
    X = strict.asarray(rows, device=strict.Device("no_float64"))
    found, home = made(code).fit(X), made(code).fit(rows)
    assert found.mean_.dtype == found.subspace_.mean.dtype == strict.float32
    assert np.isclose(found.score(X), home.score(rows), rtol=1e-5)
    close(found.components_, home.components_, 1e-5)


# ------------------------------------------------------------------------------ what is refused


def test_rows_on_a_device_are_checked_there_and_a_failure_changes_nothing():
    pca = StreamingPCA(2).fit(on_strict(np.arange(40).reshape(10, 4)))
    close(pca.components_, StreamingPCA(2).fit(np.arange(40.0).reshape(10, 4)).components_)
    before = dict(vars(pca))
    for wrong, words in [
        (on_strict(np.zeros(3)), "Expected 2D array"),
        (on_strict(np.zeros((0, 4))), "at least one row"),
        (on_strict(np.zeros((3, 4), complex)), "real numbers"),
        (on_strict(np.full((3, 4), np.inf)), "infinity"),
        (on_strict(np.full((3, 4), np.nan)), "contains NaN"),
        (torch.full((3, 4), float("nan")), "contains NaN"),
        (on_strict(np.zeros((3, 5))), "X has 5 features, but StreamingPCA is exp"),
        (map(on_strict, [np.eye(4), np.eye(4), np.full((3, 4), np.nan)]), "contains NaN"),
        (map(on_strict, [np.eye(4), np.zeros((0, 4))]), "at least one row"),
        (map(on_strict, [np.eye(4), np.zeros((3, 5))]), "5 features"),
    ]:
        with pytest.raises(ValueError, match=words):
            pca.partial_fit(wrong)
        assert all(vars(pca)[name] is value for name, value in before.items())
    for call in (Subspace.from_rows, FederatedPCA(2).fit):
        with pytest.raises(ValueError, match="contains NaN"):
            call(on_strict(np.full((3, 4), np.nan)))


@pytest.mark.parametrize("code", OTHERS)
def test_other_estimators_say_what_to_call_and_who_takes_arrays(code, put):
    words = r"got one of .* while array_api_dispatch=True\. X\.detach\(\)\.cpu\(\)\.numpy\(\)"
    with pytest.raises(TypeError, match=words) as error:
        made(code).fit(put(ROWS))
    with pytest.raises(TypeError, match=words):
        made(code).fit(ROWS).transform(put(ROWS))
    listed = [name for name, kind in NAMES.items() if getattr(kind, "_takes_arrays", False)]
    assert [name for name in listed if name not in str(error.value)] == []
    assert len(listed) == 7
    assert all(get_tags(made(code)).array_api_support for code in ESTIMATORS)


def test_rows_on_a_device_come_home_for_code_that_knows_numpy_alone():
    X = on_strict(ROWS)
    rows = arrays.namespace_of(X).rows(X)
    assert_array_equal(rows - ROWS.mean(axis=0), ROWS - ROWS.mean(axis=0))
    assert_array_equal(rows[OWNERS == 1] @ np.eye(12), ROWS[OWNERS == 1])


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
    assert isinstance(move(there, np, "cpu").transform(ROWS), np.ndarray)
    assert isinstance(pca.components_, np.ndarray)


def test_without_dispatch_numpy_reads_what_it_can_and_nothing_asks_for_a_setting(monkeypatch):
    pca, X, weight = StreamingPCA(3).fit(torch.tensor(ROWS)), torch.tensor(ROWS), torch.ones(300)
    with config_context(array_api_dispatch=False), monkeypatch.context() as patch:
        patch.delenv("SCIPY_ARRAY_API")
        for code in [*ESTIMATORS, *OTHERS]:
            assert isinstance(made(code).fit(X).transform(X), np.ndarray)
        for rows in (ROWS, X):
            assert isinstance(pca.transform(rows), np.ndarray)
        found = StreamingPCA(3).fit(X, sample_weight=weight).components_
        assert subspace_distance(torch.tensor(found), found) < 1e-12
        assert FederatedPCA(3).fit(X, clients=torch.tensor(OWNERS)).clients_ == [0, 1, 2]
        column = pytest.importorskip("pyarrow").array([str(owner) for owner in OWNERS])
        assert FederatedPCA(3).fit(X, clients=column).clients_ == ["0", "1", "2"]
        FederatedPowerPCA(3, init=torch.eye(12, dtype=torch.float64)[:3]).fit(X)


# ------------------------------------------------------------------------------ streams of batches


@pytest.mark.parametrize(
    ("r", "late", "dtypes"),
    [
        (3, 1.0, ["float32"] * 3),
        (100, 1.0, ["float32", *["float64"] * 3]),
        (3, 300.0, ["float32"] * 3 + ["float64"]),  # refused with what was certain
    ],
)
def test_float32_rows_are_multiplied_in_float64_where_float32_is_not_certain(
    r, late, dtypes, put_there, monkeypatch
):
    there, found = scatter.scatter_and_sums, []

    def seen(Y, w, centre, dtype):
        found.append(dtype.name)
        return there(Y, w, centre, dtype)

    monkeypatch.setattr(scatter, "scatter_and_sums", seen)
    X = power_law(3000, 120) + 3.0
    X[2700:, 0] *= late
    X = X.astype(np.float32)
    pca = StreamingPCA(r).fit(map(put_there, batches(X, 500, 2200, 300)))
    assert found == dtypes
    matches(pca, X, r, np.finfo(np.float32).eps)
    assert as_numpy(pca.components_).dtype == np.float32


def test_a_stream_goes_on_from_what_was_before_and_others_from_it(put_there):
    X, weight = power_law(1200, 270), np.random.default_rng(0).uniform(0.5, 2.0, 500)
    expected = StreamingPCA(10).fit(X[:500], sample_weight=weight)
    pasts = [clone(expected).fit(X[:500], sample_weight=weight)]
    pasts.append(clone(expected).fit(put_there(X[:500]), sample_weight=put_there(weight)))
    for rows in (X[500:900], X[900:]):
        expected.partial_fit(rows)
    for past in pasts:
        past.partial_fit(map(put_there, batches(X[500:900])))
        twin = copy.deepcopy(past)  # which reads
        assert twin.subspace_.n_components == 270
        goes_on = StreamingPCA.from_subspace(past.subspace_, 10)
        for pca in (past, twin, goes_on):
            pca.partial_fit(map(put_there, batches(X[900:])))
            close(pca.components_, as_numpy(past.components_), 1e-12)
        close(past.components_, expected.components_)
        close(past.mean_, expected.mean_)
        close(past.singular_values_, expected.singular_values_)
        assert past.n_samples_ == expected.n_samples_


@pytest.mark.parametrize("on_host", [True, False])
def test_batches_of_several_places_are_taken_in_their_order(on_host, monkeypatch):
    X = power_law(600, 30)
    kinds = [on_strict, on_strict, np.asarray, on_strict, torch.asarray, torch.asarray]
    if not on_host:
        as_if_on_a_device(monkeypatch)
    found = StreamingPCA(3).fit(put(part) for put, part in zip(kinds, batches(X), strict=True))
    assert isinstance(found.components_, torch.Tensor)
    close(found.components_, StreamingPCA(3).fit(X).components_)


def test_batches_of_several_dtypes_have_that_of_the_first(put_there):
    parts = [np.arange(120).reshape(30, 4) % 7, *batches(power_law(90, 4)), np.eye(4, dtype="f4")]
    for order in (parts, parts[::-1]):
        found = StreamingPCA(2).fit(map(put_there, order))
        expected = StreamingPCA(2).fit(iter(order))
        assert as_numpy(found.components_).dtype == expected.components_.dtype
        close(found.components_, expected.components_, 1e-12 if order is parts else 1e-6)


def test_one_batch_is_alive_and_little_of_it_comes_home(put_there, come):
    X, alive = power_law(12_000, 40), []

    def rows():
        for part in batches(X):
            assert not any(there() is not None for there in alive)
            there = put_there(part.copy())
            alive.append(weakref.ref(there))
            yield there
            del there

    found = StreamingPCA(3).fit(rows())
    close(found.components_, StreamingPCA(3).fit(X).components_)
    assert 0 < sum(come) < X.size / 10


def saved(X, folder):
    np.save(folder / "X.npy", X)
    return folder / "X.npy"


def loader(X):
    data = torch.utils.data.TensorDataset(torch.asarray(X), torch.arange(len(X)))
    return torch.utils.data.DataLoader(data, batch_size=130)


HOLDERS = {
    "array": lambda X, folder: X,
    "other order": lambda X, folder: np.asfortranarray(X),
    "numbers": lambda X, folder: np.round(9 * X).astype(np.int8),
    "memory map": lambda X, folder: np.load(saved(X, folder), mmap_mode="r"),
    "file": lambda X, folder: NpyRows(saved(X, folder)),
    "frame": lambda X, folder: pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])]),
    "tensor": lambda X, folder: torch.asarray(X),
    "list": lambda X, folder: X.tolist(),
    "loader": lambda X, folder: loader(X),
    "iterable": lambda X, folder: iter(batches(X, 250, 1, 149)),
    "dask": lambda X, folder: pytest.importorskip("dask.array").from_array(X, chunks=(170, 5)),
}
LIBRARIES = [(strict, ON_A_DEVICE), (torch, "cpu"), (torch, None), (np, None)]


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize(("xp", "device"), LIBRARIES, ids=["strict", "torch", "default", "numpy"])
def test_rows_of_the_host_are_sent_in_their_order(holder, xp, device, tmp_path):
    X = power_law(400, 20).astype(np.float32)
    sent = list(on_device(HOLDERS[holder](X, tmp_path), xp, device, batch_size=100))
    like = xp.empty(0) if device is None else xp.empty(0, device=device)
    for batch in sent:
        assert batch.shape[0] <= 100
        assert type(batch) is type(like)
        assert getattr(batch, "device", None) == getattr(like, "device", None)
    home = sent if xp is np else map(as_numpy, sent)
    expected = HOLDERS[holder](X, tmp_path) if holder == "numbers" else X
    assert_array_equal(np.concatenate(list(home)), expected)
    assert sent[0].dtype == xp.asarray(expected[:1]).dtype or holder == "list"


def test_a_fit_of_rows_of_the_host_on_a_device_is_that_of_numpy(
    put_there, tmp_path, come, eigenproblems
):
    xp, device = (strict, ON_A_DEVICE) if put_there is on_strict else (torch, "cpu")
    X = WIDE + 1e6
    rows = HOLDERS["memory map"](X, tmp_path)
    found = StreamingPCA(10).fit(on_device(rows, xp, device, batch_size=500))
    assert found.n_components_ == 10
    assert len(eigenproblems) == 1
    expected = StreamingPCA(10).fit(X)
    tol = 1e-12 * 1e6 / np.sqrt(expected.explained_variance_[-1])  # rounding of the rows
    close(found.components_, expected.components_, tol)
    close(found.singular_values_, expected.singular_values_, tol)
    assert sum(come) < X.size
    Z = [found.transform(part) for part in on_device(rows, xp, device, batch_size=500)]
    close(xp.concat(Z), expected.transform(X), 1e-6)


def test_at_most_two_batches_are_in_memory_and_a_buffer_that_is_filled_again_is_sent_before():
    X, there, here = power_law(600, 8), [], []

    def parts():
        for part in batches(X):
            part = part.copy()
            assert sum(held() is not None for held in here) <= 1
            here.append(weakref.ref(part))
            yield part
            del part

    for batch in on_device(parts(), torch, "cpu", batch_size=100):
        there.append(weakref.ref(batch))
        del batch
        assert sum(held() is not None for held in there) <= 1  # and the next one

    def filled():
        buffer = np.empty((100, 8))
        for part in batches(X):
            buffer[...] = part
            yield buffer

    sent = [batch.clone() for batch in on_device(filled(), torch, "cpu")]
    assert_array_equal(torch.concat(sent), X)


def test_rows_that_cannot_be_sent_are_refused():
    X = power_law(20, 4)
    frames = [pd.DataFrame(X, columns=list(names)) for names in ("abcd", "abdc")]
    for kind, rows, words in [
        (TypeError, sp.csr_array(X), "Sparse rows cannot be sent"),
        (ValueError, X[:0], "0 sample"),
        (ValueError, iter([]), "stream without batches"),
        (ValueError, X[0], "Expected 2D array"),
        (ValueError, [X, X[:, 1:]], "X has 3 features, but Rows is expecting 4"),
        (ValueError, frames, "feature names"),
        (TypeError, "X.npy", r"path of a file.* a csv file"),
    ]:
        for xp, device in LIBRARIES[:2]:
            with pytest.raises(kind, match=words):
                list(on_device(rows, xp, device))
    pca = StreamingPCA(2)
    with pytest.raises(ValueError, match="contains NaN"):
        pca.fit(on_device([X, np.full((3, 4), np.nan)], strict, ON_A_DEVICE))
    assert not hasattr(pca, "components_")
