"""Streams, their trackers, and the recursions of the trackers as printed: one row at a time.

A forgetting factor is a number, or an array: that of each row on the weight of all before it.
"""

import numpy as np
import pytest
from golden_cases import made

from fedpca_sklearn import make_subspace_stream

# Trackers, and what they can: start from their first rows, take rows with holes, forget, keep the
# number of their components.
TABLE = """
FrequentDirections(3, sketch_size=9) | fixed
StreamingPowerMethod(3, block_size=40, random_state=0) | starts fixed
OjaPCA(3, random_state=0) | starts fixed
OjaPCA(3, learning_rate="adaptive", batch_size=16, random_state=0) | starts fixed
GROUSE(3, random_state=0) | starts holes fixed
GROUSE(3, step_size="greedy", random_state=0) | starts holes fixed
PAST(3, random_state=0) | starts fixed
PAST(3, deflation=True, random_state=0) | starts fixed
PAST(3, forgetting_factor=0.9, random_state=0) | starts forgets fixed
PAST(3, forgetting_factor=0.9, deflation=True, random_state=0) | starts forgets fixed
SPIRIT(3, lower=0.3, upper=0.9999, forgetting_factor=1.0) |
SPIRIT(3, lower=0.3, upper=0.9999, forgetting_factor=0.9) | forgets
PETRELS(3, random_state=0) | starts holes fixed
PETRELS(3, forgetting_factor=0.9, random_state=0) | starts holes forgets fixed
"""
ROWS = [line.split(" |") for line in TABLE.strip().splitlines()]


def trackers(word=""):
    """Parametrize by the trackers that can this."""
    codes = [code for code, words in ROWS if word in words]
    return pytest.mark.parametrize("model", [*map(made, codes)], ids=codes)


def fed(model, X, sizes=(5, 32, 1, 100, 33, 64), **more):
    """A model after rows in batches of changing sizes; ``more`` are arrays beside the rows."""
    start = i = 0
    while start < len(X):
        part = slice(start, start + sizes[i % len(sizes)])
        model.partial_fit(X[part], **{name: values[part] for name, values in more.items()})
        start, i = part.stop, i + 1
    return model


def fading(n, f):
    """Weights of n rows, the last of which is new."""
    return f ** np.arange(n - 1.0, -1, -1)


def planted(n, d=20, k=3, noise=0.1, seed=0, mean=0.0):
    """Rows of a strong random k-dimensional subspace, and an orthonormal basis of it."""
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((d, k)))[0].T
    X = rng.standard_normal((n, k)) * np.linspace(4, 2, k) @ V
    return X + noise * rng.standard_normal((n, d)) + mean * rng.standard_normal(d), V


def constant_stream(n=600, d=120, k=5, outliers=0.05, seed=0, **options):
    """Rows of one subspace, where their outliers can be seen, and the rows without them."""
    options = {"delta": 0, "outliers": outliers, "random_state": seed, **options}
    stream = make_subspace_stream(n, d, k, **options)
    stream.visible = stream.outliers & ~stream.missing
    stream.V = stream.subspace_at(0)
    stream.clean = np.where(stream.visible, np.nan, stream.X)
    return stream


def first_basis(d, k, seed=0):
    """The basis that a tracker starts from: of d x k normal numbers."""
    return np.linalg.qr(np.random.RandomState(seed).standard_normal((d, k)))[0].T


def with_factors(X, f):
    """Each row with its factor."""
    return zip(X, np.broadcast_to(f, len(X)), strict=True)


def centred_row_by_row(X, f=1.0):
    """Welford's recursion with fading rows: the rows that a centred tracker is to see."""
    mean, weight, Z = np.zeros(X.shape[1]), 0.0, []
    for x, now in with_factors(X, f):
        weight *= now
        Z.append(np.sqrt(weight / (weight + 1)) * (x - mean))
        weight += 1
        mean = mean + (x - mean) / weight
    return np.array(Z)


