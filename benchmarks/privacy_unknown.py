"""Privacy without knowing the rows: private norm and centre beside the best that can be chosen.

Twenty problems, ten that no default was chosen on, five of many rows, and five of few rows with far
means, at epsilon 0.5, 1 and 4, delta = 1e-5, one client. Errors are sines of the largest angle
between the private components and those of PCA of the rows, means over runs. "best": the mean of
all rows as public centre, and of 21 norms the one with the least error, found with full knowledge;
"at the budget left": the same with the budget less what the private searches cost;
"off by 2": the worse of twice and half that norm; "guess": about the origin, with twice the 99 %
quantile of the norms, as somebody may guess who knows the rows a little. "private":
row_norm="private" and center="private", of which nothing is known. "by sums": FederatedScaler with
one private scale for a fifth of the budget, and then the norm sqrt(d), as where clients share a
norm. Ratios are over the best.
"""

import math
import warnings

import numpy as np

from benchmarks._privacy_problems import FAR, HELD_OUT, MANY, PROBLEMS, rows_of
from benchmarks._tools import table
from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    FederatedScaler,
    ScalerNoise,
    subspace_distance,
)
from fedpca_sklearn.privacy import PrivacyBoundWarning, PrivacyNoiseWarning
from fedpca_sklearn.privacy._gaussian import epsilon_of, mu_of
from fedpca_sklearn.privacy._rows import ClippedRows, row_norms

DELTA, EPSILONS = 1e-5, (0.5, 1.0, 4.0)
HOPELESS = 0.7  # where even the best error is above this, ratios say nothing


class Moments:
    """What mechanisms ask of clipped rows, computed once for many runs."""

    def __init__(self, X, center, row_norm):
        rows = ClippedRows.of(X, center, row_norm)
        self._products, self._sum = rows.products(slice(0, X.shape[1])), rows.sum()

    def products(self, columns):
        """Columns of the second moment."""
        return self._products[:, columns].copy()

    def sum(self):
        """Sum of the rows."""
        return self._sum


def error(mechanism, X, V, moments, runs):
    """Mean error of a mechanism with a public norm and centre."""
    n, d = X.shape
    terms = mechanism.terms(X, mechanism.costs(d, 1))
    found = []
    for run in range(runs):
        rng = np.random.default_rng(run)
        total = mechanism.noisy_sum(moments, terms, rng)
        M = mechanism.noisy_columns(moments, slice(0, d), terms, rng)
        summary = mechanism.summary(iter([M]), total, n, terms, len(V), np.float64)
        found.append(distance(summary.components, V))
    return float(np.mean(found))


def distance(components, V):
    """Sine of the largest angle; 1 if the release has fewer directions than are asked for."""
    return subspace_distance(components, V) if len(components) == len(V) else 1.0


def searched(X, V, epsilon, runs):
    """Mean error with nothing known, and mu^2 of the searches."""
    private = AnalyzeGauss(epsilon, DELTA, row_norm="private", center="private")
    found = []
    for run in range(runs):
        model = FederatedPCA(len(V), mechanism=private, n_clients=1, random_state=run)
        found.append(distance(model.fit(X).components_, V))
    return float(np.mean(found)), private._searches_of(*X.shape)


def by_sums(X, V, epsilon, runs):
    """Mean error behind one private scale for all columns, with the same budget in all."""
    mu, d, found = mu_of(epsilon, DELTA), X.shape[1], []
    first, second = (epsilon_of(mu * math.sqrt(share), DELTA) for share in (0.2, 0.8))
    scales = ScalerNoise(first, DELTA, one_scale=True)
    mechanism = AnalyzeGauss(second, DELTA, math.sqrt(d), center=0.0, mean_share=0.08)
    for run in range(runs):
        options = {"n_clients": 1, "random_state": run}
        Z = FederatedScaler(mechanism=scales, **options).fit_transform(X)
        model = FederatedPCA(len(V), mechanism=mechanism, **options).fit(Z)
        found.append(distance(model.components_, V))
    return float(np.mean(found))


def compared(name, quick):
    """Rows of the table for one problem; none without its data."""
    made = rows_of(name)
    if made is None:
        return []
    X, k = made
    n, d = X.shape
    runs = 3 if quick or d > 300 else 8
    mean = X.mean(axis=0)
    Y = X - mean
    V = np.linalg.eigh(Y.T @ Y)[1][:, : -k - 1 : -1].T
    usual = float(np.quantile(row_norms(X, mean), 0.95))
    steps = np.arange(-4, 2.1, 1.0 if quick else 0.3)
    norms = usual * 2.0**steps
    moments = [Moments(X, mean, R) for R in norms]
    guess = 2 * float(np.quantile(row_norms(X, None), 0.99))
    of_guess, rows = Moments(X, None, guess), []
    for epsilon in EPSILONS:
        errors = [
            error(AnalyzeGauss(epsilon, DELTA, R, center=mean), X, V, M, runs)
            for R, M in zip(norms, moments, strict=True)
        ]
        best = int(np.argmin(errors))
        R = norms[best]
        off = [Moments(X, mean, factor * R) for factor in (2, 0.5)]
        off_by_two = max(
            error(AnalyzeGauss(epsilon, DELTA, f * R, center=mean), X, V, M, runs)
            for f, M in zip((2, 0.5), off, strict=True)
        )
        private, spent = searched(X, V, epsilon, runs)
        mu = math.sqrt(AnalyzeGauss(epsilon, DELTA, 1.0).budget() - spent)
        of_left = AnalyzeGauss(epsilon_of(mu, DELTA), DELTA, R, center=mean)
        left = error(of_left, X, V, moments[best], runs)
        guessed = error(AnalyzeGauss(epsilon, DELTA, guess), X, V, of_guess, runs)
        rows.append(
            {
                "problem": name,
                "n": n,
                "d": d,
                "k": k,
                "epsilon": epsilon,
                "norm / 95 %": f"{R / usual:.2f}",
                "best": errors[best],
                "off by 2": off_by_two,
                "guess": guessed,
                "private": private,
                "by sums": by_sums(X, V, epsilon, runs),
                "ratio": private / errors[best],
                "budget left": private / left,
            }
        )
    return rows


def main(quick=False):
    for kind in (PrivacyNoiseWarning, PrivacyBoundWarning):
        warnings.simplefilter("ignore", kind)
    counted("privacy_unknown", PROBLEMS, quick)
    counted("privacy_unknown_held_out", HELD_OUT, quick)
    counted("privacy_unknown_many_rows", MANY, quick)
    counted("privacy_unknown_far_means", FAR, quick)


def counted(title, problems, quick):
    """Print a table of problems, and how many are within the bounds."""
    rows = [row for name in problems for row in compared(name, quick)]
    table(title, rows)
    kept = [row for row in rows if row["best"] < HOPELESS]
    for column, bound in (("ratio", 1.25), ("budget left", 1.1)):
        values = [row[column] for row in kept]
        within = sum(value <= bound for value in values)
        mean = math.exp(np.mean(np.log(values)))
        print(
            f"{column}: at most {bound} in {within} of {len(values)}; geometric mean {mean:.2f}, "
            f"largest {max(values):.2f}"
        )
    values = [row["by sums"] / row["best"] for row in kept]
    mean = math.exp(np.mean(np.log(values)))
    print(f"by sums: geometric mean {mean:.2f}, largest {max(values):.2f}")
    for column in ("off by 2", "guess"):
        worse = sum(row["private"] > row[column] for row in kept)
        print(f"private is worse than {column!r} in {worse} of {len(kept)}")
