"""Streams of batches on a device: added up there, with one eigenproblem at the end of a call."""

import copy
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
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from fedpca_sklearn import NpyRows, StreamingPCA, on_device, subspace_distance
from fedpca_sklearn._kernels import scatter

__all__ = ["come", "dispatch", "eigenproblems"]

EPS = np.finfo(np.float64).eps


@pytest.fixture(params=["strict", "torch", *ON_A_GPU])
def put(request, monkeypatch):
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
# estimator | batches; the first of which are added up
ROUTES = """
StreamingPCA(10) | batches(WIDE)
StreamingPCA(10) | batches(WIDE[:1200], 400, 100, 299, 1, 400)
StreamingPCA(3) | batches(power_law(900, 30))
StreamingPCA(10) | [part + 1.0 * i for i, part in enumerate(batches(WIDE))]
StreamingPCA(10) | [*batches(WIDE)[:3], 30 * batches(WIDE)[3]]
StreamingPCA(10) | batches(WIDE[:1200] + 1e6)
StreamingPCA(3) | [*batches(WIDE[:400]), WIDE[400:] + 1e6]
StreamingPCA(3, center=False) | batches(power_law(900, 40))
StreamingPCA(3, svd_solver="gram") | batches(power_law(900, 40))
StreamingPCA(3) | batches(power_law(60, 8), *[1] * 60)
StreamingPCA(3) | batches(power_law(300, 40) * (np.arange(40) != 7) + 0.1)
StreamingPCA(8) | batches(power_law(300, 12) * 10.0 ** -np.arange(12))
StreamingPCA(5) | [*batches(power_law(300, 12)), 1e7 * np.outer(np.arange(1, 9), np.ones(12))]
StreamingPCA(30) | batches(power_law(200, 40)[:, :20] @ np.eye(20, 40))
StreamingPCA(3) | batches(1e-90 * power_law(300, 12))
StreamingPCA(3) | batches(1e90 * power_law(300, 12))
StreamingPCA(2) | batches(np.ones((30, 4)))
StreamingPCA() | batches(power_law(700, 40), 300, 400)
StreamingPCA(0.9) | batches(power_law(700, 40), 300, 400)
StreamingPCA(10, block_size=400) | batches(power_law(700, 40), 300, 400)
StreamingPCA(10, forgetting_factor=0.999) | batches(power_law(700, 40), 300, 400)
StreamingPCA(10, half_life=1000) | batches(power_law(700, 40), 300, 400)
StreamingPCA(10, forgetting="blocks", forgetting_factor=0.9) | batches(power_law(700, 40))
StreamingPCA(10, rank_rule=EnergyBounds()) | batches(power_law(700, 40), 300, 400)
StreamingPCA(10, oversampling=20) | batches(power_law(700, 40), 300, 400)
StreamingPCA(10, svd_solver="qr") | batches(power_law(700, 40), 300, 400)
""".strip().splitlines()


# the first on each library, others in turn
TURNS = [(route, i % 2) for i, route in enumerate(ROUTES)]
TURNS += [(route, (i + 1) % 2) for i, route in enumerate(ROUTES[:5])]


@pytest.mark.parametrize(("route", "on_torch"), TURNS)
def test_a_stream_leads_where_that_at_home_does(route, on_torch, eigenproblems, monkeypatch):
    code, parts = route.split(" | ")
    put = ON_A_GPU.get("cuda", torch.asarray) if on_torch else on_strict
    if on_torch and not ON_A_GPU:
        as_if_on_a_device(monkeypatch)
    parts = eval(parts, {**NAMES, "power_law": power_law, "batches": batches, "WIDE": WIDE})
    found, added_up = made(code).fit(map(put, parts)), route in ROUTES[:5]
    if added_up:  # one eigenproblem, when it is read
        assert not eigenproblems
        assert found.n_samples_ == sum(map(len, parts))
        assert len(eigenproblems) == 1
        matches(found, np.concatenate(parts), found.n_components_)
    expected = made(code).fit(iter(parts))
    if added_up:  # the other directions are there when they are read
        values = expected.subspace_.singular_values
        close(found.subspace_.singular_values, values, 1e-9)
    variance = expected.explained_variance_[expected.explained_variance_ > 0].min(initial=1e300)
    size = np.abs(np.concatenate(parts)).max() / np.sqrt(variance)  # rounding of the rows
    for name in ("components_", "singular_values_", "mean_"):
        close(getattr(found, name), getattr(expected, name), 1e-12 * max(1.0, size))
    scatter_of = [model.subspace_.scatter for model in (found, expected)]
    assert_allclose(*scatter_of, rtol=1e-12 * max(1.0, size))


