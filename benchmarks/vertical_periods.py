"""Cheung et al., Fig. 6 and 7 as drawn: error and time by communication period.

3, 5 and 10 clients, or 5 with 5, 10 and 20 local iterations, 1 to 10 periods; "isolated": mean
of the clients by themselves. Error: sine of the angle to the leading component of all columns,
mean of three random starts; time: of the whole fit. "density": the synthetic columns of the
authors' code, values of a normal density at uniform points within three deviations: of deviation
1 ("single"), where columns are alike and independent and there is no leading component to find, or
of a random one for each column ("mixture"), where it is nearly the column of the least deviation.
"""

from time import perf_counter

import numpy as np

from benchmarks._tools import picture, table
from benchmarks.vertical import data, isolated, leading
from fedpca_sklearn import VerticalFederatedPCA, VFedPCA, subspace_distance

PERIODS = (1, 2, 3, 5, 10)


def density(pattern, d, n, rng):
    """Rows of the authors' synthetic data."""
    std = rng.uniform(0, d, d) if pattern == "mixture" else np.ones(d)
    z = rng.uniform(-3, 3, (n, d))
    return np.exp(-(z**2) / 2) / (np.sqrt(2 * np.pi) * std)


def after(X, truth, periods, p, iterations):
    errors, seconds = [], []
    for seed in range(3):
        method = VFedPCA(iterations, n_rounds=periods)
        pca = VerticalFederatedPCA(1, feature_groups=p, method=method, random_state=seed)
        before = perf_counter()
        pca.fit(X)
        seconds.append(perf_counter() - before)
        errors.append(subspace_distance(pca.components_, truth))
    return float(np.mean(errors)), min(seconds)


def main(quick=False):
    sets = list(data(True))
    rng = np.random.default_rng(0)
    for d, n in ((1000, 200),) if quick else ((1000, 200), (5000, 1000)):
        for pattern in ("single", "mixture"):
            sets.append((f"density, {pattern} {d} x {n}", density(pattern, d, n, rng)))
    rows, lines = [], {}
    for name, X in sets:
        truth = leading(X)
        first, second = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:2] ** 2
        for p, iterations in ((3, 20), (5, 20), (10, 20), (5, 5), (5, 10)):
            found = {k: after(X, truth, k, p, iterations) for k in PERIODS}
            alone = isolated(X, p, truth)
            if iterations == 20:
                lines[name, p] = [alone, *(found[k][0] for k in PERIODS)]
            rows.append(
                {
                    "data": name,
                    "p": p,
                    "l": iterations,
                    "isolated": alone,
                    **{f"period {k}": found[k][0] for k in PERIODS},
                    "ms, period 1": 1e3 * found[1][1],
                    "ms, period 10": 1e3 * found[10][1],
                    "second / first variance": float(second / first),
                }
            )
    table("vertical_periods", rows)
    moved = max(abs(row["period 10"] - row["period 2"]) for row in rows)
    print(f"Errors of periods 2 and 10 differ by at most {moved:.0e}.")
    fewer = [row for row in rows if row["period 1"] < row["isolated"]]
    print(f"One period is better than isolated in {len(fewer)} of {len(rows)} cases.")

    def draw(ax):
        fig = ax.figure
        ax.remove()
        shown = [name for name, _ in sets if name in ("college", "sonar") or "single" in name][:4]
        for panel, name in zip(fig.subplots(1, len(shown), sharey=True), shown, strict=True):
            for p in (3, 5, 10):
                panel.semilogy((0, *PERIODS), lines[name, p], "o-", ms=3, label=f"p = {p}")
            panel.set_title(name.replace(", ", ",\n"), fontsize=7)
            panel.set_xlabel("period", fontsize=8)
        fig.axes[0].set_ylabel("error")
        fig.axes[0].legend(fontsize=7)

    picture("vertical_periods", draw)
