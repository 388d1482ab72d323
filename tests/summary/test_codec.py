"""Stored summaries: what is written comes back, and nothing else gets in."""

import io
import json
import os
import pickle
import struct
import tracemalloc
import zlib
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from helpers import peak_bytes

from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    PairMoments,
    StreamingPCA,
    Subspace,
    merge_subspaces,
)

# the documented layout, written down a second time
HEADER = struct.Struct("<8sBBIHQQdd")
N_FIELDS = ("magic", "kind", "flags", "labels", "sites", "d", "k", "n_samples", "scatter")
CRC = struct.Struct("<I")


def make(n=30, d=7, n_components=None, dtype=np.float64, center=True):
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((n, d)) * np.arange(1, d + 1) + 3).astype(dtype)
    return Subspace.from_rows(X, n_components, center=center)


SUMMARIES = {
    "float64": make(),
    "float32": make(dtype=np.float32),
    "about the origin": make(center=False),
    "wide": make(n=20, d=400, n_components=5),
    "weighted": make().decay(0.123456789),
    "no components": make(n_components=0),
    "one row": make(n=1),
    "empty": Subspace.empty(7),
    "empty float32 about the origin": Subspace.empty(7, centered=False, dtype=np.float32),
    "one feature": make(d=1),
    "columns unknown": make()._replace(column_scatter=None),
}
# with labels, which the layout of the others has not
MODELS = {
    "model": (3, False, (), 1e-12),
    "scaled model": (3, True, (), float("inf")),
    "model without confounders": (5, False, (6, 0), 0.25),
}


def of_model(*stated):
    summary = make()
    names = ("components", "singular_values", "mean", "n_samples", "scatter", "column_scatter")
    return Subspace(**{name: getattr(summary, name) for name in names}, model=stated)


each_summary = pytest.mark.parametrize("subspace", SUMMARIES.values(), ids=SUMMARIES)


def with_checksum(body):
    return bytes(body) + CRC.pack(zlib.crc32(body))


def with_header(data, **changes):
    """Change header fields and make the checksum right again."""
    fields = dict(zip(N_FIELDS, HEADER.unpack_from(data), strict=True)) | changes
    return with_checksum(HEADER.pack(*fields.values()) + data[HEADER.size : -CRC.size])


def is_triangle(subspace):
    return bool(subspace.to_bytes()[9] & 8)


def assert_same(one, other):
    """All bits, but for directions that are found anew from a triangle."""
    whole = is_triangle(other)
    for name in ("components", "singular_values", "mean"):
        a, b = getattr(one, name), getattr(other, name)
        assert a.dtype == b.dtype
        if whole and name == "singular_values":
            np.testing.assert_allclose(a, b, rtol=1e-13)
        elif whole and name == "components":
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
        else:
            np.testing.assert_array_equal(a, b)
    assert (one.column_scatter is None) == (other.column_scatter is None)
    np.testing.assert_array_equal(one.column_scatter, other.column_scatter)
    for name in ("n_samples", "scatter", "centered", "feature_names", "sites", "privacy"):
        assert getattr(one, name) == getattr(other, name)


def assert_valid(subspace):
    """What every summary promises, whoever wrote it."""
    V, s = subspace.components.astype(np.float64), subspace.singular_values
    tol = 1e-7 if subspace.components.dtype == np.float64 else 1e-4
    assert np.abs(V @ V.T - np.eye(len(V))).max(initial=0) <= 2 * tol
    assert np.all(s >= 0)
    assert np.all(np.diff(s) <= 0)
    assert np.isfinite(subspace.mean).all()
    assert subspace.centered or not subspace.mean.any()
    assert np.isfinite([subspace.n_samples, subspace.scatter]).all()
    assert subspace.n_samples >= 0
    assert s @ s <= subspace.scatter * (1 + tol)


# -------------------------------------------------------------------------- round trips


@each_summary
def test_bytes_come_back_exactly(subspace):
    data = subspace.to_bytes()
    assert len(data) == subspace.nbytes
    for given in (data, bytearray(data), memoryview(data)):
        assert_same(Subspace.from_bytes(given), subspace)
    assert Subspace.from_bytes(data).to_bytes() == data


