"""Rows per second of the trackers, beside plain numpy loops over the rows of the same algorithms.

4,000 rows of 400 features (and motes_light, 7,712 x 48), ten components, one call of fit. "Naive"
loops take one row at a time, as the papers print their algorithms; "in blocks" are loops in numpy
with the same blocks as the library, where the algorithm allows blocks. Parameters and starts are
those of the papers, and the defaults of this library beside them.
"""

import numpy as np

from benchmarks._tools import interleaved, load, table
from fedpca_sklearn import (
    GROUSE,
    PAST,
    PETRELS,
    SPIRIT,
    ContributionBounds,
    FrequentDirections,
    OjaPCA,
    StreamingPCA,
    StreamingPowerMethod,
    make_power_law,
)

RANK = 10


def start(d):
    return np.linalg.qr(np.random.default_rng(0).standard_normal((d, RANK)))[0]


def loop_frequent_directions(X):
    size = 2 * RANK
    B, used = np.zeros((size, X.shape[1])), 0
    for x in X:
        if used == size:  # Liberty's Algorithm 1: make room, one row at least
            _, s, Vt = np.linalg.svd(B, full_matrices=False)
            B = np.sqrt(np.maximum(s**2 - s[-1] ** 2, 0))[:, None] * Vt
            used = size - 1
        B[used] = x
        used += 1
    return B


def blocks_frequent_directions(X):
    size = 2 * RANK
    B = np.zeros((0, X.shape[1]))
    for start in range(0, len(X), size):
        _, s, Vt = np.linalg.svd(np.concatenate([B, X[start : start + size]]), full_matrices=False)
        low = s[size - 1] ** 2 if len(s) > size else 0.0
        B = (np.sqrt(np.maximum(s**2 - low, 0))[:, None] * Vt)[:size]
    return B


def loop_power(X):
    d = X.shape[1]
    Q, S = start(d), np.zeros((d, RANK))
    for i, x in enumerate(X, 1):
        S += np.outer(x, x @ Q)
        if i % d == 0:
            Q, S = np.linalg.qr(S)[0], np.zeros((d, RANK))
    return Q


def blocks_power(X):
    d = X.shape[1]
    Q = start(d)
    for at in range(0, len(X), d):
        rows = X[at : at + d]
        S = rows.T @ (rows @ Q)
        if len(rows) == d:
            Q = np.linalg.qr(S)[0]
    return Q


def blocks_oja(X):
    Q, b = start(X.shape[1]), np.full(RANK, 1e-5)
    for at in range(0, len(X), 32):
        rows = X[at : at + 32]
        G = rows.T @ (rows @ Q) / len(rows)
        b = np.sqrt(b**2 + (G**2).sum(axis=0))
        Q = np.linalg.qr(Q + G / b)[0]
    return Q


def loop_oja(X):
    Q, b = start(X.shape[1]), np.full(RANK, 1e-5)
    for x in X:
        G = np.outer(x, x @ Q)
        b = np.sqrt(b**2 + (G**2).sum(axis=0))
        Q = np.linalg.qr(Q + G / b)[0]
    return Q


def loop_grouse(X):
    U = start(X.shape[1])
    for x in X:
        w = U.T @ x
        p = U @ w
        r = x - p
        np_, nr = np.linalg.norm(p), np.linalg.norm(r)
        t = np.arctan2(nr, np_)
        U += np.outer((np.cos(t) - 1) * p / np_ + np.sin(t) * r / nr, w / np_)
    return U


def loop_past(X):
    W, P = start(X.shape[1]), np.eye(RANK)
    for x in X:
        y = W.T @ x
        h = P @ y
        g = h / (0.99 + y @ h)
        P = (P - np.outer(g, h)) / 0.99
        W += np.outer(x - W @ y, g)
    return W


def loop_petrels(X):
    d = X.shape[1]
    U, P = start(d), np.repeat(np.eye(RANK)[None], d, axis=0)
    for x in X:
        a = np.linalg.lstsq(U, x, rcond=None)[0]
        h = P @ a / 0.98
        g = h / (1 + h @ a)[:, None]
        U += (x - U @ a)[:, None] * g
        P = P / 0.98 - g[:, :, None] * h[:, None, :]
    return U


