"""Stored summaries: what is written comes back, and nothing else gets in."""

import io
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
from numpy.testing import assert_allclose, assert_array_equal
from summary_helpers import FIELDS, fields_of

from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    PairMoments,
    StreamingPCA,
    Subspace,
    merge_subspaces,
)
from fedpca_sklearn._validation import files

# the documented layout, written down a second time
HEADER = struct.Struct("<8sBBIHQQdd")
N_FIELDS = ("magic", "kind", "flags", "labels", "sites", "d", "k", "n_samples", "scatter")
CRC = struct.Struct("<I")


def make(n=30, d=7, n_components=None, dtype=np.float64, center=True):
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((n, d)) * np.arange(1, d + 1) + 3).astype(dtype)
    return Subspace.from_rows(X, n_components, center=center)


def of_model(*stated):
    return Subspace(**fields_of(make(), "column_scatter", model=stated))


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
STATED = {"privacy": (1.0, 1e-5, 3.0, "AnalyzeGauss", "client")}
LABELLED = {
    "model": of_model(3, False, (), 1e-12),
    "scaled model": of_model(3, True, (), float("inf")),
    "model without confounders": of_model(5, False, (6, 0), 0.25),
    "names": make(d=4)._named(("Größe", "血压", "", 'a "quoted" \\ name'))._replace(site="Zürich"),
    "sites": make()._replace(site=None, sites=("a", "b"), **STATED),
}
each_summary = pytest.mark.parametrize("subspace", SUMMARIES.values(), ids=SUMMARIES)


def with_checksum(body):
    return bytes(body) + CRC.pack(zlib.crc32(body))


def with_header(data, **changes):
    """Change header fields and make the checksum right again."""
    fields = dict(zip(N_FIELDS, HEADER.unpack_from(data), strict=True)) | changes
    return with_checksum(HEADER.pack(*fields.values()) + data[HEADER.size : -CRC.size])


def assert_same(one, other):
    """All bits, but for directions that are found anew from a triangle."""
    whole = other.to_bytes()[9] & 8
    for name in ("components", "singular_values", "mean", "column_scatter"):
        a, b = getattr(one, name), getattr(other, name)
        tol = 1e-12 if whole and name in ("components", "singular_values") else 0
        if b is None or not tol:
            assert_array_equal(a, b)
        else:
            assert_allclose(a, b, rtol=tol / 10, atol=tol * (name == "components"))
        assert b is None or a.dtype == b.dtype
    for name in ("n_samples", "scatter", "centered", "feature_names", "sites", "privacy", "model"):
        assert getattr(one, name) == getattr(other, name)


def assert_valid(subspace):
    """What every summary promises, whoever wrote it."""
    V, s = subspace.components.astype(np.float64), subspace.singular_values
    tol = 1e-7 if subspace.components.dtype == np.float64 else 1e-4
    assert np.abs(V @ V.T - np.eye(len(V))).max(initial=0) <= 2 * tol
    assert np.all(s >= 0)
    assert np.all(np.diff(s) <= 0)
    assert np.isfinite([*subspace.mean, subspace.n_samples, subspace.scatter]).all()
    assert subspace.centered or not subspace.mean.any()
    assert subspace.n_samples >= 0
    assert s @ s <= subspace.scatter * (1 + tol)
    assert Subspace.from_bytes(subspace.to_bytes()).to_bytes() == subspace.to_bytes()


