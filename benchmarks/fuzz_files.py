"""Mutated files of summaries and labels, checksums made right: errors and memory.

Bytes, header fields, numbers and labels of small files of all versions, and now and then of one of
megabytes, are changed at random. What is read must be a valid summary or a ValueError, and may take
three times the size of the file and 64 MiB, the file itself among them.
"""

import json
import struct
import tracemalloc
import zlib
from time import perf_counter

import numpy as np

from benchmarks._tools import table
from fedpca_sklearn import Subspace

HEADER = struct.Struct("<8sBBIHQQdd")
INTEGERS = [0, 1, 2, 6, 7, 8, 255, 2**16 - 1, 2**31, 2**32 - 1, 2**40, 2**60, 2**63, 2**64 - 1]
DOUBLES = [0.0, -0.0, 1.0, -1.0, 5e-324, 1e-300, 1e200, 1e300, np.inf, -np.inf, np.nan]
PIECES = [
    *(b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"\\u0000", b"\\ud800", b"null", b"-1e999"),
    *("\u202e".encode(), b"\xff", b"\x00", b"9" * 400, b'"a",' * 99, b"[" * 999, b"[]," * 999),
    *(b'"site"', b'"sites": []', b"true", b"NaN", b" " * 50, b"a" * 2000),
]


def originals():
    """Files of all versions and kinds: small ones, and a few of megabytes."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((30, 7)) * np.arange(1, 8) + 3
    plain = Subspace.from_rows(rows)
    names = tuple(f"column {i}" for i in range(7))
    stated = (1.0, 1e-5, 3.0, "AnalyzeGauss", "client")
    labelled = plain._replace(feature_names=names, sites=("north", "Zürich"), privacy=stated)
    small = [
        plain,
        plain._replace(column_scatter=None),
        labelled,
        labelled._replace(site="north"),
        Subspace.from_rows(rows.astype(np.float32), 3),
        Subspace.from_rows(rows, center=False),
        Subspace.empty(7),
    ]
    fields = plain.components, plain.singular_values, plain.mean, 30, plain.scatter
    model = Subspace(*fields, feature_names=names, model=(3, True, (0, 2), 0.1)).to_bytes()
    wide = np.linalg.qr(rng.standard_normal((700, 700)))[0]
    large = [
        Subspace(wide, np.zeros(700), np.zeros(700), 9, 0.0),
        Subspace(wide, np.linspace(2, 1, 700), np.zeros(700), 9, 1e4),
        Subspace(wide.astype(np.float32)[:300], np.zeros(300), np.zeros(700), 9, 0.0),
        Subspace.empty(30_000)._named([f"word {i}" for i in range(30_000)]),
    ]
    old = [as_old(summary) for summary in small]
    small, large = ([s.to_bytes() for s in group] for group in (small, large))
    return [*small, model, *old], large


def as_old(summary):
    """The file as version 1 or 2 had it."""
    data, V, s = summary.to_bytes(), summary.components, summary.singular_values
    (n_labels,) = struct.unpack_from("<I", data, 10)
    labels, (k, d) = data[-4 - n_labels : -4], V.shape
    magic = b"FEDPCA\x00" + bytes([2 if labels else 1])
    sums = summary.n_samples, summary.scatter
    header = HEADER.pack(magic, V.itemsize, summary.centered, n_labels, 0, d, k, *sums)
    return with_checksum(header + b"".join(a.tobytes() for a in (summary.mean, s, V)) + labels)


def with_checksum(body):
    return bytes(body) + struct.pack("<I", zlib.crc32(body))


def flip_bits(data, rng):
    for _ in range(rng.integers(1, 4)):
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))


def cut(data, rng):
    del data[rng.integers(len(data)) :]


def insert(data, rng):
    at = int(rng.integers(len(data) + 1))
    data[at:at] = rng.bytes(int(rng.integers(1, 80)))


def header(data, rng):
    fields = list(HEADER.unpack_from(data))
    which = int(rng.integers(9))
    limits = {1: 2**8, 2: 2**8, 3: 2**32, 4: 2**16, 5: 2**64, 6: 2**64}
    if which == 0:
        fields[0] = fields[0][:7] + rng.bytes(1)
    elif which in limits:
        fields[which] = INTEGERS[rng.integers(len(INTEGERS))] % limits[which]
    else:
        fields[which] = DOUBLES[rng.integers(len(DOUBLES))]
    data[: HEADER.size] = HEADER.pack(*fields)


def numbers(data, rng):
    for _ in range(rng.integers(1, 6)):
        at = HEADER.size + 8 * int(rng.integers((len(data) - HEADER.size) // 8))
        data[at : at + 8] = struct.pack("<d", DOUBLES[rng.integers(len(DOUBLES))])


def labels(data, rng):
    """Change the labels, and their length and the number of sites with them."""
    (length,) = struct.unpack_from("<I", data, 10)
    text = bytearray(data[len(data) - length :]) if length else bytearray(_ANY_LABELS)
    for _ in range(rng.integers(1, 4)):
        at, n = int(rng.integers(len(text) + 1)), int(rng.integers(0, 30))
        text[at : at + n] = PIECES[rng.integers(len(PIECES))]
    if rng.random() < 0.02:
        text *= int(rng.integers(1, 2 + 20_000_000 // len(text)))
    del data[len(data) - length :]
    data += text
    struct.pack_into("<I", data, 10, len(text))
    if data[7] == 5 and rng.random() < 0.3:
        struct.pack_into("<H", data, 14, int(rng.integers(4)))
    elif data[7] == 1:
        data[7] = 2


_ANY_LABELS = json.dumps({"feature_names": list("abcdefg"), "site": "north"}).encode()
MUTATIONS = [flip_bits, cut, insert, header, numbers, labels, labels]


def measured(n_files, seed=0):
    """One row for each mutation: what came of how many files, and the memory it took."""
    rng = np.random.default_rng(seed)
    small, large = originals()
    rows = {}
    tracemalloc.start()
    try:
        for i in range(n_files):
            pool = large if i % 500 == 0 else small
            data = bytearray(pool[rng.integers(len(pool))][:-4])
            mutate = MUTATIONS[rng.integers(len(MUTATIONS))]
            mutate(data, rng)
            data = with_checksum(data)
            row = rows.setdefault(mutate.__name__, _row(mutate.__name__))
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                subspace = Subspace.from_bytes(data)
                again = Subspace.from_bytes(subspace.to_bytes()).to_bytes()
                row["valid" if again == subspace.to_bytes() else "other"] += 1
            except ValueError:
                row["refused"] += 1
            except Exception as error:
                row["other"] += 1
                print(mutate.__name__, repr(error))
            peak = len(data) + tracemalloc.get_traced_memory()[1] - before
            row["files"] += 1
            row["peak MB"] = max(row["peak MB"], peak / 1e6)
            row["over the bound"] += peak > 3 * len(data) + 2**26
    finally:
        tracemalloc.stop()
    return list(rows.values())


def _row(name):
    counts = dict.fromkeys(("files", "refused", "valid", "other", "over the bound"), 0)
    return {"mutation": name, **counts, "peak MB": 0.0}


def main(quick=False):
    start = perf_counter()
    table("fuzz_files", measured(2000 if quick else 100_000))
    print(f"{perf_counter() - start:.0f} s")
