"""How sure components are: how often intervals from sites have the population's value.

Ten sites with 200 rows of d = 50 features, three components, 95 %. "normal" and "skewed" rows
(exponential along each direction) are alike at all sites; at "unlike" sites, the same ten in every
repetition, means and variances differ. For each method the share of repetitions in which the
interval has the population's variance, of the component where it is least often so and of that
where it is most often so, and in which the population's subspace is within the bound on the sine;
then the means of the width over the variance and of that bound.

"jackknife, sites": `jackknife_intervals` of ten summaries; "blocks": of five of each site. Beside
them what one may do instead: the "normal theory" of sample variances and of the largest tangent, by
simulation, both with the sample's values for the population's; and the percentiles of a Poisson
"bootstrap" over sites, or over blocks, with the sine to the sample's subspace.
"""

import numpy as np

from benchmarks._tools import table
from benchmarks.how_many import drawn
from fedpca_sklearn import Subspace, jackknife_intervals, subspace_distance

D, K, SITES, ROWS, BLOCKS = 50, 3, 10, 200, 5
SPIKES = (9.0, 5.0, 3.0)
LEVEL, DRAWS = 0.95, 99


class Alike:
    """Sites with rows of one population."""

    def __init__(self, kind):
        self.kind = kind

    def draw(self, rng):
        """Rows of each site, with the variances and the directions of the population."""
        X, V = drawn(rng, SPIKES, self.kind, SITES * ROWS, D)
        return X.reshape(SITES, ROWS, D), 1 + np.array(SPIKES), V[:K]


class Unlike:
    """The same ten sites in every repetition, of which each has a mean and a scale."""

    def __init__(self):
        rng = np.random.default_rng(1)
        self.means = 1.5 * rng.standard_normal((SITES, K))
        self.scales = rng.uniform(0.5, 2.0, (SITES, K))

    def draw(self, rng):
        """Rows of each site, with the variances and the directions of all sites together."""
        X, V = drawn(rng, (), "normal", SITES * ROWS, D)
        Z = X.reshape(SITES, ROWS, D)
        leading = Z[:, :, :K] * np.sqrt(1 + np.array(SPIKES)) * self.scales[:, None]
        Z = np.concatenate([leading + self.means[:, None], Z[:, :, K:]], axis=2)
        between = self.means - self.means.mean(axis=0)
        within = np.mean(self.scales**2, axis=0) * (1 + np.array(SPIKES))
        values, U = np.linalg.eigh(np.diag(within) + between.T @ between / SITES)
        return Z @ V, values[::-1], U[:, ::-1].T @ V[:K]


KINDS = {"normal": Alike("normal"), "skewed": Alike("skewed"), "unlike": Unlike()}


def by_jackknife(subspaces, rng):
    found = jackknife_intervals(subspaces, K, confidence=LEVEL)
    return found.explained_variance_interval, found.subspace_sine_bound


def by_normal_theory(X, rng):
    """Anderson (1963): log-variances have variance 2 / n, tangents l_i l_j / n (l_i - l_j)^2."""
    values, _ = decomposed(moments(X.reshape(-1, D)))
    half = 1.96 * np.sqrt(2 / X[..., 0].size)
    of_tangents = values[:K] * values[K:, None] / (values[:K] - values[K:, None]) ** 2
    drawn_tangents = rng.standard_normal((DRAWS, D - K, K))
    drawn_tangents *= np.sqrt(of_tangents / X[..., 0].size)
    largest = np.linalg.norm(drawn_tangents, 2, axis=(1, 2))
    tangent = np.quantile(largest, LEVEL)
    intervals = values[:K, None] * np.exp([-half, half])
    return intervals, tangent / np.hypot(1, tangent)


def by_bootstrap(blocks, rng):
    """Percentiles where each block counts a Poisson number of times."""
    sums = np.array([moments(rows) for rows in blocks])
    _, V = decomposed(sums.sum(axis=0))
    times = rng.poisson(1.0, (DRAWS, len(blocks)))
    found = [decomposed(np.tensordot(t, sums, 1)) for t in times[times.sum(axis=1) > 1]]
    ends = np.quantile([values[:K] for values, _ in found], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], 0)
    sines = [np.linalg.norm(V[:, K:].T @ W[:, :K], 2) for _, W in found]
    return ends.T, np.quantile(sines, LEVEL)


def moments(rows):
    """Products of the rows with a column of ones beside them: they add up."""
    rows = np.column_stack([rows, np.ones(len(rows))])
    return rows.T @ rows


def decomposed(products):
    """Variances and directions of rows of which the sums are given."""
    n, mean = products[-1, -1], products[-1, :-1] / products[-1, -1]
    values, V = np.linalg.eigh((products[:-1, :-1] - n * np.outer(mean, mean)) / (n - 1))
    return values[::-1], V[:, ::-1]


def summaries(blocks):
    return [Subspace.from_rows(rows) for rows in blocks]


def methods(X):
    """Name -> function of a generator, which finds intervals and a bound."""
    blocks = X.reshape(SITES, BLOCKS, -1, D)
    return {
        "jackknife, sites": lambda rng: by_jackknife(summaries(X), rng),
        "jackknife, blocks": lambda rng: by_jackknife(list(map(summaries, blocks)), rng),
        "normal theory": lambda rng: by_normal_theory(X, rng),
        "bootstrap, sites": lambda rng: by_bootstrap(X, rng),
        "bootstrap, blocks": lambda rng: by_bootstrap(blocks.reshape(SITES * BLOCKS, -1, D), rng),
    }


def coverage(kind, repetitions, names=None):
    """A row for each method."""
    rng = np.random.default_rng(0)
    found = {}
    for _ in range(repetitions):
        X, variances, V = KINDS[kind].draw(rng)
        _, W = decomposed(moments(X.reshape(-1, D)))
        sine = subspace_distance(W[:, :K].T, V)
        for name, method in methods(X).items():
            if names is None or name in names:
                ends, bound = method(rng)
                inside = (ends[:, 0] <= variances) & (variances <= ends[:, 1])
                width = np.mean(np.diff(ends, axis=1)[:, 0] / variances)
                found.setdefault(name, []).append([*inside, sine <= bound, width, bound])
    for name, rows in found.items():
        *inside, angle, width, bound = np.mean(rows, axis=0)
        yield {
            "rows": kind,
            "method": name,
            "variance, least": min(inside),
            "most": max(inside),
            "angle": angle,
            "width / variance": width,
            "sine": bound,
        }


def main(quick=False):
    table("intervals", [r for kind in KINDS for r in coverage(kind, 10 if quick else 500)])
