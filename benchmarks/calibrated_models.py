"""What models claim by default on rows that nobody tuned on, beside the simple thing.

- forgetting: `SubspaceTracker` by default and without forgetting, `StreamingPCA`; squared residuals
  of each batch of 40 rows beyond the model before it, over the least of the three, and of all rows
  by the last model over those of PCA. Light sensors, digits, wine, and generators: sensors by day
  and night, heavy tails, a change, a turn to and fro, a slow rotation, bursts.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from benchmarks._tools import load, table
from fedpca_sklearn import StreamingPCA, SubspaceTracker

BATCH = 40


# ------------------------------------------------------------------------------------- forgetting


def days(n, period, seed, d=30, k=12):
    """Sensors that see nothing at night, of more directions by day than are tracked."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((k, d)) * np.geomspace(5, 0.5, k)[:, None]
    Z = rng.standard_normal((n, k))
    for i in range(1, n):
        Z[i] = 0.95 * Z[i - 1] + 0.3 * Z[i]
    light = np.maximum(np.sin(2 * np.pi * np.arange(n) / period), 0)[:, None]
    return (Z + 1) * light ** np.linspace(1, 4, k) @ A + 0.05 * rng.standard_normal((n, d))


def of_subspaces(n, seed, kind, d=40, k=5):
    """Rows near subspaces that change as the kind says, with noise."""
    rng = np.random.default_rng(seed)
    A, B = (rng.standard_normal((k, d)) * np.array([[5, 4, 3, 2, 1.5]]).T for _ in range(2))
    t, scores = np.arange(n), rng.standard_normal((n, k))
    if kind == "heavy tails":
        return rng.standard_t(3, (n, k)) @ A + 0.3 * rng.standard_t(3, (n, d))
    if kind == "bursts":
        X = 0.05 * scores @ A
        for at in rng.integers(0, n - 30, n // 200):
            X[at : at + 30] += 5 * rng.standard_normal((30, 1)) @ rng.standard_normal((1, d))
        return X + 0.02 * rng.standard_normal((n, d))
    turn = {
        "one subspace": np.zeros(n),
        "a change": (t >= n // 2) * np.pi / 2,
        "to and fro": (t // 400 % 2) * np.pi / 2,
        "a slow rotation": 3 * np.pi * t / n,
    }[kind][:, None]
    X = np.cos(turn) * (scores @ A) + np.sin(turn) * (scores @ B)
    return X + 0.3 * rng.standard_normal((n, d))


def streams(quick):
    """Rows in order, by name."""
    n = 1200 if quick else 4000
    data = {"digits": load_digits().data.astype(np.float64)}
    for name in ("motes_light.npz", "wine_redwhite.npz"):
        path = load(name)
        if path is not None:
            X = np.load(path)["X"].astype(np.float64)
            data[name.partition(".")[0]] = X[:n] if quick else X
    for period in (200, 400, 800):
        data[f"days of {period} rows"] = days(n, period, seed=period)
    for kind in ("one subspace", "heavy tails", "a change", "to and fro", "a slow rotation"):
        data[kind] = of_subspaces(n, 3, kind)
    data["bursts"] = of_subspaces(n, 3, "bursts")
    return data


def loss(model, Y):
    """Squared residuals of rows beyond a model."""
    Z = Y - model.mean_
    return float(np.sum((Z - Z @ model.components_.T @ model.components_) ** 2))


def losses(model, X):
    """Of each batch by the model before it, and of all rows by the last one."""
    ahead = 0.0
    for at in range(0, len(X), BATCH):
        if at >= 3 * BATCH:
            ahead += loss(model, X[at : at + BATCH])
        model.partial_fit(X[at : at + BATCH])
    return ahead, loss(model, X)


def forgetting(quick):
    for name, X in streams(quick).items():
        k = 5 if X.shape[1] > 20 else 3
        models = {
            "by default": SubspaceTracker(k),
            "all count": SubspaceTracker(k, forgetting_factor=1.0),
            "StreamingPCA": StreamingPCA(k),
        }
        found = {label: losses(model, X) for label, model in models.items()}
        least = min(ahead for ahead, _ in found.values())
        best = loss(PCA(k).fit(X), X)
        yield {
            "rows": name,
            **{f"next, {label}": ahead / least for label, (ahead, _) in found.items()},
            **{f"all, {label}": after / best for label, (_, after) in found.items()},
        }


def main(quick=False):
    for section in (forgetting,):
        print(f"\n{section.__name__}")
        table(f"calibrated_{section.__name__}", list(section(quick)))
