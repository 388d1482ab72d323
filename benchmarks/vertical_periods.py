"""Cheung et al., Fig. 6, 8 and 9: errors by communication period on structured data.

The grids of the paper: college and vehicle with 2, 3 and 5 clients and 5 local iterations, or 3
clients and 3, 5 and 10; sonar with 3, 5 and 10 clients and 10, or 5 clients and 5, 10 and 20; ten
periods. MNIST's first 500 test images are in the place of Swarm and TCGA: 10, 50 and 100 clients
and 100 iterations, or 50 clients and 30, 50 and 100. Diabetes is scikit-learn's set of 442 rows and
10 columns, another than the paper's Pima. "as printed", "original" and "defaults": see READINGS in
_columns. Eq. 14 of kernels by two readings, RBF and sigmoid (c = 1) with gamma one over all
columns, the same for the whole and all clients. "period 0" is that of the authors' code: the mean
of the clients' vectors with equal weights. Means of three random starts.
"""

from itertools import product
from time import process_time

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.decomposition import PCA
from sklearn.preprocessing import scale

from benchmarks._columns import (
    READINGS,
    agreed,
    count,
    isolated,
    leading,
    mean_error,
    sites,
    structured,
)
from benchmarks._tools import claim, load, picture, table
from fedpca_sklearn import (
    FederatedPCA,
    LeftVectorMerge,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
    VFedPCA,
    subspace_distance,
)

PERIODS = (1, 2, 3, 5, 10)
PER_COLUMN = {"weighting": "eigenvalue_per_column"}
SMALL = [(p, 5) for p in (2, 3, 5)], [(3, iterations) for iterations in (3, 5, 10)]
LARGER = [(p, 100) for p in (10, 50, 100)], [(50, iterations) for iterations in (30, 50, 100)]
LARGE = [(p, 10) for p in (3, 5, 10)], [(5, iterations) for iterations in (5, 10, 20)]


EQ_14 = {"columns": "cumulative_columns", "kernel's space": "cumulative"}
GRIDS = {"college": SMALL, "vehicle": SMALL, "mnist": LARGER}


def data():
    yield from structured()
    yield "diabetes", scale(load_diabetes().data)


def pixels():
    if (file := load("mnist_test.npz")) is not None:
        X = np.load(file)["X"][:500] / 255.0
        yield "mnist", X[:, X.any(axis=0)]


def by_periods(clients, truth, iterations, metric="sin", periods=PERIODS, **options):
    return {
        t: mean_error(clients, truth, VFedPCA(iterations, t, **options), metric) for t in periods
    }


def milliseconds(clients, iterations):
    """The processor's, of ten periods as printed; the least of three."""
    found = []
    for _ in range(3):
        before = process_time()
        agreed(clients, VFedPCA(iterations, 10, **READINGS["as printed"]))
        found.append(1e3 * (process_time() - before))
    return min(found)


def figure_6(sets):
    rows, lines = [], {}
    for name, X in sets:
        for panel, grid in zip(("clients", "iterations"), GRIDS.get(name, LARGE), strict=True):
            for p, iterations in grid:
                clients = sites(X, p)
                truth, _ = leading(clients)
                alone = isolated(clients, truth, iterations)
                equal = VFedPCA(iterations, 1, weighting="equal")
                row = {"data": name, "panel": panel, "p": p, "l": iterations, "isolated": alone}
                row["period 0"] = mean_error(clients, truth, equal)
                for reading, options in READINGS.items():
                    found = by_periods(clients, truth, iterations, **options)
                    row |= {f"{reading}, {t}": found[t] for t in (1, 2, 10)}
                    if panel == "clients":
                        lines[name, p, reading] = [alone, *found.values()]
                row["ms"] = milliseconds(clients, iterations)
                rows.append(row)
    table("vertical_periods", rows)
    for reading in READINGS:
        one, two, ten = (f"{reading}, {t}" for t in (1, 2, 10))
        falls = sum(row[one] < row["isolated"] for row in rows)
        claim(
            f'{reading}: "after communication the error falls much"',
            falls == len(rows),
            f"below isolated after period 1 in {falls} of {len(rows)} cases, after period 10 in "
            f"{sum(row[ten] < row['isolated'] for row in rows)}; medians of the ratio "
            f"{np.median([row[one] / row['isolated'] for row in rows]):.2g} and "
            f"{np.median([row[ten] / row['isolated'] for row in rows]):.2g}",
        )
        moved = max(abs(row[ten] - row[two]) for row in rows)
        print(f"{reading}: from period 2 to 10 errors move by at most {moved:.1g}.")
    panel = [row for row in rows if row["panel"] == "iterations"]
    more = [(few, many) for few, many in zip(panel[::3], panel[2::3], strict=True)]
    print(
        "From the fewest to the most local iterations period 10 as printed gets better on "
        f"{sum(many['as printed, 10'] < few['as printed, 10'] for few, many in more)} of "
        f"{len(more)} sets, of the defaults on "
        f"{sum(many['defaults, 10'] < few['defaults, 10'] for few, many in more)}."
    )
    panel = [row for row in rows if row["panel"] == "clients"]
    longer = [a["ms"] < c["ms"] for a, c in zip(panel[::3], panel[2::3], strict=True)]
    claim(
        '"More clients cost more"', all(longer), f"more ms on {sum(longer)} of {len(longer)} sets"
    )
    print()
    picture("vertical_periods", lambda ax: draw(ax, sets, lines))


