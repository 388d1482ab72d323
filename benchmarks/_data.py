"""Public data: of a local folder, or fetched: ``python -m benchmarks._data``.

A file that is neither beside the repository nor made before is made of what a fetcher of
scikit-learn downloads, or of a published file (`_originals`), in scikit-learn's folder of data
(``sklearn.datasets.get_data_home``). Called as a script it makes all files that can be had, or
those that are named.
"""

import os
import sys
from http.client import HTTPException
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from sklearn import datasets

from benchmarks._originals import ORIGINALS, arrays_of

BESIDE = Path(__file__).resolve().parent.parent.parent / "shared" / "data"

# Data of OpenML by name and version, the rows to take, the shape, and the mean of all entries.
OPENML = {
    "mnist_test.npz": ("mnist_784", 1, slice(60_000, None), (10_000, 784), 33.79122),
    "vehicle.npz": ("vehicle", 1, slice(None), (846, 18), 117.63495),
    "sonar.npz": ("sonar", 1, slice(None), (208, 60), 0.2813213),
    "wine_red.npz": ("wine-quality-red", 1, slice(None), (1_599, 11), 8.134219),
    "wine_white.npz": ("wine-quality-white", 1, slice(None), (4_898, 11), 18.432687),
}
# What is published in a format that is not known here, and who has it.
ELSEWHERE = {"video_person.npz": "github.com/praneethmurthy/ReProCS as Data/Person.mat"}


class NotHadError(Exception):
    """Data that cannot be had here, with the reason."""


def path_of(name):
    """Path of a file of data, which is made if it must be, or a `NotHadError`."""
    if (BESIDE / name).exists():
        return BESIDE / name
    home = Path(datasets.get_data_home()) / "fedpca_benchmarks"
    if (home / name).exists():
        return home / name
    if name in ELSEWHERE:
        raise NotHadError(f"nothing here fetches it, it is of {ELSEWHERE[name]}")
    try:
        arrays = arrays_of(name, home) if name in ORIGINALS else _made(name)
    except (OSError, HTTPException, ValueError, ImportError) as error:
        raise NotHadError(f"it cannot be fetched: {' '.join(str(error).split())}") from error
    home.mkdir(parents=True, exist_ok=True)
    partial = home / f".{os.getpid()}.{name}"  # so that a crash leaves no half of a file
    if sp.issparse(arrays):
        sp.save_npz(partial, arrays)
    else:
        np.savez_compressed(partial, **arrays)
    partial.replace(home / name)
    return home / name


def _made(name):
    """What a file of data holds: arrays by name, or a sparse matrix."""
    if name == "newsgroups20_counts.npz":
        found = datasets.fetch_20newsgroups_vectorized(subset="all", normalize=False)
        counts = sp.csr_matrix(found.data, dtype=np.int32)
        print(f"{name}: 18,846 texts of scikit-learn; the page has figures of 19,997")
        return counts
    if name == "wine_redwhite.npz":
        red, white = _openml("wine_red.npz"), _openml("wine_white.npz")
        rows = len(red["X"]), len(white["X"])
        # both begin with quality 3, whatever OpenML calls it
        quality = [part["y"] - part["y"].min() + 3 for part in (red, white)]
        return {
            "X": np.concatenate([red["X"], white["X"]]),
            "y": np.concatenate(quality).astype(np.uint8),
            "colour": np.repeat(np.array([0, 1], np.uint8), rows),
        }
    return _openml(name)


def _openml(name):
    title, version, rows, shape, mean = OPENML[name]
    found = datasets.fetch_openml(title, version=version, as_frame=False, parser="auto")
    X = np.asarray(found.data)[rows].astype(np.float32)
    if X.shape != shape or not np.isclose(X.mean(dtype=np.float64), mean, rtol=1e-5):
        raise ValueError(
            f"{title} of OpenML is not what it was: shape {X.shape} and mean {X.mean():.7g}, "
            f"expected {shape} and {mean:.7g}."
        )
    target = np.asarray(found.target)[rows]
    try:
        y = target.astype(float).astype(int)
    except ValueError:  # names of classes
        y = np.unique(target.astype(str), return_inverse=True)[1]
    if name == "mnist_test.npz":
        X = X.astype(np.uint8)
    return {"X": X, "y": y.astype(np.int64)}


def main(names):
    """Make files of data; the exit code is 1 if one cannot be had."""
    code = 0
    composed = "wine_redwhite.npz", "newsgroups20_counts.npz"
    for name in names or [*OPENML, *composed, *ORIGINALS, *ELSEWHERE]:
        try:
            print(f"{name}: {path_of(name)}", flush=True)
        except NotHadError as error:
            code = 1
            print(f"{name}: {error}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
