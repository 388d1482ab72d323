"""Robust subspace tracking: moving objects, the size of the NORST demo, and a video.

d = 1,000, 3,000 rows, r = 30, 10 % missing, outliers in [10, 25] of either sign at 5 and 10 % of
the entries, by themselves or as a moving object. For orientation, the authors' own code on 4,800
rows with 5 % outliers, batches of 200: error of low rank 3.4e-3, no support errors, 21 s.

Then all rows at once: 400 x 300, rank 10, AlternatingProjections and the tracker beside principal
component pursuit by the inexact augmented Lagrange multiplier method (Lin, Chen, Ma 2010), written
here in numpy, and PCA, which knows of no outliers.
"""

from time import perf_counter

import numpy as np

from benchmarks._streams import PAPER
from benchmarks._tools import load, peak_bytes, picture, table
from fedpca_sklearn import (
    AlternatingProjections,
    OutlierSupport,
    RobustSubspaceTracker,
    StreamingPCA,
    make_subspace_stream,
    subspace_distance,
)

RANK, BATCH = 30, 60


def f1(found, true):
    return 2 * int((found & true).sum()) / max(1, int(found.sum() + true.sum()))


def streams(quick):
    shapes = {
        "5 %": {"delta": 0, "outliers": 0.05},
        "10 %": {"delta": 0, "outliers": 0.1},
        "5 % moving": {"delta": 0, "outliers": 0.05, "outlier_pattern": "moving"},
        "10 % moving": {"delta": 0, "outliers": 0.1, "outlier_pattern": "moving"},
        "5 %, piecewise": {"model": "piecewise", "outliers": 0.05},
        "5 %, walk": {"outliers": 0.05},
        "5 %, rotation": {"model": "rotation", "outliers": 0.05},
        "10 % moving, noise 0.01": {
            "delta": 0,
            "outliers": 0.1,
            "outlier_pattern": "moving",
            "noise_std": 0.01,
        },
    }
    for name in ("5 %", "10 % moving, noise 0.01") if quick else shapes:
        n = 1200 if quick else 3000
        yield name, BATCH, make_subspace_stream(n, 1000, RANK, random_state=0, **shapes[name])
    if quick:
        return
    options = {"delta": 0, "outliers": 0.05, "missing": 0, "noise_std": 1e-4}
    yield "demo", 200, make_subspace_stream(4800, 1000, RANK, random_state=0, **options)


def made(quick):
    rows, lines = [], {}
    for name, batch, stream in streams(quick):
        tracker = RobustSubspaceTracker(RANK, batch_size=batch, store_subspaces=True, **PAPER)
        before = perf_counter()
        tracker.fit(stream.X)
        seconds = perf_counter() - before
        true = stream.outliers & ~stream.missing
        found = tracker.outlier_mask_
        first = tracker._block_rows(1000)
        ends = first - 1 + batch * np.arange(len(tracker.subspaces_))
        lines[name] = [
            subspace_distance(V, stream.subspace_at(int(t)))
            for V, t in zip(tracker.subspaces_, ends, strict=True)
        ]
        last = slice(-500, None)
        low_rank, _ = tracker.decompose(stream.X[last])
        missed = np.linalg.norm(low_rank - stream.low_rank[last])
        cuts = range(0, len(true) - batch, batch)
        rows.append(
            {
                "outliers": name,
                "seconds": seconds,
                "F1": f1(found, true),
                "F1 of the worst batch": min(
                    f1(found[i : i + batch], true[i : i + batch]) for i in cuts
                ),
                "false": int((found & ~true).sum()),
                "missed": int((true & ~found).sum()),
                "first error": lines[name][0],
                "last error": lines[name][-1],
                "low rank, last 500": missed / float(np.linalg.norm(stream.low_rank[last])),
            }
        )
    table("robust_tracking", rows)

    def draw(ax):
        for name, line in lines.items():
            ax.semilogy(np.maximum(line, 1e-15), label=name)
        ax.set(xlabel="batch", ylabel="subspace error", title="RobustSubspaceTracker")
        ax.legend(fontsize=6)

    picture("robust_tracking", draw)