def seen_by_the_rule(X, center, f=1.0):
    """Rows that a rule works on: a first row has no mean before it, and no weight."""
    return centred_row_by_row(X, f)[1:] if center else X


def begun(X, f):
    """Rows from the first that is not zero, with their factors, and the power of an entry."""
    start = int(X.any(axis=1).argmax())
    X, f = X[start:], np.broadcast_to(f, len(X))[start:]
    return zip(X, f, strict=True), np.nanmean(X[:32] ** 2)


def past(X, V, f):
    """Yang 1995, Table I."""
    rows, power = begun(X, f)
    W, P = V.T.copy(), np.eye(len(V)) / power
    for x, now in rows:
        y = W.T @ x
        h = P @ y
        g = h / (now + y @ h)
        P = (P - np.outer(g, h)) / now
        P = np.triu(P) + np.triu(P, 1).T
        W = W + np.outer(x - W @ y, g)
    return W.T


def pastd(X, V, f):
    """Yang 1995, Table II."""
    rows, power = begun(X, f)
    W, powers = V.copy(), np.full(len(V), power)
    for x, now in rows:
        for i in range(len(W)):
            y = W[i] @ x
            powers[i] = now * powers[i] + y**2
            W[i] = W[i] + (x - W[i] * y) * y / powers[i]
            x = x - W[i] * y
    return W


def petrels(X, V, f, delta=1e-2):
    """Chi et al. 2013 by its normal equations: no recursion for an inverse.

    Returns the loadings, the covariance of the coordinates of each feature and the right sides.
    """
    U = V.T.copy()
    d, k = U.shape
    rows, power = begun(X, f)
    R = np.repeat(delta * power * np.eye(k)[None], d, axis=0)
    right = delta * power * U
    for x, now in rows:
        R, right = now * R, now * right
        there = ~np.isnan(x)
        if there.sum() <= k:
            continue
        a = np.linalg.pinv(U[there]) @ x[there]
        R[there] += np.outer(a, a)
        right[there] += np.outer(x[there], a)
        for j in np.flatnonzero(there):
            U[j] = np.linalg.solve(R[j], right[j])
    return U, R, right


def spirit(X, k, lower, upper, forgetting_factor=0.96, hold_off=10):
    """Papadimitriou et al. 2005, TrackW and SPIRIT, with a QR factorisation after each row.

    Components start as the axes along which their row leaves most.
    """
    d = X.shape[1]
    first = X[X.any(axis=1)][0]
    W = [np.eye(d)[i] for i in np.argsort(-np.abs(first), kind="stable")[:k]]
    powers = [0.01 * (first @ first) / np.sum(first != 0)] * k
    held = energy = weight = 0.0
    history, changed = [], 0
    for t, (x, f) in enumerate(with_factors(X, forgetting_factor), 1):
        rest = x
        for i in range(len(W) if x.any() else 0):
            y = W[i] @ rest
            powers[i] = f * powers[i] + y**2
            W[i] = W[i] + y * (rest - y * W[i]) / powers[i]
            rest = rest - y * W[i]
        Q, R = np.linalg.qr(np.array(W).T)
        W = list((Q * np.sign(np.diag(R))).T)
        held = f * held + sum((w @ x) ** 2 for w in W)
        energy, weight = f * energy + x @ x, f * weight + 1
        if t - changed > hold_off:
            if held < lower * energy and len(W) < d:
                new = np.eye(d)[np.argmax(np.abs(x - sum((w @ x) * w for w in W)))]
                new = new - sum((w @ new) * w for w in W)
                W.append(new / np.linalg.norm(new))
                powers.append(0.01 * energy / weight / np.sum(x != 0))
                changed = t
            elif held > upper * energy and len(W) > 1:
                W, powers, changed = W[:-1], powers[:-1], t
        history.append(len(W))
    return np.array(W), history, held / energy
