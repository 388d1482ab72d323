"""Utility lost to privacy: q_A of Grammenos et al. for all mechanisms; MNIST and wine.

The first version of the paper has no privacy; q_A and these settings are those of the authors' code
for the last version (NeurIPS 2020), github.com/andylamp/federated_pca.

d = 20, n = 5,000, r = 5, singular values i^-alpha, delta = 0.05, 100 runs with fresh rows; q_A is
the absolute inner product of the first components with and without noise. As in the authors' code
the rows are divided by their largest norm, so that row_norm=1 is known; mean fixed at the origin.
"""

import math
import warnings

import numpy as np

from benchmarks._tools import load, picture, table
from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    FederatedPowerPCA,
    FedPowerNoise,
    ModSuLQ,
    PrivacyNoiseWarning,
    StreamingModSuLQ,
    StreamingPCA,
)

MECHANISMS = (AnalyzeGauss, ModSuLQ, StreamingModSuLQ, FedPowerNoise)
DELTA, D, N = 0.05, 20, 5000
# q_A of the authors' MATLAB code at epsilon = 1, 2, 4, the symmetric mode with all noise
AUTHORS = {
    ("StreamingModSuLQ", 1.0): (0.30, 0.79, 0.99),
    ("StreamingModSuLQ", 0.5): (0.26, 0.52, 0.96),
    ("ModSuLQ", 1.0): (0.44, 0.86, 0.97),
    ("ModSuLQ", 0.5): (0.33, 0.64, 0.92),
}
# Rows, features, clients and epsilon of fits that may have noise alone
WARNED = [(225, 31, 1, 0.3), (5000, 20, 1, 0.3), (5000, 20, 10, 1.5), (2000, 60, 1, 1.5)]
WARNED += [(2000, 60, 1, 0.3)]
# Public knowledge about wine: what a feature is divided by, and a usual one after that
WINE_SCALE = np.array([20, 2, 2, 70, 1, 300, 450, 2, 5, 2, 20])
WINE_USUAL = np.array([0.35, 0.15, 0.15, 0.1, 0.05, 0.1, 0.25, 0.5, 0.65, 0.25, 0.5])


def power_law(alpha, seed, n=N, d=D):
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    X = (rng.standard_normal((n, d)) * np.arange(1.0, d + 1) ** -alpha) @ basis
    return X / np.linalg.norm(X, axis=1).max()


def fitted(X, mechanism, rank, seed, **options):
    if isinstance(mechanism, FedPowerNoise):
        options["n_rounds"] = 3
        model = FederatedPowerPCA(rank, mechanism=mechanism, random_state=seed, **options)
    else:
        model = FederatedPCA(rank, mechanism=mechanism, random_state=seed, **options)
    return model.fit(X)