def pursuit(X, tol=1e-7):
    """Low-rank and sparse part by principal component pursuit."""
    weight, norm = 1 / np.sqrt(max(X.shape)), np.linalg.norm(X, 2)
    dual, mu = X / max(norm, np.abs(X).max() / weight), 1.25 / norm
    sparse, rest = np.zeros_like(X), X
    while np.linalg.norm(rest) > tol * np.linalg.norm(X):
        U, s, Vt = np.linalg.svd(X - sparse + dual / mu, full_matrices=False)
        low_rank = (U * np.maximum(s - 1 / mu, 0)) @ Vt
        target = X - low_rank + dual / mu
        sparse = np.sign(target) * np.maximum(np.abs(target) - weight / mu, 0)
        rest = X - low_rank - sparse
        dual, mu = dual + mu * rest, 1.5 * mu
    return low_rank, np.where(np.abs(sparse) > 1, sparse, 0.0)


def projections(X, **options):
    robust = AlternatingProjections(10, **options).fit(X)
    return robust.low_rank_, robust.sparse_


def plain(X):
    pca = StreamingPCA(10, center=False).fit(X)
    low_rank = pca.inverse_transform(pca.transform(X))
    return low_rank, np.where(np.abs(X - low_rank) > 5, X, 0.0)


def at_once(quick=False):
    """All rows at once, with and without missing entries, which the pursuit cannot take."""
    methods = {
        "AlternatingProjections": projections,
        "the same, tol=1e-7": lambda X: projections(X, tol=1e-7),
        "RobustSubspaceTracker": lambda X: (
            RobustSubspaceTracker(10, batch_size=40, **PAPER).fit(X).decompose(X)
        ),
        "pursuit, numpy": pursuit,
        "PCA": plain,
    }
    rows = []
    for outliers in (0.1,) if quick else (0.05, 0.1, 0.2, 0.3):
        for missing in (0.0, 0.1):
            stream = make_subspace_stream(
                400, 300, 10, delta=0, outliers=outliers, missing=missing, random_state=0
            )
            true = stream.outliers & ~stream.missing
            for name in list(methods)[: 3 if missing else None]:
                before = perf_counter()
                low_rank, sparse = methods[name](stream.X)
                seconds = perf_counter() - before
                missed = float(np.linalg.norm(low_rank - stream.low_rank))
                rows.append(
                    {
                        "outliers": outliers,
                        "missing": missing,
                        "method": name,
                        "seconds": seconds,
                        "F1": f1(sparse != 0, true),
                        "low rank": missed / float(np.linalg.norm(stream.low_rank)),
                    }
                )
    return rows


def memory(quick):
    rows = []
    for d in (1000, 4000) if quick else (1000, 4000, 16000):
        stream = make_subspace_stream(400, d, 10, delta=0, outliers=0.05, random_state=0)
        tracker = RobustSubspaceTracker(10, batch_size=40, **PAPER).fit(stream.X[:200])
        peak = peak_bytes(lambda t=tracker, X=stream.X[200:]: t.partial_fit(X))
        rows.append({"d": d, "peak MB": peak / 1e6, "over 8 d (m + k)": peak / (8 * d * 50)})
    table("robust_tracking_memory", rows)


def video():
    if (file := load("video_person.npz")) is None:
        return
    data = np.load(file)
    X, n = data["X"].astype(float), int(data["n_train"])
    before = perf_counter()
    tracker = RobustSubspaceTracker(
        2, forgetting_factor=1.0, fill="subspace", support_threshold=OutlierSupport(25.0)
    ).fit(X[:n])
    low_rank, sparse = tracker.decompose(X[n:])
    share = (sparse != 0).mean(axis=1)
    entered = int(data["first_outlier_frame"]) - n
    print(f"video: {perf_counter() - before:.1f} s; foreground {share[:entered].mean():.1%} of the")
    print(f"frames before the person enters, {share[entered + 3 :].mean():.1%} from the fourth on")
    shown = (40, 42, 44, 51)
    parts = (X[n:], low_rank, np.abs(sparse))
    tiles = [np.hstack([part[i].reshape(data["hw"]) for i in shown]) for part in parts]

    def draw(ax):
        ax.imshow(np.vstack(tiles), cmap="gray", vmin=0, vmax=255)
        ax.set_title("frames, background, foreground", fontsize=8)
        ax.axis("off")

    picture("robust_tracking_video", draw)


def main(quick=False):
    made(quick)
    print()
    table("robust_tracking_at_once", at_once(quick))
    print()
    memory(quick)
    video()