@pytest.mark.parametrize(
    ("r", "late", "dtypes"),
    [
        (3, 1.0, ["float32"] * 3),
        (100, 1.0, ["float32", *["float64"] * 3]),
        (3, 300.0, ["float32"] * 3 + ["float64"]),  # refused with what was certain
    ],
)
def test_float32_rows_are_multiplied_in_float64_where_float32_is_not_certain(
    r, late, dtypes, put, monkeypatch
):
    there, found = scatter.scatter_and_sums, []

    def seen(Y, w, centre, dtype):
        found.append(dtype.name)
        return there(Y, w, centre, dtype)

    monkeypatch.setattr(scatter, "scatter_and_sums", seen)
    X = power_law(3000, 120) + 3.0
    X[2700:, 0] *= late
    X = X.astype(np.float32)
    pca = StreamingPCA(r).fit(map(put, batches(X, 500, 2200, 300)))
    assert found == dtypes
    matches(pca, X, r, np.finfo(np.float32).eps)
    assert as_numpy(pca.components_).dtype == np.float32


def test_a_stream_goes_on_from_what_was_before_and_others_from_it(put):
    X, weight = power_law(1200, 270), np.random.default_rng(0).uniform(0.5, 2.0, 500)
    expected = StreamingPCA(10).fit(X[:500], sample_weight=weight)
    pasts = [clone(expected).fit(X[:500], sample_weight=weight)]
    pasts.append(clone(expected).fit(put(X[:500]), sample_weight=put(weight)))
    for rows in (X[500:900], X[900:]):
        expected.partial_fit(rows)
    for past in pasts:
        past.partial_fit(map(put, batches(X[500:900])))
        twin = copy.deepcopy(past)  # which reads
        assert twin.subspace_.n_components == 270
        goes_on = StreamingPCA.from_subspace(past.subspace_, 10)
        for pca in (past, twin, goes_on):
            pca.partial_fit(map(put, batches(X[900:])))
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


def test_batches_of_several_dtypes_have_that_of_the_first(put):
    parts = [np.arange(120).reshape(30, 4) % 7, *batches(power_law(90, 4)), np.eye(4, dtype="f4")]
    for order in (parts, parts[::-1]):
        found = StreamingPCA(2).fit(map(put, order))
        expected = StreamingPCA(2).fit(iter(order))
        assert as_numpy(found.components_).dtype == expected.components_.dtype
        close(found.components_, expected.components_, 1e-12 if order is parts else 1e-6)


def test_what_fails_late_in_a_stream_leaves_everything_as_it_was(put):
    X = power_law(300, 12)
    pca = StreamingPCA(3).fit(put(X))
    before = dict(vars(pca))
    broken = X.copy()
    broken[7, 2] = np.nan
    for wrong, words in [
        (broken, "contains NaN"),
        (X[:0], "at least one row"),
        (X[:, 1:], "11 feat"),
    ]:
        with pytest.raises(ValueError, match=words):
            pca.partial_fit(map(put, [X, X, wrong]))
        assert all(vars(pca)[name] is value for name, value in before.items())


def test_one_batch_is_alive_and_little_of_it_comes_home(put, come):
    X, alive = power_law(12_000, 40), []

    def rows():
        for part in batches(X):
            assert not any(there() is not None for there in alive)
            there = put(part.copy())
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


def test_a_fit_of_rows_of_the_host_on_a_device_is_that_of_numpy(put, tmp_path, come, eigenproblems):
    xp, device = (strict, ON_A_DEVICE) if put is on_strict else (torch, "cpu")
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
    for rows, words in [
        (sp.csr_array(X), "Sparse rows cannot be sent"),
        (X[:0], "0 sample"),
        (iter([]), "stream without batches"),
        (X[0], "Expected 2D array"),
        ([X, X[:, 1:]], "X has 3 features, but Rows is expecting 4"),
        (frames, "feature names"),
        ("X.npy", "path of a file"),
    ]:
        for xp, device in LIBRARIES[:2]:
            with pytest.raises((TypeError, ValueError), match=words):
                list(on_device(rows, xp, device))
    for xp, size, words in [
        ("cuda", 9, "xp must be a library of arrays such as torch or cupy, got 'cuda'"),
        *((torch, size, "batch_size must be an integer of at least 1, got") for size in (0, 2.5)),
    ]:
        with pytest.raises((TypeError, ValueError), match=words):
            on_device(X, xp, batch_size=size)
    pca = StreamingPCA(2)
    with pytest.raises(ValueError, match="contains NaN"):
        pca.fit(on_device([X, np.full((3, 4), np.nan)], strict, ON_A_DEVICE))
    assert not hasattr(pca, "components_")