def utility(quick):
    runs = 10 if quick else 100
    grid = (0.1, 1.0, 4.0) if quick else (0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
    rows, lines, least = [], {}, math.inf
    for alpha in (0.01, 0.1, 0.5, 1.0):
        q = {(kind.__name__, e): [] for kind in MECHANISMS for e in grid}
        for run in range(runs):
            X = power_law(alpha, run)
            exact = np.linalg.eigh(X.T @ X)[1][:, -1]
            for kind in MECHANISMS:
                for e in grid:
                    private = fitted(X, kind(e, DELTA, 1.0, mean="fixed"), 5, run, n_clients=1)
                    q[kind.__name__, e].append(abs(float(private.components_[0] @ exact)))
        for kind in MECHANISMS:
            name = kind.__name__
            lines[name, alpha] = [float(np.mean(q[name, e])) for e in grid]
            means = {f"eps {e:g}": f"{np.mean(q[name, e]):.2f}" for e in grid}
            authors = AUTHORS.get((name, alpha))
            authors = "-" if authors is None else " ".join(f"{value:.2f}" for value in authors)
            rows.append({"alpha": alpha, "mechanism": name, **means, "authors 1 2 4": authors})
        for e in grid:
            gain = np.subtract(q["AnalyzeGauss", e], q["ModSuLQ", e])
            least = min(least, gain.mean())
    table("privacy", rows)
    verdict = "dominates" if least > 0 else "does not dominate"
    print(
        f"AnalyzeGauss {verdict} MOD-SuLQ at every epsilon and alpha: its mean q_A is larger by "
        f"{least:.2f} or more."
    )

    def draw(ax):
        for (name, alpha), line in lines.items():
            if alpha in (0.1, 1.0):
                ax.plot(grid, line, "o-" if alpha == 1 else "s--", label=f"{name}, {alpha:g}")
        ax.set(xlabel="epsilon", ylabel="q_A", title="d = 20, n = 5,000, delta = 0.05; by alpha")
        ax.legend(fontsize=6)

    picture("privacy", draw)


def published(kind, epsilon):
    """Published noise on M / n, for rows of norm 1 and the whole n."""
    cost = kind(epsilon, DELTA, 1.0, mean="fixed").costs(D, 1).product
    return math.sqrt(2 / cost) / N


def by_rows(X, epsilon, rng, size=50):
    """The streaming method as the authors run it: blocks of rows, with noise for all rows.

    Of each block's noisy second moment over ``size`` five vectors are stacked under the scaled ones
    before.
    """
    std, stack = published(StreamingModSuLQ, epsilon), np.empty((D, 0))
    for start in range(0, N, size):
        B = X[start : start + size]
        noisy = B.T @ B / size + std * rng.standard_normal((D, D))
        stack = np.hstack([stack, np.linalg.svd(noisy)[0][:, :5]])
        U, s, _ = np.linalg.svd(stack, full_matrices=False)
        stack = U[:, :5] * s[:5]
    return U[:, 0]


def batch(X, epsilon, rng, power=1.0, symmetric=True):
    """MOD-SuLQ with the published number to a power as the standard deviation."""
    G = rng.standard_normal((D, D))
    if symmetric:
        G = np.triu(G) + np.triu(G, 1).T
    return np.linalg.svd(X.T @ X / N + published(ModSuLQ, epsilon) ** power * G)[0][:, 0]


def readings(quick):
    """How the authors' figures come about."""
    methods = {
        "symmetric, beta is a standard deviation": ("ModSuLQ", batch),
        "symmetric, beta is a variance": ("ModSuLQ", lambda *a: batch(*a, power=0.5)),
        "not symmetric": (None, lambda *a: batch(*a, symmetric=False)),
        "streaming, 100 blocks of 50 rows": ("StreamingModSuLQ", by_rows),
    }
    rows = []
    for alpha in (1.0, 0.5):
        for method, (name, first) in methods.items():
            row = {"alpha": alpha, "method": method}
            for e in (1.0, 2.0, 4.0):
                q = []
                for run in range(10 if quick else 100):
                    X, rng = power_law(alpha, run), np.random.default_rng([run, 1])
                    exact = np.linalg.eigh(X.T @ X)[1][:, -1]
                    q.append(abs(first(X, e, rng) @ exact))
                row[f"eps {e:g}"] = f"{np.mean(q):.2f}"
            authors = " ".join(f"{value:.2f}" for value in AUTHORS.get((name, alpha), ())) or "-"
            rows.append({**row, "authors 1 2 4": authors})
    table("privacy_readings", rows)
    for e in (1.0, 4.0):
        mu2 = 2 / (50 * published(StreamingModSuLQ, e)) ** 2
        really = AnalyzeGauss(e, DELTA, 1.0).spent(mu2).epsilon
        print(f"50 rows with the noise for 5,000 at epsilon = {e:g} really spend {really:.2f}.")


def noise(quick):
    """How much more noise is published than the budget needs."""
    rows = []
    for d, delta in ((20, 0.05), (11, 0.1), (784, 0.1), (784, 1e-5)):
        for e in (0.1, 1.0, 4.0):
            row = {"d": d, "delta": delta, "epsilon": e}
            needed = AnalyzeGauss(e, delta, 1.0, mean="fixed").costs(d, 1).product
            for kind in (ModSuLQ, StreamingModSuLQ):
                mechanism = kind(e, delta, 1.0, mean="fixed")
                cost = mechanism.costs(d, 1).product
                row[f"{kind.__name__}: noise"] = math.sqrt(needed / cost)
                row[f"{kind.__name__}: really spends"] = mechanism.spent(cost).epsilon
            rows.append(row)
    table("privacy_noise", rows)


def by_trust(quick):
    rows = []
    for n_clients in (1, 10, 100):
        for trust in ("client", "sum"):
            row = {"clients": n_clients, "trust": trust}
            for kind in MECHANISMS:
                q = []
                for run in range(5 if quick else 50):
                    X = power_law(1.0, run)
                    mechanism = kind(1.0, DELTA, 1.0, mean="fixed", trust=trust)
                    model = fitted(X, mechanism, 5, run, n_clients=n_clients)
                    q.append(abs(model.components_[0] @ np.linalg.eigh(X.T @ X)[1][:, -1]))
                row[kind.__name__] = f"{np.mean(q):.2f}"
            rows.append(row)
    table("privacy_trust", rows)


def when_nothing_is_left(quick):
    """How often a fit warns of its release, or of some components; the overlap of the first."""
    rows = []
    for n, d, n_clients, epsilon in WARNED:
        q, release, components = [], 0, 0
        for run in range(5 if quick else 50):
            X = power_law(1.0, run, n, d)
            first = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][0]
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                mechanism = AnalyzeGauss(epsilon, 1e-5, 1.0)
                model = fitted(X, mechanism, 3, run, n_clients=n_clients)
            texts = [str(warning.message) for warning in caught]
            release += any(text.startswith("The release cannot be told") for text in texts)
            components += any(text.startswith("Component") for text in texts)
            q.append(abs(float(model.components_[0] @ first)))
        overlap = f"{np.mean(q):.2f} ({min(q):.2f} to {max(q):.2f})"
        row = {"rows": n, "features": d, "clients": n_clients, "epsilon": epsilon}
        row |= {"overlap": overlap, "warned of the release": f"{release / len(q):.0%}"}
        rows.append(row | {"of some components": f"{components / len(q):.0%}"})
    table("privacy_warned", rows)


