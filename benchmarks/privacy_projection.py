"""Grammenos et al., MNIST and wine on two private components, with rows in and out of range.

Rank 6, epsilon = delta = 0.1, one client, about the origin, as in the authors' script. "kept":
squared cosine of the larger angle between the plane of the first two components and that without
noise, mean of five runs; 1 is the same plane up to a rotation, which is the paper's claim.

"in range": pixels over 255 and wine over public ranges, rows clipped to row_norm, so that the
budget holds. "raw": the noise of the mechanism for rows of norm 1 on rows that are longer, as in
the authors' script, whose wine file has the measured values; "spends" is the epsilon that this
really costs at the same delta.
"""

import math
import warnings

import numpy as np

from benchmarks._tools import load, picture, table
from benchmarks.privacy import MECHANISMS, WINE_SCALE, fitted
from fedpca_sklearn import AnalyzeGauss, ModSuLQ, PrivacyNoiseWarning, StreamingModSuLQ

EPSILON = DELTA = 0.1
RANK = 6


def plane(M):
    """Leading two left singular vectors, as rows."""
    return np.linalg.svd(M)[0][:, :2].T


def kept(V, exact):
    return float(np.linalg.svd(V[:2] @ exact.T, compute_uv=False)[1] ** 2)


def raw(kind, X, seed):
    """Components of M / n with the noise for rows of norm 1, and the epsilon that it costs."""
    n, d = X.shape
    mechanism = kind(EPSILON, DELTA, 1.0, mean="fixed")
    cost = mechanism.costs(d, 1).product
    noise = np.random.default_rng(seed).standard_normal((d, d)) * math.sqrt(2 / cost) / n
    if kind is ModSuLQ:
        noise = np.triu(noise) + np.triu(noise, 1).T
    largest = np.linalg.norm(X, axis=1).max()
    spent = mechanism.spent(cost * largest**4).epsilon
    return plane(X.T @ X / n + noise), spent


def data():
    if path := load("mnist_test.npz"):
        file = np.load(path)
        yield "MNIST", file["X"].astype(float), 255.0, 10.0, file["y"]
    if path := load("wine_redwhite.npz"):
        file = np.load(path)
        yield "wine", file["X"].astype(float), WINE_SCALE, 1.5, file["y"]


def main(quick=False):
    warnings.simplefilter("ignore", PrivacyNoiseWarning)  # utility is what is measured
    rows, panels = [], []
    for name, X, scale, row_norm, y in data():
        Z = X / scale
        clipped = float((np.linalg.norm(Z, axis=1) > row_norm).mean())
        exact = plane(Z.T @ Z)
        shown = np.random.default_rng(0).permutation(len(Z))[:1500]
        panels.append((f"{name}: PCA", Z[shown] @ exact.T, y[shown]))
        for kind in MECHANISMS:
            found = [
                fitted(
                    Z,
                    kind(EPSILON, DELTA, row_norm, mean="fixed"),
                    RANK,
                    seed,
                    n_clients=1,
                    **({"center": False} if kind.__name__ == "FedPowerNoise" else {}),
                ).components_[:2]
                for seed in range(2 if quick else 5)
            ]
            if kind.__name__ != "FedPowerNoise":
                panels.append((kind.__name__, Z[shown] @ found[0].T, y[shown]))
            shares = [kept(V, exact) for V in found]
            rows.append(
                {
                    "data": name,
                    "rows": "in range",
                    "clipped": f"{clipped:.1%}",
                    "mechanism": kind.__name__,
                    "kept": float(np.mean(shares)),
                    "spends": EPSILON,
                }
            )
        for kind in (ModSuLQ, StreamingModSuLQ):
            exact = plane(X.T @ X)
            found = [raw(kind, X, seed) for seed in range(2 if quick else 5)]
            rows.append(
                {
                    "data": name,
                    "rows": "raw",
                    "clipped": "0",
                    "mechanism": kind.__name__,
                    "kept": float(np.mean([kept(V, exact) for V, _ in found])),
                    "spends": found[0][1],
                }
            )
    if not rows:
        return
    table("privacy_projection", rows)
    for kind in (AnalyzeGauss, ModSuLQ, StreamingModSuLQ):
        some = [r for r in rows if r["mechanism"] == kind.__name__ and r["rows"] == "in range"]
        found = ", ".join(f"{row['kept']:.2g} on {row['data']}" for row in some)
        print(f"{kind.__name__} keeps the plane of PCA to {found}.")

    def draw(ax):
        fig = ax.figure
        ax.remove()
        for panel, (title, points, y) in zip(
            fig.subplots(len(panels) // 4, 4).flat, panels, strict=True
        ):
            panel.scatter(*points.T, c=y, s=1, cmap="tab10", rasterized=True)
            panel.set_title(title, fontsize=7)
            panel.set(xticks=[], yticks=[])

    picture("privacy_projection", draw)