# -------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("name", [*SUMMARIES, *LABELLED])
def test_bytes_and_files_come_back_exactly(name, tmp_path):
    subspace, path = (SUMMARIES | LABELLED)[name], tmp_path / "site.subspace"
    data = subspace.to_bytes()
    assert len(data) == subspace.nbytes
    for file in (str(path), path):
        subspace.save(file)
    stream = io.BytesIO()
    subspace.save(stream)
    assert stream.getvalue() == path.read_bytes() == data
    ways = [(Subspace.from_bytes, given) for given in (data, bytearray(data), memoryview(data))]
    for read, source in (*ways, (Subspace.load, path), (Subspace.load, str(path))):
        assert_same(read(source, max_bytes=len(data)), subspace)
        with pytest.raises(ValueError, match=rf"max_bytes={len(data) - 1}"):
            read(source, max_bytes=len(data) - 1)
    stream.seek(0)
    with open(path, "rb") as opened:
        for source in (stream, opened):
            assert_same(Subspace.load(source), subspace)
    buffer = bytearray(data)  # which the summary does not share
    read = Subspace.from_bytes(buffer)
    buffer[:] = bytes(len(data))
    assert read.to_bytes() == data
    with pytest.raises(ValueError, match="read-only"):
        read.mean[...] = 0


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
    for array in (subspace.mean, *([] if columns is None else [columns])):
        assert_array_equal(np.frombuffer(arrays[: 8 * d], "<f8"), array)
        arrays = arrays[8 * d :]
    if whole:
        assert len(arrays) == 4 * d * (d + 1)
        R = np.zeros((d, d))
        R[np.triu_indices(d)] = np.frombuffer(arrays)
        assert (R.diagonal() > 0).all()
        sV = subspace.singular_values[:, None] * subspace.components
        assert_allclose(R.T @ R, sV.T @ sV, rtol=1e-12, atol=1e-12)
    else:
        assert_array_equal(np.frombuffer(arrays[: 8 * k]), subspace.singular_values)
        V = np.frombuffer(arrays[8 * k :], f"<f{subspace.components.itemsize}").reshape(k, d)
        assert_array_equal(V, subspace.components)
    assert data[-CRC.size :] == CRC.pack(zlib.crc32(data[: -CRC.size]))


@pytest.mark.parametrize("d", [1, 60])
@pytest.mark.parametrize("made", ["rows", "fields", "fit", "triangle"])
def test_a_triangle_is_the_spectrum_that_was_saved(made, d):
    """By numpy's decomposition of all rows; half as large as singular values and directions."""
    X = np.random.default_rng(d).standard_normal((2 * d + 5, d)) * np.linspace(1, 4, d) + 3
    summary = Subspace.from_rows(X)
    if made == "fields":
        summary = Subspace(**fields_of(summary))
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
    assert_allclose(read.singular_values, np.linalg.svd(Y, compute_uv=False), rtol=1e-12)
    rebuilt = (read.components.T * read.singular_values**2) @ read.components
    assert_allclose(rebuilt, Y.T @ Y, rtol=0, atol=1e-11 * summary.scatter)


def test_what_no_triangle_stands_for_is_stored_as_directions():
    whole = make()
    zero, noise = whole.singular_values.copy(), whole.singular_values.copy()
    zero[-1], noise[-1] = 0.0, 1e-15 * zero[0]
    wrong = whole.column_scatter[::-1].copy()
    for changes in (
        {"singular_values": zero},
        {"singular_values": noise},
        {"column_scatter": wrong},
    ):
        summary = Subspace(**fields_of(whole, **changes))
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


# -------------------------------------------------------------------------- models


def test_what_is_made_of_a_model_is_another_one():
    model = LABELLED["scaled model"]
    X = np.random.default_rng(1).standard_normal((20, 7))
    cut, merged = model.truncate(2), merge_subspaces([model, Subspace.from_rows(X)])
    with pytest.warns(
        UserWarning, match="of a model with scale, which the new one does not"
    ) as told:
        shown = FederatedPCA.from_subspaces([model], 2), StreamingPCA.from_subspace(model, 2)
    assert [warning.filename for warning in told] == 2 * [__file__]
    for other in (cut, model.update(X), model.decay(0.5), merged, *(m.subspace_ for m in shown)):
        assert other.model is None
    assert model._named("abcdefg").model == (3, True, (), float("inf"))


# -------------------------------------------------------------------------- hostile labels