def real_data(quick):
    sets = {}
    if path := load("mnist_test.npz"):
        sets["MNIST"] = np.load(path)["X"] / 255.0, None, 10.0
    if path := load("wine_redwhite.npz"):
        sets["wine"] = np.load(path)["X"] / WINE_SCALE, WINE_USUAL, 0.5
    rows = []
    for name, (X, center, row_norm) in sets.items():
        rank, runs = 6, 2 if quick else 10
        far = np.linalg.norm(X - (0 if center is None else center), axis=1) > row_norm
        exact = StreamingPCA(rank).fit(X)
        centred = X - exact.mean_
        best = np.sum((centred @ exact.components_.T) ** 2)
        for epsilon, delta in ((0.1, 0.1), (1.0, 1e-5)):
            for kind in MECHANISMS:
                q, share = [], []
                for seed in range(runs):
                    mechanism = kind(epsilon, delta, row_norm, center=center)
                    V = fitted(X, mechanism, rank, seed, n_clients=1).components_
                    q.append(abs(float(V[0] @ exact.components_[0])))
                    share.append(np.sum((centred @ V.T) ** 2) / best)
                rows.append(
                    {
                        "data": name,
                        "d": X.shape[1],
                        "clipped": f"{far.mean():.1%}",
                        "epsilon, delta": f"{epsilon:g}, {delta:g}",
                        "mechanism": kind.__name__,
                        "q_A": f"{np.mean(q):.2f}",
                        "variance kept by 6": f"{np.mean(share):.3f}",
                    }
                )
    if rows:
        table("privacy_data", rows)


def main(quick=False):
    warnings.simplefilter("ignore", PrivacyNoiseWarning)  # utility is what is measured
    for part in (utility, readings, noise, by_trust, when_nothing_is_left, real_data):
        part(quick)
        print()