@each_summary
def test_files_come_back_exactly(subspace, tmp_path):
    path = tmp_path / "site.subspace"
    for file in (path, str(path)):
        subspace.save(file)
        assert_same(Subspace.load(file), subspace)
    assert path.stat().st_size == subspace.nbytes
    stream = io.BytesIO()
    subspace.save(stream)
    assert stream.getvalue() == path.read_bytes()
    stream.seek(0)
    assert_same(Subspace.load(stream), subspace)
    with open(path, "rb") as opened:
        assert_same(Subspace.load(opened), subspace)


@each_summary
def test_layout_is_the_documented_one(subspace):
    data = subspace.to_bytes()
    k, d = subspace.components.shape
    whole = k == d and subspace.components.dtype == np.float64
    columns = subspace.column_scatter
    flags = subspace.centered + 2 * (columns is not None) + 8 * whole
    flags += 4 * (subspace.components.dtype == np.float32)
    sums = subspace.n_samples, subspace.scatter
    assert HEADER.unpack_from(data) == (b"FEDPCA\x00\x05", 1, flags, 0, 0, d, k, *sums)
    arrays = data[HEADER.size : -CRC.size]
    np.testing.assert_array_equal(np.frombuffer(arrays[: 8 * d], "<f8"), subspace.mean)
    arrays = arrays[8 * d :]
    if columns is not None:
        np.testing.assert_array_equal(np.frombuffer(arrays[: 8 * d], "<f8"), columns)
        arrays = arrays[8 * d :]
    if whole:
        assert len(arrays) == 4 * d * (d + 1)
        R = np.zeros((d, d))
        R[np.triu_indices(d)] = np.frombuffer(arrays)
        assert (R.diagonal() > 0).all()
        sV = subspace.singular_values[:, None] * subspace.components
        np.testing.assert_allclose(R.T @ R, sV.T @ sV, rtol=1e-12, atol=1e-12)
    else:
        s, itemsize = np.frombuffer(arrays[: 8 * k]), subspace.components.itemsize
        np.testing.assert_array_equal(s, subspace.singular_values)
        V = np.frombuffer(arrays[8 * k :], f"<f{itemsize}").reshape(k, d)
        np.testing.assert_array_equal(V, subspace.components)
    assert data[-CRC.size :] == CRC.pack(zlib.crc32(data[: -CRC.size]))


@pytest.mark.parametrize("d", [1, 2, 60, 300])
@pytest.mark.parametrize("made", ["rows", "fields", "fit", "triangle"])
def test_a_triangle_is_the_spectrum_that_was_saved(made, d):
    """By numpy's decomposition of all rows; half as large as singular values and directions."""
    X = np.random.default_rng(d).standard_normal((2 * d + 5, d)) * np.linspace(1, 4, d) + 3
    summary = Subspace.from_rows(X)
    if made == "fields":
        fields = ("components", "singular_values", "mean", "n_samples", "scatter")
        summary = Subspace(*(getattr(summary, name) for name in fields))
    elif made != "rows":
        kind = StreamingPCA if made == "fit" else DistributedPCA
        summary = kind(d, scale=True).fit(X).subspace_
    data = summary.to_bytes()
    n_columns = 2 - (summary.column_scatter is None)
    assert len(data) == summary.nbytes == 52 + 8 * n_columns * d + 4 * d * (d + 1)
    assert summary.n_floats == 2 + n_columns * d + d * (d + 1) // 2
    read = Subspace.from_bytes(data)
    assert read.to_bytes() == data
    assert (read.n_components, read.nbytes, read.n_floats) == (d, len(data), summary.n_floats)
    Y = X - X.mean(axis=0)
    np.testing.assert_allclose(read.singular_values, np.linalg.svd(Y, compute_uv=False), rtol=1e-12)
    rebuilt = (read.components.T * read.singular_values**2) @ read.components
    np.testing.assert_allclose(rebuilt, Y.T @ Y, rtol=0, atol=1e-11 * summary.scatter)


@pytest.mark.parametrize("made", ["fields", "factor", "file"])
def test_columns_of_very_unlike_sizes_keep_their_digits_in_a_file(made):
    X = np.random.default_rng(0).standard_normal((50, 6)) @ (np.eye(6) + 0.3)
    sizes = 10.0 ** -np.array([0, 4, 8, 1, 12, 2])
    X *= sizes
    summary = DistributedPCA(3, scale=True).fit(X).subspace_
    if made != "factor":
        fields = ("components", "singular_values", "mean", "n_samples", "scatter")
        known = {name: getattr(summary, name) for name in fields}
        summary = Subspace(**known, column_scatter=summary.column_scatter)
    read = Subspace.from_bytes(summary.to_bytes())
    if made == "file":
        read = Subspace.from_bytes(read.to_bytes())
    Y = (X - X.mean(axis=0)) / sizes
    rows = read.singular_values[:, None] * read.components / sizes
    np.testing.assert_allclose(rows.T @ rows, Y.T @ Y, rtol=0, atol=1e-9)