def relabelled(labels, data=None, n_sites=0):
    """A summary whose labels are these bytes, with a checksum that is right."""
    data = SUMMARIES["float64"].to_bytes() if data is None else data
    (length,) = struct.unpack_from("<I", data, 10)
    body = data[:10] + struct.pack("<IH", len(labels), n_sites) + data[16 : len(data) - 4 - length]
    return with_checksum(body + labels)


MODELS = "[] [3] [3,1] 3 'abc' ['3',1,null] [3,'1',null] [3,1,null,0,0] [3,1,0.1,7] [9,1,null]"
MODELS += " [3,1,null,null] [3,0,null,0.5] [3,2,null] [3,1e999,null] [3,1,-1] [[3],1,null]"
NAMES = (
    '"abcd"',
    '["a", "b"]',
    '["a", "b", "c", "d", "e", "f", 4]',
    '["a", "b", "c", "c", "e", "f", "g"]',
)
HOSTILE = [b"{", b"\xff\xfe", b"[]", b"7", b"{}", b"[" * 100_000]
HOSTILE += [b'{"model": %s}' % model.replace("'", '"').encode() for model in MODELS.split()]
HOSTILE += [b'{"feature_names": %s, "site": null}' % names.encode() for names in NAMES]
HOSTILE += [b'{"feature_names": null, "site": %s}' % x for x in (b"7", b'{"a": 1}', b"9" * 10_000)]
HOSTILE += [b'{"feature_names": null, "site": "\\ud800"}', b'{"site": "a", "site": "b"}']
# one object of strings, but longer than all names may be
HOSTILE += [b"{%s}" % b", ".join(b'"%d": "%s"' % (i, b"a" * 990) for i in range(16))]


@pytest.mark.parametrize("labels", HOSTILE, ids=lambda b: b[:40].decode("latin1"))
def test_hostile_labels_are_refused(labels):
    for name in ("float64", "no components"):
        with pytest.raises(ValueError, match=r"labels|feature_names|model|must be valid text"):
            Subspace.from_bytes(relabelled(labels, SUMMARIES[name].to_bytes()))


BOMBS = {
    "lists": b'{"feature_names": [' + b"[]," * 700_000,
    "objects": b'{"a":' * 400_000,
    "strings": b'{"feature_names": [' + b'"",' * 700_000,
    "numbers": b'{"feature_names": [' + b"1," * 1_000_000,
    "digits": b'{"site": ' + b"9" * 2_000_000,
    "one string": b'{"site": "' + b"a" * 2_000_000 + b'"}',
    "escapes": b'{"site": "' + b"\\n" * 1_000_000,
    "depth": b"[" * 2_000_000,
    "spaces": b" " * 2_000_000,
}


def refused_peak(data, match, read=Subspace.from_bytes):
    """Memory that a refusal takes, the second time: what is cached at first is no part of it."""

    def refuse():
        with pytest.raises(ValueError, match=match):
            read(data)

    return min(peak_bytes(refuse) for _ in range(2))


@pytest.mark.parametrize("kind", BOMBS)
def test_megabytes_of_labels_are_refused_without_memory(kind):
    bomb, d = BOMBS[kind], 25_000
    assert refused_peak(relabelled(bomb), "labels") <= 50_000
    # and where their size is allowed
    wide = Subspace.empty(d)._replace(site="north").to_bytes()
    assert refused_peak(relabelled(bomb, wide), "labels") <= 100 * d


# -------------------------------------------------------------------------- hostile data


SPECIAL_BYTES = [0, 1, 2, 4, 8, 0x55, 0x7F, 0x80, 0xF0, 0xFF]
SPECIAL_INTS = [0, 1, 2, 6, 7, 8, 255, 2**31, 2**32, 2**40, 2**60, 2**63, 2**64 - 1]
SPECIAL_FLOATS = [0.0, -0.0, 1.0, -1.0, 5e-324, 1e-300, 1e300, np.inf, -np.inf, np.nan]
SPECIAL_DOUBLES = [struct.pack("<d", x) for x in (*SPECIAL_FLOATS, 1e200, -1e200)]
SPECIAL = {  # values of fields of the header
    **dict.fromkeys(("kind", "flags"), SPECIAL_BYTES),
    "labels": [1 + n % (2**32 - 2) for n in SPECIAL_INTS],
    "sites": [1 + n % (2**16 - 2) for n in SPECIAL_INTS],
    **dict.fromkeys(("d", "k"), SPECIAL_INTS),
    **dict.fromkeys(("n_samples", "scatter"), SPECIAL_FLOATS),
}