def draw(ax, sets, lines):
    fig = ax.figure
    ax.remove()
    for panel, (name, _) in zip(fig.subplots(1, len(sets), sharey=True), sets, strict=True):
        ps = sorted({p for other, p, _ in lines if other == name})
        for p, (reading, style) in product(ps, (("as printed", "--"), ("defaults", "-"))):
            line = np.maximum(lines[name, p, reading], 1e-8)
            panel.semilogy((0, *PERIODS), line, style, c=f"C{ps.index(p)}", label=f"p = {p}")
        panel.set_title(name, fontsize=8)
        panel.set_xlabel("period", fontsize=8)
        panel.legend(
            panel.lines[1::2], [line.get_label() for line in panel.lines[1::2]], fontsize=6
        )
    fig.axes[0].set_ylabel("sine; dashed: as printed")


def nine_cases(sets):
    """Periods by all readings, with 20 local iterations; sine and eq. 4."""
    readings = READINGS | {"original, 1/f": READINGS["original"] | PER_COLUMN}
    rows, rows_4 = [], []
    for (name, X), p in product(sets, (3, 5, 10)):
        clients = sites(X, p)
        truth, _ = leading(clients)
        for found, metric in ((rows, "sin"), (rows_4, "euclidean")):
            row = {"data": name, "p": p, "isolated": isolated(clients, truth, 20, metric)}
            for reading, options in readings.items():
                by = by_periods(clients, truth, 20, metric, (1, 10), **options)
                row |= {f"{reading}, {t}": by[t] for t in by}
            found.append(row)
    if not rows:
        return
    table("vertical_nine_cases", rows)
    print("by eq. 4:")
    table("vertical_nine_cases_distance", rows_4)
    for reading in readings:
        one, ten = f"{reading}, 1", f"{reading}, 10"
        rises = [
            f"{r['data']} {r['p']} by {r[ten] - r[one]:.1g}"
            for r in rows
            if r[ten] > r[one] * (1 + 1e-6)
        ]
        print(
            f"{reading}: period 10 is not above period 1 in {len(rows) - len(rises)} of "
            f"{len(rows)} cases{', above for ' + ', '.join(rises) if rises else ''}; "
            f"{count(rows, ten, 'isolated')}."
        )
    rises = [sum(r[f"{k}, 10"] > r[f"{k}, 1"] * (1 + 1e-6) for r in rows) for k in readings]
    claim(
        '"Several periods do not help on all data, some errors rise a little"',
        max(rises) > 0,
        ", ".join(f"{k} {n} of {len(rows)}" for k, n in zip(readings, rises, strict=True)),
    )
    print()


def eq_14_of_kernels(sets):
    """The columns X_i updated, as printed, or the data in the kernel's space: sines, l = 100."""
    rows = []
    for (name, X), kernel, p in product(sets, ("rbf", "sigmoid"), (3, 5, 10)):
        options = {"kernel": kernel, "gamma": 1 / X.shape[1], "random_state": 0}
        whole = VerticalFederatedKernelPCA(1, **options).fit(X).eigenvectors_.T
        pca = VerticalFederatedKernelPCA(1, feature_groups=p, **options)
        row = {"data": name, "kernel": kernel, "p": p}
        for t in (1, 3):
            found = {}
            for reading, update in EQ_14.items():
                method = VFedPCA(100, t, weighting="eigenvalue", update=update)
                found[reading] = pca.set_params(aggregation=method).fit(X).eigenvectors_.T
                row[f"{reading}, {t}"] = subspace_distance(found[reading], whole)
            row[f"apart, {t}"] = subspace_distance(*found.values())
        rows.append(row)
    if not rows:
        return
    table("vertical_eq_14", rows)
    columns, space = EQ_14
    for t in (1, 3):
        apart = [row[f"apart, {t}"] for row in rows]
        errors = [np.median([row[f"{reading}, {t}"] for row in rows]) for reading in EQ_14]
        print(
            f"Eq. 14 of kernels after {t} periods: the readings are {min(apart):.2g} to "
            f"{max(apart):.2g} from each other; median error {errors[0]:.2g} ({columns}) and "
            f"{errors[1]:.2g} ({space}), {count(rows, f'{columns}, {t}', f'{space}, {t}')}."
        )
    print()