def test_what_no_triangle_stands_for_is_stored_as_directions():
    whole = make()
    fields = {
        name: getattr(whole, name)
        for name in ("components", "singular_values", "mean", "n_samples", "scatter")
    }
    zero, noise = whole.singular_values.copy(), whole.singular_values.copy()
    zero[-1], noise[-1] = 0.0, 1e-15 * zero[0]
    wrong = whole.column_scatter[::-1].copy()
    for changes in (
        {"singular_values": zero},
        {"singular_values": noise},
        {"column_scatter": wrong},
    ):
        summary = Subspace(**{**fields, **changes})
        data = summary.to_bytes()
        assert not data[9] & 8
        assert_same(Subspace.from_bytes(data), summary)
        assert Subspace.from_bytes(data).to_bytes() == data


def with_triangle(R, **changes):
    """Bytes of a summary with the numbers of a triangle, and a checksum that is right."""
    data = SUMMARIES["float64"].to_bytes()
    packed = np.concatenate([row[i:] for i, row in enumerate(R)])
    d = len(R)
    data = data[: HEADER.size] + bytes(8 * d) + packed.astype("<f8").tobytes() + data[-4:]
    return with_header(data, **{"flags": 9, "d": d, "k": d, "scatter": 1e9, **changes})


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        ((2, 2), 0.0, "positive diagonal"),
        ((2, 2), -0.0, "positive diagonal"),
        ((0, 0), -1.0, "positive diagonal"),
        ((0, 2), np.nan, "triangle must be finite"),
        ((1, 1), np.inf, "triangle must be finite"),
        ((0, 2), 1e200, "scatter=1000000000.0 must be at least"),
        ((0, 2), 1e5, "scatter=1000000000.0 must be at least"),
    ],
)
def test_triangles_of_strangers_are_checked(at, value, why):
    R = np.triu(np.arange(1.0, 10.0).reshape(3, 3))
    assert Subspace.from_bytes(with_triangle(R)).n_components == 3
    R[at] = value
    with pytest.raises(ValueError, match=why):
        Subspace.from_bytes(with_triangle(R))


def test_a_triangle_fits_the_scatter_of_its_columns():
    data = SUMMARIES["float64"].to_bytes()
    numbers = np.frombuffer(data[HEADER.size : -CRC.size]).copy()
    numbers[7], numbers[8] = numbers[8], numbers[7]  # the same sum
    with pytest.raises(ValueError, match="sums of squares of the triangle's columns"):
        Subspace.from_bytes(with_checksum(data[: HEADER.size] + numbers.tobytes()))


def test_triangles_near_the_smallest_and_largest_numbers_are_read():
    rng = np.random.default_rng(0)
    for _ in range(300):
        R = np.triu(rng.standard_normal((4, 4)) * 10.0 ** rng.uniform(-320, 150, (4, 4)))
        R[np.diag_indices(4)] = np.abs(R.diagonal()) + 5e-324
        read = Subspace.from_bytes(with_triangle(R, scatter=1e302))
        assert_valid(read)
        assert Subspace.from_bytes(read.to_bytes()).to_bytes() == read.to_bytes()


def test_what_was_read_is_immutable_and_owns_its_memory():
    for name in ("float64", "wide"):
        data = bytearray(SUMMARIES[name].to_bytes())
        subspace = Subspace.from_bytes(data)
        data[:] = bytes(len(data))
        assert_same(subspace, SUMMARIES[name])
        for array in (subspace.components, subspace.mean):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0


def test_loaded_summary_goes_on_as_the_saved_one():
    X = np.random.default_rng(1).standard_normal((20, 7))
    saved = SUMMARIES["float64"]
    loaded = Subspace.from_bytes(saved.to_bytes())
    found, expected = loaded.update(X), saved.update(X)
    np.testing.assert_allclose(found.components, expected.components, rtol=0, atol=1e-13)
    np.testing.assert_allclose(found.singular_values, expected.singular_values, rtol=1e-13)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-15)