def splice(data, rng):
    """Bytes are replaced, cut out or put in, here and there."""
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(data) + 1))
        removed, added = (int(rng.choice([0, 1, 1, 40])) for _ in range(2))
        data[at : at + removed] = bytes(rng.choice(SPECIAL_BYTES, added))


def flip_bits(data, rng):
    for _ in range(rng.integers(1, 4)):
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))


def truncate(data, rng):
    del data[rng.integers(len(data)) :]


def change_header(data, rng):
    fields = list(HEADER.unpack_from(data))
    which = int(rng.integers(1, len(fields)))
    values = SPECIAL[N_FIELDS[which]]
    fields[which] = values[rng.integers(len(values))]
    data[: HEADER.size] = HEADER.pack(*fields)


def set_doubles(data, rng):
    """Infinities, NaN and numbers whose squares overflow, among mean, values and components."""
    n = (len(data) - HEADER.size) // 8
    for _ in range(rng.integers(1, 6)):
        at = HEADER.size + 8 * int(rng.integers(max(n, 1)))
        data[at : at + 8] = SPECIAL_DOUBLES[rng.integers(len(SPECIAL_DOUBLES))]


MUTATIONS = [splice, flip_bits, truncate, change_header, set_doubles]


def traced_peak(data):
    """Memory that reading a summary takes, while memory is traced."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    with suppress(ValueError):
        Subspace.from_bytes(data)
    return tracemalloc.get_traced_memory()[1] - before


@pytest.mark.no_cover
@pytest.mark.parametrize("checksum", ["stale", "recomputed"])
def test_mutated_files_end_in_value_error_or_a_valid_summary(checksum):
    """800 with the checksum left as it was, and 800 past it, into the deeper validation."""
    rng = np.random.default_rng(0)
    originals = [s.to_bytes() for name, s in (SUMMARIES | LABELLED).items() if name != "wide"]
    outcomes, largest = Counter(), 0.0
    tracemalloc.start()
    try:
        for i in range(800):
            original = originals[i % len(originals)]
            mutate = MUTATIONS[rng.integers(len(MUTATIONS))]
            data = bytearray(original if checksum == "stale" else original[: -CRC.size])
            mutate(data, rng)
            data = bytes(data) if checksum == "stale" else with_checksum(data)
            if data == original:
                continue
            try:
                assert_valid(Subspace.from_bytes(data))
            except ValueError:
                outcomes["refused", mutate.__name__] += 1
            else:
                assert checksum == "recomputed", "CRC-32 finds every error of a few bytes"
                outcomes["valid", mutate.__name__] += 1
            # other threads of the process allocate now and then
            peak = min(traced_peak(data) for _ in range(2))
            largest = max(largest, (peak - 20_000) / max(len(data), 1))
    finally:
        tracemalloc.stop()
    assert sum(outcomes.values()) > 770
    assert largest <= 10, "more was allocated than a small multiple of the file"
    if checksum == "recomputed":  # a changed count is a summary of its own; so it must have passed
        assert outcomes["valid", "change_header"] > 0
        assert outcomes["valid", "truncate"] == 0


HEADERS = r"""
magic=b"PK\x03\x04\0\0\0\0" | Not a subspace summary
magic=b"FEDPCA\0\x06" | version 6 of a subspace summary; .*versions 1 to 5
magic=b"FEDPCA\0\0" | version 0 of a subspace summary; .*versions 1 to 5
magic=b"FEDPCA\0\x04" | dtype or flags
magic=b"FEDPCA\0\x01" | dtype or flags
kind=0 | Not a subspace summary: it does not start as one
kind=4 | Not a subspace summary: it is moments of pairs
flags=15 | dtype or flags
flags=16 | dtype or flags
flags=1 | announces
flags=3 | announces
flags=10 | mean must be zero
labels=1 | announces
sites=1 | not of as many sites
k=8 | dtype or flags
k=6 | dtype or flags
flags=3, k=8 | 8 components of 7 features
flags=3, k=6 | announces
flags=7, k=6 | announces
n_samples=0.0 | n_samples=0
scatter=0.0 | scatter=0.0
d=2**60 | Corrupt
d=2**61, k=0 | Corrupt
d=2**64 - 1, k=2**64 - 1 | Corrupt
d=2**32, k=2**32 | Corrupt
k=2**60 | Corrupt
d=2**61 + 7, k=7 | Corrupt
flags=3, d=2**61 + 7, k=7 | Corrupt
labels=2**32 - 1 | Corrupt
"""


@pytest.mark.parametrize("row", HEADERS.strip().splitlines())
def test_headers_are_refused_with_a_reason_before_anything_is_allocated(row):
    """Among them lengths that come out right only modulo 2**64."""
    changes, match = row.split(" | ")
    data = with_header(SUMMARIES["float64"].to_bytes(), **eval(f"dict({changes})"))
    assert refused_peak(data, match) <= 20_000 + 10 * len(data)


def test_what_is_no_summary_is_refused_and_never_loaded(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    path, whole = tmp_path / "site.subspace", SUMMARIES["float64"]
    archive = io.BytesIO()
    np.savez(archive, components=np.eye(3))
    pickles = [pickle.dumps(value) for value in (whole, Bomb(), [1, 2] * 99)]
    short = [b"", b"F", bytes(51), bytes(52)]
    for data in (*pickles, b"\x80\x04" + whole.to_bytes(), archive.getvalue(), *short):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="Not a subspace summary"):
            Subspace.load(path)
    assert not (tmp_path / "exploded").exists()
    for value in ("text", None, 3, [1, 2]):
        with pytest.raises(
            TypeError, match=rf"data must be bytes-like, got {type(value).__name__}"
        ):
            Subspace.from_bytes(value)


# -------------------------------------------------------------------------- files of before

KINDS = {"summary": Subspace, "pairs": PairMoments}
OLD = np.load(Path(__file__).with_name("old_files.npz"))
OLD_NAMED = ("summary 2", "summary 3, labels", "summary 4, scaled model")


def test_files_of_versions_1_and_2_are_read_without_labels_or_sites(old_file):
    """Written by hand as the releases before did: no scatter of columns, one site."""
    new, seven = make(), list("abcdefg")
    for names, site in ((None, None), (seven, None), (None, "north"), (seven, "north")):
        labels = {"feature_names": names, "site": site} if names or site else {}
        old = Subspace.from_bytes(old_file(*(getattr(new, name) for name in FIELDS), **labels))
        assert_array_equal(old.components, new.components)
        assert_array_equal(old.singular_values, new.singular_values)
        named = None if names is None else tuple(names)
        assert (old.column_scatter, old.feature_names, old.site) == (None, named, site)
        assert old.update(np.ones((1, 7))).column_scatter is None
        assert_same(Subspace.from_bytes(old.to_bytes()), old)


@pytest.mark.parametrize("name", [name for name in OLD if name.split()[0] in KINDS])
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
        assert_allclose(value.singular_values, s, rtol=1e-6 if "float32" in name else 1e-13)
        assert (value.column_scatter is None) == (
            name[:9] in ("summary 1", "summary 2", "summary 4")
        )
        assert (value.feature_names is None) == (name not in OLD_NAMED)
        assert value.model == ((3, True, (0, 2), 0.1) if "model" in name else None)
        if name == "summary 3, labels":
            assert value.sites == ("Zürich", "north")
            assert value.privacy == STATED["privacy"]
    else:
        now = PairMoments.from_rows(holes.astype(np.float32) if "float32" in name else holes)
        assert_allclose(value.covariance(), now.covariance(), rtol=1e-12)
        assert value.single == now.single
    for size in (0, 5, 16):  # of numbers, which versions before the present one state
        with pytest.raises(ValueError, match="invalid dtype"):
            kind.from_bytes(with_checksum(data[:8] + bytes([size]) + data[9:-4]))
    rng = np.random.default_rng(0)
    for i in range(200):  # changed ones are refused or valid
        changed = bytearray(data[:-4])
        (MUTATIONS[i % 3], set_doubles)[i % 4 == 3](changed, rng)
        with suppress(ValueError):
            value = kind.from_bytes(with_checksum(changed))
            assert kind.from_bytes(value.to_bytes()).to_bytes() == value.to_bytes()


@pytest.mark.parametrize("name", ["answer 1", "fill 1", "fill 1, means"])
def test_files_of_rounds_that_are_gone_are_refused(name):
    for kind in KINDS.values():
        with pytest.raises(ValueError, match="it does not start as one"):
            kind.from_bytes(OLD[name].tobytes())


# -------------------------------------------------------------------------- reading from a disk


def test_no_more_than_max_bytes_and_one_are_read(tmp_path):
    asked = []

    class Endless(io.BytesIO):
        def read(self, size=-1):
            assert size >= 0, "an unbounded read"
            asked.append(size)
            return bytes(size)

    with pytest.raises(ValueError, match=r"1001 bytes exceeds max_bytes=1000"):
        Subspace.load(Endless(), max_bytes=1000)
    assert sum(asked) == 1001
    path = tmp_path / "site.subspace"
    with open(path, "wb") as file:
        file.truncate(5 * 2**30)  # sparse on disk
    words, buffer = f"{5 * 2**30} bytes exceeds max_bytes={2**30}", io.DEFAULT_BUFFER_SIZE
    with open(path, "rb") as opened:
        for source in (path, opened):
            assert refused_peak(source, words, Subspace.load) <= 50_000 + buffer


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_what_is_no_regular_file_is_named_and_never_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    kinds = {tmp_path: "a directory", tmp_path / "pipe": "a named pipe", "/dev/zero": "a device"}
    for path, kind in kinds.items():
        with pytest.raises(ValueError, match=f"{path}' is {kind}"):
            Subspace.load(path)
    for file in (2**20, None, ["site.subspace"]):
        message = f"file must be a path or a binary file object, got {type(file).__name__}"
        for call in (Subspace.empty(3).save, Subspace.load):
            with pytest.raises(TypeError, match=message):
                call(file)


# -------------------------------------------------------------------------- written as a whole

TWO = [SUMMARIES["float64"], SUMMARIES["wide"]]
PAIRS = PairMoments.from_rows(np.random.default_rng(0).standard_normal((40, 5)))


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "site.fedpca"
    TWO[0].save(file)
    return file


@pytest.mark.parametrize("value", [TWO[1], PAIRS])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_file_that_cannot_be_replaced_stays(file, monkeypatch, value, error):
    before = file.read_bytes()

    def fail(*args):
        raise error

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(error):
        value.save(file)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]
    gone = file.parent / "gone" / "site.fedpca"
    with pytest.raises(FileNotFoundError) as caught:
        value.save(gone)
    assert caught.value.filename == str(gone)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_permissions_and_links_are_kept(file):
    new, usual, link = (file.with_name(name) for name in ("new", "usual", "link"))
    TWO[1].save(new)
    usual.touch()
    assert new.stat().st_mode == usual.stat().st_mode
    file.chmod(0o660)
    link.symlink_to(file)
    TWO[1].save(link)
    assert file.stat().st_mode & 0o777 == 0o660
    assert link.is_symlink()
    assert file.read_bytes() == TWO[1].to_bytes()
    TWO[0].save(os.devnull)  # which is written to, and stays what it is
    assert Path(os.devnull).is_char_device()