def loop_spirit(X):
    d, k = X.shape[1], 1
    W, power, held, energy = np.eye(d), np.full(d, 1e-2), 0.0, 0.0
    last = 0
    for t, row in enumerate(X):
        x = row.copy()
        for i in range(k):
            w = W[:, i]
            y = w @ x
            power[i] = 0.96 * power[i] + y**2
            w += y / power[i] * (x - y * w)
            x -= y * w
        W[:, :k] = np.linalg.qr(W[:, :k])[0]
        y = row @ W[:, :k]
        held, energy = 0.96 * held + y @ y, 0.96 * energy + row @ row
        if t - last > 10 and held < 0.95 * energy and k < d:
            k, last = k + 1, t
        elif t - last > 10 and held > 0.98 * energy and k > 1:
            k, last = k - 1, t
    return W[:, :k]


PAPER = {"center": False, "init": "random", "random_state": 0}
METHODS = {
    "StreamingPCA": lambda: StreamingPCA(RANK),
    "SAPCA": lambda: StreamingPCA(RANK, rank_rule=ContributionBounds(), oversampling=0),
    "FrequentDirections": lambda: FrequentDirections(RANK, center=False),
    "StreamingPowerMethod": lambda: StreamingPowerMethod(RANK, block_size=400, **PAPER),
    "OjaPCA": lambda: OjaPCA(RANK, learning_rate="adaptive", batch_size=32, **PAPER),
    "OjaPCA(batch_size=1)": lambda: OjaPCA(RANK, learning_rate="adaptive", batch_size=1, **PAPER),
    "GROUSE": lambda: GROUSE(RANK, step_size="greedy", **PAPER),
    "PAST": lambda: PAST(RANK, forgetting_factor=0.99, **PAPER),
    "PETRELS": lambda: PETRELS(RANK, forgetting_factor=0.98, **PAPER),
    "SPIRIT": lambda: SPIRIT(center=False),
    "StreamingPowerMethod, default": lambda: StreamingPowerMethod(RANK),
    "OjaPCA, default": lambda: OjaPCA(RANK),
    "GROUSE, default": lambda: GROUSE(RANK),
    "PAST, default": lambda: PAST(RANK),
    "PETRELS, default": lambda: PETRELS(RANK),
}
NAIVE = {
    "FrequentDirections": loop_frequent_directions,
    "StreamingPowerMethod": loop_power,
    "OjaPCA": loop_oja,
    "OjaPCA(batch_size=1)": loop_oja,
    "GROUSE": loop_grouse,
    "PAST": loop_past,
    "PETRELS": loop_petrels,
    "SPIRIT": loop_spirit,
}
IN_BLOCKS = {
    "FrequentDirections": blocks_frequent_directions,
    "StreamingPowerMethod": blocks_power,
    "OjaPCA": blocks_oja,
}


def main(quick=False):
    data = {"synth1": make_power_law(4000, 400, alpha=1.0, random_state=0)}
    if not quick:
        data["synth1 wide"] = make_power_law(2000, 4000, alpha=1.0, random_state=0)
    path = load("motes_light.npz")
    if path is not None:
        data["light"] = np.load(path)["X"].astype(np.float64)
    rows = []
    for name, X in data.items():
        X = X - X.mean(axis=0)
        calls = {method: lambda new=new, X=X: new().fit(X) for method, new in METHODS.items()}
        for kind, loops in ("naive", NAIVE), ("in blocks", IN_BLOCKS):
            for method, loop in loops.items():
                calls[method, kind] = lambda loop=loop, X=X: loop(X)
        seconds, _ = interleaved(calls, repeats=1 if quick else 3)
        for method in METHODS:
            time = seconds[method][0]
            over = {
                f"over {kind}": seconds[method, kind][0] / time if (method, kind) in seconds else ""
                for kind in ("naive", "in blocks")
            }
            rows.append(
                {
                    "data": name,
                    "method": method,
                    "rows a second": len(X) / time,
                    **over,
                    "StreamingPCA over it": time / seconds["StreamingPCA"][0],
                }
            )
    table("tracker_speed", rows)