@pytest.mark.parametrize("stated", MODELS.values(), ids=MODELS)
def test_the_model_of_a_file_comes_back(stated):
    summary = of_model(*stated)
    data = summary.to_bytes()
    assert len(data) == summary.nbytes
    assert Subspace.from_bytes(data).model == stated
    assert_same(Subspace.from_bytes(data), summary)
    assert Subspace.from_bytes(data).to_bytes() == data


def test_what_is_made_of_a_model_is_another_one():
    model = of_model(*MODELS["scaled model"])
    X = np.random.default_rng(1).standard_normal((20, 7))
    for other in (
        model.truncate(2),
        model.update(X),
        model.decay(0.5),
        merge_subspaces([model]),
        merge_subspaces([model, Subspace.from_rows(X)]),
        FederatedPCA.from_subspaces([model], 2).subspace_,
        StreamingPCA.from_subspace(model, 2).subspace_,
    ):
        assert other.model is None
    assert model._named("abcdefg").model == MODELS["scaled model"]


@pytest.mark.parametrize(
    ("stated", "match"),
    [
        ((8, False, (), 0.0), "model.n_components must be an integer from 0 to 7, got 8"),
        ((-1, False, (), 0.0), "model.n_components"),
        ((2.5, False, (), 0.0), "model.n_components"),
        ((float("nan"), False, (), 0.0), "model.n_components"),
        (("3", False, (), 0.0), "model.n_components"),
        ((6, False, (0, 1), 0.0), "model.n_components must be an integer from 0 to 5, got 6"),
        ((3, 2, (), 0.0), "model.scale must be True or False, got 2"),
        ((3, None, (), 0.0), "model.scale"),
        ((3, False, (7,), 0.0), "model.partial_out must be an integer from 0 to 6, got 7"),
        ((3, False, (1, 1), 0.0), "model.partial_out must hold none of 7 columns twice"),
        ((0, False, range(7), 0.0), "model.partial_out must hold none of 7 columns twice"),
        ((3, False, (), -1.0), "model.error_bound"),
        ((3, False, (), float("nan")), "model.error_bound"),
        ((3, False, ()), "model must be"),
    ],
    ids=str,
)
def test_a_model_that_cannot_be_is_refused(stated, match):
    with pytest.raises(ValueError, match=match):
        of_model(*stated)


def test_columns_about_the_origin_are_not_scaled():
    fields = {
        name: getattr(SUMMARIES["about the origin"], name)
        for name in ("components", "singular_values", "mean", "n_samples", "scatter", "centered")
    }
    with pytest.raises(ValueError, match="centered=True"):
        Subspace(**fields, model=(2, True, (), 0.0))
    assert Subspace(**fields, model=(2, False, (), 0.0)).model == (2, False, (), 0.0)


@pytest.mark.parametrize(
    "model",
    [
        *("[]", "[3]", "[3, 1]", "3", '"abc"', '["3", 1, null]', '[3, "1", null]'),
        *("[3, 1, null, 0, 0]", "[3, 1, 0.1, 7]", "[3, 1, null, null]", "[3, 0, null, 0.5]"),
        *("[9, 1, null]", "[3, 2, null]", "[3, 1e999, null]", "[3, 1, -1]", "[[3], 1, null]"),
    ],
)
def test_models_of_hostile_files_are_refused(model):
    labels = f'{{"model": {model}}}'.encode()
    for data in (SUMMARIES["float64"].to_bytes(), SUMMARIES["no components"].to_bytes()):
        body = with_header(data, labels=len(labels))[: -CRC.size] + labels
        with pytest.raises(ValueError, match=r"labels|model"):
            Subspace.from_bytes(with_checksum(body))


# -------------------------------------------------------------------------- hostile data


SPECIAL_BYTES = [0, 1, 2, 4, 8, 0x7F, 0x80, 0xF0, 0xFF]
SPECIAL_INTS = [0, 1, 2, 6, 7, 8, 255, 2**31, 2**32, 2**40, 2**60, 2**63, 2**64 - 1]
SPECIAL_FLOATS = [0.0, -0.0, 1.0, -1.0, 5e-324, 1e-300, 1e300, np.inf, -np.inf, np.nan]
SPECIAL_DOUBLES = [struct.pack("<d", x) for x in (*SPECIAL_FLOATS, 1e200, -1e200)]


def flip_bits(data, rng):
    for _ in range(rng.integers(1, 4)):
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))