def figure_8(sets):
    """Warm start and weight scaling, l = 10, ten periods."""
    rows = []
    for (name, X), p, (reading, options) in product(sets, (3, 5, 10), READINGS.items()):
        clients = sites(X, p)
        truth, _ = leading(clients)
        row = {"data": name, "p": p, "reading": reading}
        for way, more in {
            "cold": {"warm_start": False},
            "warm": {},
            "floor": {"weight_scaling": True},
            "ceil": {"weight_scaling": "ceil"},
        }.items():
            row[way] = mean_error(clients, truth, VFedPCA(10, 10, **options, **more))
        row["warm, l = 1"] = mean_error(clients, truth, VFedPCA(1, 10, **options))
        row["cold, l = 1"] = mean_error(clients, truth, VFedPCA(1, 10, warm_start=False, **options))
        rows.append(row)
    table("vertical_weights", rows)
    for reading in READINGS:
        some = [row for row in rows if row["reading"] == reading]
        apart = max(abs(row["warm"] - row["cold"]) for row in some)
        apart_1 = max(abs(row["warm, l = 1"] - row["cold, l = 1"]) for row in some)
        claim(
            f'{reading}: "a warm start helps, with more clients more"',
            apart > 1e-6,
            f"errors with and without differ by {apart:.1g}, with one iteration by {apart_1:.1g}",
        )
        for half in ("floor", "ceil"):
            lower = sum(row[half] < row["warm"] * (1 - 1e-6) for row in some)
            claim(
                f'{reading}: "weight scaling ({half}) lowers the error"',
                lower == len(some),
                f"in {lower} of {len(some)} cases, median of the ratio "
                f"{np.median([row[half] / row['warm'] for row in some]):.3g}",
            )
    print()


def figure_9(sets):
    """Sonar by columns and by rows."""
    X = dict(sets).get("sonar")
    if X is None:
        return
    truth = PCA(1, svd_solver="full").fit(X).components_
    Z, rows = X - X.mean(axis=0), []
    for p in (2, 3, 5, 10):
        ways = {
            "columns, as printed": VFedPCA(**READINGS["as printed"]),
            "columns, defaults": VFedPCA(),
            "columns, merge": LeftVectorMerge(),
        }
        row = {"p": p}
        for way, method in ways.items():
            pca = VerticalFederatedPCA(1, feature_groups=p, method=method, random_state=0).fit(X)
            row[way] = subspace_distance(pca.components_, truth)
        flat = FederatedPCA(1, n_clients=p).fit(X)
        row["rows, FederatedPCA"] = subspace_distance(flat.components_, truth)
        own = [PCA(1).fit(part).components_ for part in np.array_split(X, p)]
        row["rows, isolated"] = float(np.mean([subspace_distance(v, truth) for v in own]))
        own = [agreed([client], VFedPCA(100, 1)) @ Z for client in sites(X, p)]
        row["columns, isolated"] = float(np.mean([subspace_distance([v], truth) for v in own]))
        rows.append(row)
    table("vertical_horizontal", rows)
    claim(
        '"Columns and rows differ"',
        all(row["columns, isolated"] > row["rows, isolated"] for row in rows),
        "isolated clients are further away with columns than with rows in all; "
        f"merged, both are exact to {max(row['columns, merge'] for row in rows):.0e} and "
        f"{max(row['rows, FederatedPCA'] for row in rows):.0e}",
    )


def main(quick=False):
    sets = list(data())
    figure_6(sets if quick else [*sets, *pixels()])
    nine_cases(sets[:-1])
    eq_14_of_kernels(sets[:-1])
    figure_8(sets[-1:] if quick else sets)
    figure_9(sets)
