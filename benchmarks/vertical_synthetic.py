"""Cheung et al., Fig. 7: errors and seconds on synthetic columns up to 20,000 x 4,000.

The values of section 4.2.1: of each column the normal density at points drawn uniformly within
three deviations of its mean; "single" has mean 0 and deviation 1 everywhere, "mixture" a mean and a
deviation drawn from 1 to m for each column (0, which the paper has too, is no density). Features x
samples are those of the paper; 5, 10 and 20 clients with 10 local iterations, 3 clients with 3, 5
and 10 (the text also says 5, 10 and 20); 1 and 10 periods; one random start. "raw": the
same columns, not centred, as eq. 2 has them. "normal": rows of a normal law with one direction of
variance 400 above the noise. "merge of 1" is `LeftVectorMerge(1)`, which sends what a period sends.
Seconds are of ten periods, of one core; memory is linear, columns and a copy of them.
"""

from itertools import product
from time import process_time

import numpy as np

from benchmarks._columns import READINGS, agreed, error, isolated, leading, mean_error, sites
from benchmarks._tools import claim, picture, table
from fedpca_sklearn import LeftVectorMerge, VFedPCA, make_spiked

SIZES = ((1000, 200), (5000, 1000), (10000, 2000), (20000, 4000))
CLIENTS, ITERATIONS = [(p, 10) for p in (5, 10, 20)], [(3, iterations) for iterations in (3, 5, 10)]
WAYS = {"as printed": READINGS["as printed"], "defaults": READINGS["defaults"]}


def density(kind, m, n, rng):
    """N rows of m columns of the paper's synthetic data."""
    std = rng.integers(1, m + 1, m).astype(float) if kind == "mixture" else np.ones(m)
    x = rng.uniform(-3, 3, (n, m))  # in deviations from the mean, which then does not matter
    np.square(x, out=x)
    x *= -0.5
    np.exp(x, out=x)
    x /= np.sqrt(2 * np.pi) * std
    return x


def synthetic(quick):
    """Name, columns and whether they are centred."""
    rng = np.random.default_rng(0)
    for m, n in SIZES[: 1 if quick else None]:
        for kind in ("single", "mixture"):
            X = density(kind, m, n, rng)
            yield kind, X, True
            if m <= 5000:
                yield f"{kind}, raw", X, False
        if m <= 5000:
            yield "normal", make_spiked(n, m, spikes=(400.0,), random_state=0)[0], True


def measured(clients, truth, iterations):
    """Errors after one period and ten, and seconds of the ten, by reading."""
    row = {"isolated": isolated(clients, truth, iterations)}
    for way, options in WAYS.items():
        one = agreed(clients, VFedPCA(iterations, 1, **options))
        before = process_time()
        ten = agreed(clients, VFedPCA(iterations, 10, **options))
        seconds = process_time() - before
        row |= {f"{way}, 1": error(one, truth), f"{way}, 10": error(ten, truth)}
        row[f"s, {way}"] = seconds
    row["merge of 1"] = mean_error(clients, truth, LeftVectorMerge(1), seeds=1)
    return row


def claims(kind, way, rows):
    """What the paper says of Fig. 7, held against the errors of one kind of columns."""
    alone, one, ten = (
        np.array([row[k] for row in rows]) for k in ("isolated", f"{way}, 1", f"{way}, 10")
    )
    below, above = np.sum(ten < one - 1e-9), np.sum(ten > one + 1e-9)
    shot = np.median(one - ten) < 0.1 * np.median(alone - one)  # what later periods add
    said, held = {
        "single": ('"one shot is more effective"', shot),
        "mixture": ('"the error falls and converges"', not above and np.all(ten < alone)),
        "normal": ("the error falls", not above and np.all(ten < alone)),
    }[kind.split(",")[0]]
    claim(
        f"{kind}, {way}: {said}",
        held,
        f"period 10 is below period 1 in {below} and above in {above} of {len(rows)}, by up to "
        f"{np.abs(one - ten).max():.2g}; below isolated after 1 in {np.sum(one < alone)}, after 10 "
        f"in {np.sum(ten < alone)}; medians {np.median(alone):.2g}, {np.median(one):.2g}, "
        f"{np.median(ten):.2g}",
    )


def main(quick=False):
    rows = []
    for kind, X, center in synthetic(quick):
        truth, tie = leading(sites(X, 1, center))
        n, m = X.shape
        whole = {"data": kind, "features": m, "samples": n, "second / first variance": tie}
        for p, iterations in CLIENTS + ITERATIONS:
            clients = sites(X, p, center)
            rows.append(whole | {"p": p, "l": iterations, **measured(clients, truth, iterations)})
    table("vertical_synthetic", rows)
    for kind, way in product(dict.fromkeys(row["data"] for row in rows), WAYS):
        claims(kind, way, [row for row in rows if row["data"] == kind])

    def draw(ax):
        for way in WAYS:
            for kind, style in (("single", "o"), ("mixture", "s")):
                some = [r for r in rows if r["data"] == kind and (r["p"], r["l"]) == (10, 10)]
                sizes = [r["features"] * r["samples"] for r in some]
                ax.loglog(
                    sizes, [r[f"s, {way}"] for r in some], style + "-", label=f"{kind}, {way}"
                )
        ax.set(xlabel="features x samples", ylabel="seconds of ten periods, p = l = 10")
        ax.legend(fontsize=7)

    picture("vertical_synthetic", draw)