def set_bytes(data, rng):
    for _ in range(rng.integers(1, 4)):
        data[rng.integers(len(data))] = SPECIAL_BYTES[rng.integers(len(SPECIAL_BYTES))]


def truncate(data, rng):
    del data[rng.integers(len(data)) :]


def insert(data, rng):
    at = int(rng.integers(len(data) + 1))
    data[at:at] = rng.bytes(int(rng.integers(1, 80)))


def remove(data, rng):
    at = int(rng.integers(len(data)))
    del data[at : at + int(rng.integers(1, 80))]


def change_header(data, rng):
    fields = list(HEADER.unpack_from(data))
    which = int(rng.integers(1, len(fields)))
    if N_FIELDS[which] in ("kind", "flags"):
        fields[which] = SPECIAL_BYTES[rng.integers(len(SPECIAL_BYTES))]
    elif N_FIELDS[which] in ("labels", "sites"):
        largest = 2**32 - 2 if N_FIELDS[which] == "labels" else 2**16 - 2
        fields[which] = 1 + SPECIAL_INTS[rng.integers(len(SPECIAL_INTS))] % largest
    elif N_FIELDS[which] in ("d", "k"):
        fields[which] = SPECIAL_INTS[rng.integers(len(SPECIAL_INTS))]
    else:
        fields[which] = SPECIAL_FLOATS[rng.integers(len(SPECIAL_FLOATS))]
    data[: HEADER.size] = HEADER.pack(*fields)


def set_doubles(data, rng):
    """Infinities, NaN and numbers whose squares overflow, among mean, values and components."""
    n = (len(data) - HEADER.size) // 8
    for _ in range(rng.integers(1, 6)):
        at = HEADER.size + 8 * int(rng.integers(max(n, 1)))
        data[at : at + 8] = SPECIAL_DOUBLES[rng.integers(len(SPECIAL_DOUBLES))]


MUTATIONS = [flip_bits, set_bytes, truncate, insert, remove, change_header, set_doubles]
SMALL = [name for name in SUMMARIES if name != "wide"]


def traced_peak(data):
    """Memory that reading a summary takes, while memory is traced."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    with suppress(ValueError):
        subspace = Subspace.from_bytes(data)
        Subspace.from_bytes(subspace.to_bytes())
    return tracemalloc.get_traced_memory()[1] - before


@pytest.mark.no_cover
@pytest.mark.parametrize("checksum", ["stale", "recomputed"])
def test_mutated_files_end_in_value_error_or_a_valid_summary(checksum):
    """5,000 with the checksum left as it was, and 5,000 past it, into the deeper validation."""
    rng = np.random.default_rng(0)
    originals = [SUMMARIES[name].to_bytes() for name in SMALL]
    originals += [of_model(*stated).to_bytes() for stated in MODELS.values()]
    outcomes, largest = Counter(), 0.0
    tracemalloc.start()
    try:
        for i in range(5000):
            original = originals[i % len(originals)]
            mutate = MUTATIONS[rng.integers(len(MUTATIONS))]
            data = bytearray(original if checksum == "stale" else original[: -CRC.size])
            mutate(data, rng)
            data = bytes(data) if checksum == "stale" else with_checksum(data)
            if data == original:
                continue
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                subspace = Subspace.from_bytes(data)
            except ValueError:
                outcomes["refused", mutate.__name__] += 1
            else:
                assert_valid(subspace)
                assert Subspace.from_bytes(subspace.to_bytes()).to_bytes() == subspace.to_bytes()
                assert checksum == "recomputed", "CRC-32 finds every error of a few bytes"
                outcomes["valid", mutate.__name__] += 1
            peak = tracemalloc.get_traced_memory()[1] - before
            for _ in range(3):  # other threads of the process allocate now and then
                if (peak - 20_000) / max(len(data), 1) > 10:
                    peak = min(peak, traced_peak(data))
            largest = max(largest, (peak - 20_000) / max(len(data), 1))
    finally:
        tracemalloc.stop()
    assert sum(outcomes.values()) > 4900
    assert largest <= 10, "more was allocated than a small multiple of the file"
    if checksum == "recomputed":  # a changed count is a summary of its own; so it must have passed
        assert outcomes["valid", "change_header"] > 0
        assert outcomes["valid", "truncate"] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"d": 2**60},
        {"d": 2**60, "k": 2**60},
        {"d": 2**61, "k": 0},
        {"d": 2**64 - 1, "k": 2**64 - 1},
        {"d": 2**32, "k": 2**32},
        {"k": 2**60},
        # lengths that come out right only modulo 2**64
        {"d": 2**61 + 7, "k": 7},
        {"flags": 3, "d": 2**61 + 7, "k": 7},
    ],
    ids=str,
)
def test_announced_sizes_are_refused_before_anything_is_allocated(changes):
    data = with_header(SUMMARIES["float64"].to_bytes(), **changes)

    def refuse():
        with pytest.raises(ValueError, match="Corrupt subspace summary"):
            Subspace.from_bytes(data)

    assert peak_bytes(refuse) <= 20_000 + 10 * len(data)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"magic": b"PK\x03\x04\x00\x00\x00\x00"}, "Not a subspace summary"),
        ({"magic": b"FEDPCA\x00\x06"}, r"version 6 of a subspace summary; .*versions 1 to 5"),
        ({"magic": b"FEDPCA\x00\x00"}, r"version 0 of a subspace summary; .*versions 1 to 5"),
        ({"magic": b"FEDPCA\x00\x04"}, "dtype or flags"),
        ({"magic": b"FEDPCA\x00\x02"}, "dtype or flags"),
        ({"magic": b"FEDPCA\x00\x01"}, "dtype or flags"),
        ({"kind": 0}, "Not a subspace summary: it does not start as one"),
        ({"kind": 2}, "Not a subspace summary: it does not start as one"),
        ({"kind": 3}, "Not a subspace summary: it does not start as one"),
        ({"kind": 4}, "Not a subspace summary: it is moments of pairs"),
        ({"flags": 15}, "dtype or flags"),
        ({"flags": 16}, "dtype or flags"),
        ({"flags": 1}, "announces"),
        ({"flags": 3}, "announces"),
        ({"flags": 10}, "mean must be zero"),
        ({"labels": 1}, "announces"),
        ({"sites": 1}, "not of as many sites"),
        ({"k": 8}, "dtype or flags"),
        ({"k": 6}, "dtype or flags"),
        ({"flags": 3, "k": 8}, "8 components of 7 features"),
        ({"flags": 3, "k": 6}, "announces"),
        ({"flags": 7, "k": 6}, "announces"),
        ({"n_samples": np.nan}, "n_samples must be finite"),
        ({"n_samples": -1.0}, "n_samples must be .*non-negative"),
        ({"n_samples": 0.0}, "n_samples=0"),
        ({"scatter": np.inf}, "scatter must be finite"),
        ({"scatter": 0.0}, "scatter=0.0"),
    ],
    ids=str,
)
def test_reason_is_given_for_what_is_refused(changes, match):
    with pytest.raises(ValueError, match=match):
        Subspace.from_bytes(with_header(SUMMARIES["float64"].to_bytes(), **changes))


# the products of two rows sum to inf - inf
OVERFLOWING = np.random.default_rng(0).choice([1e200, -1e200], size=(16, 1024))


def contents(components, **fields):
    """Bytes of a summary with the given arrays and scatter, valid where nothing is given."""
    k, d = np.shape(components)
    header = HEADER.pack(b"FEDPCA\x00\x01", 8, 1, 0, 0, d, k, 3.0, fields.get("scatter", 0.0))
    mean = fields.get("mean", np.zeros(d))
    singular_values = fields.get("singular_values", np.zeros(k))
    arrays = (np.asarray(a, dtype="<f8") for a in (mean, singular_values, components))
    return with_checksum(header + b"".join(a.tobytes() for a in arrays))


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"components": np.ones((2, 2))}, "orthonormal"),
        ({"components": np.zeros((2, 2))}, "orthonormal"),
        # products that overflow to NaN must not pass a comparison with a tolerance
        ({"components": OVERFLOWING}, "orthonormal"),
        ({"components": np.full((2, 2), np.nan)}, "finite"),
        ({"components": np.eye(2), "singular_values": [1e200, 1e200], "scatter": 1e308}, "scatter"),
        ({"components": np.eye(2), "singular_values": [1.0, 2.0], "scatter": 9.0}, "decreasing"),
        ({"components": np.eye(2), "singular_values": [0.0, -1.0], "scatter": 9.0}, "non-negative"),
        ({"components": np.eye(2), "mean": [0.0, np.inf]}, "mean must be finite"),
        ({"components": np.zeros((0, 0))}, "non-empty"),
    ],
)
def test_contents_are_checked_behind_a_right_checksum(fields, match):
    with pytest.raises(ValueError, match=match):
        Subspace.from_bytes(contents(**fields))


def test_contents_that_fit_are_accepted():
    data = contents(np.eye(2, 3), singular_values=[2.0, 1.0], scatter=5.0, mean=[1.0, 2.0, 3.0])
    told = Subspace(np.eye(2, 3), np.array([2.0, 1.0]), np.array([1.0, 2.0, 3.0]), 3.0, 5.0)
    assert_same(Subspace.from_bytes(data), told)


@pytest.mark.parametrize("wrap", [pickle.dumps, lambda s: b"\x80\x04" + s.to_bytes()])
def test_pickles_are_refused_and_never_loaded(wrap, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    path = tmp_path / "site.subspace"
    for data in (wrap(SUMMARIES["float64"]), pickle.dumps(Bomb()), pickle.dumps([1, 2] * 99)):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="Not a subspace summary"):
            Subspace.load(path)
    assert not (tmp_path / "exploded").exists()


def test_numpy_files_are_refused(tmp_path):
    path = tmp_path / "site.npz"
    np.savez(path, components=np.eye(3))
    with pytest.raises(ValueError, match="Not a subspace summary"):
        Subspace.load(path)


@pytest.mark.parametrize("data", [b"", b"F", bytes(51), bytes(52)])
def test_short_data_is_refused(data):
    with pytest.raises(ValueError, match="Not a subspace summary"):
        Subspace.from_bytes(data)


@pytest.mark.parametrize("data", ["text", None, 3, [1, 2]])
def test_data_that_are_no_bytes_are_named(data):
    with pytest.raises(TypeError, match=rf"data must be bytes-like, got {type(data).__name__}"):
        Subspace.from_bytes(data)


class CountingFile(io.BytesIO):
    """A source without end, that knows how much was asked of it."""

    asked = 0

    def read(self, size=-1):
        assert size is not None
        assert size >= 0, "an unbounded read"
        self.asked += size
        return bytes(size)


def test_no_more_than_max_bytes_and_one_are_read():
    file = CountingFile()
    with pytest.raises(ValueError, match=r"1001 bytes exceeds max_bytes=1000"):
        Subspace.load(file, max_bytes=1000)
    assert file.asked == 1001


@each_summary
def test_max_bytes_is_the_largest_size_that_passes(subspace, tmp_path):
    data, path = subspace.to_bytes(), tmp_path / "site.subspace"
    path.write_bytes(data)
    for read, source in (
        (Subspace.from_bytes, data),
        (Subspace.load, path),
        (Subspace.load, str(path)),
    ):
        assert_same(read(source, max_bytes=len(data)), subspace)
        with pytest.raises(ValueError, match=rf"max_bytes={len(data) - 1}"):
            read(source, max_bytes=len(data) - 1)


@pytest.mark.parametrize("columns", [[-1.0, 2, 4], [1.0, 2, 3], [np.nan, 1, 1], [5.0]])
def test_scatter_of_columns_must_be_that_of_all(columns):
    with pytest.raises(ValueError, match="column_scatter"):
        Subspace(np.eye(2, 3), [2.0, 1.0], np.zeros(3), 3.0, 5.0, column_scatter=columns)


def test_files_of_versions_1_and_2_are_read_without_labels_or_sites():
    """Written by hand as the releases before did: no scatter of columns, one site."""
    new, seven = make(), list("abcdefg")
    for names, site in ((None, None), (seven, None), (None, "north"), (seven, "north")):
        labels = b""
        if names or site:
            labels = json.dumps({"library": "old", "feature_names": names, "site": site}).encode()
        arrays = (new.mean, new.singular_values, new.components)
        version = b"FEDPCA\x00\x02" if labels else b"FEDPCA\x00\x01"
        header = HEADER.pack(version, 8, 1, len(labels), 0, 7, 7, new.n_samples, new.scatter)
        data = with_checksum(header + b"".join(a.tobytes() for a in arrays) + labels)
        old = Subspace.from_bytes(data)
        named = None if names is None else tuple(names)
        np.testing.assert_array_equal(old.components, new.components)
        np.testing.assert_array_equal(old.singular_values, new.singular_values)
        assert (old.column_scatter, old.feature_names, old.site) == (None, named, site)
        assert old.update(np.ones((1, 7))).column_scatter is None
        assert_same(Subspace.from_bytes(old.to_bytes()), old)


KINDS = {"summary": Subspace, "pairs": PairMoments}
OLD = np.load(Path(__file__).with_name("old_files.npz"))
each_old_file = pytest.mark.parametrize("name", [name for name in OLD if name.split()[0] in KINDS])


@each_old_file
def test_files_that_earlier_releases_wrote_are_read(name):
    """Written by them; the oracle is what this release makes of the rows."""
    data, kind = OLD[name].tobytes(), KINDS[name.split()[0]]
    value, X, holes = kind.from_bytes(data), OLD["rows"], OLD["holes"]
    written = value.to_bytes()
    assert len(written) == value.nbytes <= len(data)
    assert kind.from_bytes(written).to_bytes() == written
    assert value.site in (None, "north", "Zürich")
    if kind is Subspace:
        Y = X if "origin" in name else X - X.mean(axis=0)
        s = np.linalg.svd(Y, compute_uv=False)[: value.n_components]
        tol = 1e-6 if "float32" in name else 1e-13
        np.testing.assert_allclose(value.singular_values, s, rtol=tol)
        assert (value.column_scatter is None) == name.startswith(
            ("summary 1", "summary 2", "summary 4")
        )
        assert (value.feature_names is None) == (name not in LABELLED)
        assert value.model == ((3, True, (0, 2), 0.1) if "model" in name else None)
        if name == "summary 3, labels":
            assert value.sites == ("Zürich", "north")
            assert value.privacy == (1.0, 1e-5, 3.0, "AnalyzeGauss", "client")
    else:
        now = PairMoments.from_rows(holes.astype(np.float32) if "float32" in name else holes)
        np.testing.assert_allclose(value.covariance(), now.covariance(), rtol=1e-12)
        assert value.single == now.single


@pytest.mark.parametrize("name", ["answer 1", "fill 1", "fill 1, means"])
def test_files_of_rounds_that_are_gone_are_refused(name):
    for kind in KINDS.values():
        with pytest.raises(ValueError, match="it does not start as one"):
            kind.from_bytes(OLD[name].tobytes())


LABELLED = ("summary 2", "summary 3, labels", "summary 4, scaled model")


@each_old_file
def test_changed_files_of_earlier_releases_are_refused_or_valid(name):
    data, kind = OLD[name].tobytes(), KINDS[name.split()[0]]
    rng = np.random.default_rng(0)
    for i in range(300):
        changed = bytearray(data[:-4])
        MUTATIONS[i % 5](changed, rng)
        with suppress(ValueError):
            value = kind.from_bytes(with_checksum(changed))
            again = kind.from_bytes(value.to_bytes()).to_bytes()
            assert again == value.to_bytes()


def test_a_file_that_is_too_large_is_not_read_at_all(tmp_path):
    path = tmp_path / "site.subspace"
    with open(path, "wb") as file:
        file.truncate(5 * 2**30)  # sparse on disk

    def refuse(file):
        with pytest.raises(ValueError, match=f"{5 * 2**30} bytes exceeds max_bytes={2**30}"):
            Subspace.load(file)

    buffer = io.DEFAULT_BUFFER_SIZE
    assert peak_bytes(lambda: refuse(path)) <= 50_000 + buffer
    with open(path, "rb") as opened:
        assert peak_bytes(lambda: refuse(opened)) <= 50_000 + buffer


@pytest.mark.parametrize("file", [2**20, None, ["site.subspace"]], ids=str)
def test_what_names_no_file_is_refused(file):
    message = f"file must be a path or a binary file object, got {type(file).__name__}"
    with pytest.raises(TypeError, match=message):
        Subspace.empty(3).save(file)
    with pytest.raises(TypeError, match=message):
        Subspace.load(file)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_what_is_no_regular_file_is_named_and_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, kind in (
        (tmp_path, "a directory"),
        (tmp_path / "pipe", "a named pipe"),
        ("/dev/zero", "a device"),
    ):
        with pytest.raises(ValueError, match=f"{path}' is {kind}"):
            Subspace.load(path)


def test_large_file_is_not_read_beyond_max_bytes(tmp_path):
    path = tmp_path / "site.subspace"
    with open(path, "wb") as file:
        file.truncate(2**28)  # sparse on disk

    def refuse():
        with pytest.raises(ValueError, match="max_bytes=100000"):
            Subspace.load(path, max_bytes=100_000)

    assert peak_bytes(refuse) <= 2**20
