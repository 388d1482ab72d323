"""Columns at different clients: Cheung et al., Fig. 6, 7 and 14, warm start, weight scaling.

College and vehicle standardised, sonar as it is, and Gaussian rows of one component or a mixture
of three, with features by samples [1000, 200] and [5000, 1000]; and the pixels of scikit-learn's
digits, which the paper does not have. Error: sine of the angle to the leading component of all
columns, mean of three random starts (one for 100 local iterations). "isolated" is the mean of the
clients' own leading vectors, each by itself. Floats are those of the rounds, without what
components are made of in the end.
"""

import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA, KernelPCA
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import scale

from benchmarks._tools import load, picture, table
from fedpca_sklearn import (
    Complete,
    FederatedPCA,
    Graph,
    LeftVectorMerge,
    PowerRounds,
    Ring,
    Star,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
    VFedPCA,
    subspace_distance,
)

CLIENTS = (3, 5, 10)
# Rounds for the components and their variances, in the end.
LAST = 3


def data(quick):
    for name in ("college", "vehicle", "sonar"):
        if (file := load(f"{name}.npz")) is not None:
            X = np.load(file)["X"].astype(float)
            yield name, X if name == "sonar" else scale(X)
    rng = np.random.default_rng(0)
    for d, n in ((1000, 200),) if quick else ((1000, 200), (5000, 1000)):
        spread = rng.standard_normal((3, d)) / np.sqrt(d)
        yield (
            f"single {d} x {n}",
            rng.standard_normal((n, d)) + 20 * np.outer(rng.standard_normal(n), spread[0]),
        )
        centres = 20 * spread[rng.integers(3, size=n)]
        yield f"mixture {d} x {n}", rng.standard_normal((n, d)) + centres
    yield "digits", load_digits().data


def leading(X):
    return PCA(1, svd_solver="full").fit(X).components_


def isolated(X, p, truth):
    Z = X - X.mean(axis=0)
    errors = []
    for columns in np.array_split(np.arange(X.shape[1]), p):
        u = np.linalg.svd(Z[:, columns], full_matrices=False)[0][:, 0]
        v = u @ Z
        errors.append(subspace_distance(v[None] / np.linalg.norm(v), truth))
    return float(np.mean(errors))


def error(X, truth, **options):
    """Mean error over random starts, and the floats of the rounds."""
    errors = []
    method = options.get("method")
    settled = method == "merge" or getattr(method, "local_iterations", 0) >= 100
    settled = settled or isinstance(method, LeftVectorMerge)
    for seed in range(1 if settled else 3):
        pca = VerticalFederatedPCA(1, random_state=seed, **options).fit(X)
        errors.append(subspace_distance(pca.components_, truth))
    rounds = pca.communication_.table[:-LAST]
    floats = sum(row["floats_up"] + row["floats_down"] for row in rounds)
    return float(np.mean(errors)), floats


def dots(name, rows, keys, ways, title):
    def draw(ax):
        names = [", ".join(str(row[key]) for key in keys) for row in rows]
        for way in ways:
            ax.semilogy(names, [row[way] for row in rows], "o", ms=4, label=way)
        ax.tick_params(axis="x", rotation=90, labelsize=5)
        ax.set(ylabel="sine to the leading component", title=title)
        ax.legend(fontsize=6)

    picture(name, draw)


def count(rows, first, second):
    """Say in how many rows the first is below the second, or equal, and where it is above."""
    less = [row[first] < row[second] * (1 - 1e-6) for row in rows]
    above = [row for row in rows if row[first] > row[second] * (1 + 1e-6)]
    where = sorted({row["data"] for row in above})
    equal = len(rows) - sum(less) - len(above)
    return (
        f"{first} is below {second} in {sum(less)} of {len(rows)} cases"
        + (f", equal in {equal}" if equal else "")
        + (f"; above on {', '.join(where)}" if where else "")
    )


def by_clients(quick):
    """Fig. 6: the number of clients; weights."""
    ways = {
        "vfedpca": VFedPCA(),
        "no scaling": VFedPCA(weight_scaling=False),
        "equal weights": VFedPCA(weighting="equal"),
        "1 round": VFedPCA(n_rounds=1),
        "10 rounds": VFedPCA(n_rounds=10),
        "100 iterations": VFedPCA(local_iterations=100),
    }
    rows = []
    for name, X in data(quick):
        truth = leading(X)
        for p in CLIENTS:
            found = {
                way: error(X, truth, feature_groups=p, method=method)[0]
                for way, method in ways.items()
            }
            rows.append({"data": name, "p": p, "isolated": isolated(X, p, truth)} | found)
    table("vertical", rows)
    print(f'"The error after communication is much lower": {count(rows, "vfedpca", "isolated")}.')
    print(f"With more local iterations, {count(rows, '100 iterations', 'isolated')}.")
    ratios = [row["vfedpca"] / row["isolated"] for row in rows]
    print(f"The median of vfedpca / isolated is {np.median(ratios):.2g}.")
    print(f'"More rounds do not always help": {count(rows, "10 rounds", "1 round")}.')
    apart = max(abs(row["10 rounds"] - row["vfedpca"]) for row in rows)
    print(f"10 and 3 rounds differ by at most {apart:.1g}.")
    print(f"Weight scaling: {count(rows, 'vfedpca', 'no scaling')}.")
    print(f"Eigenvalues as weights: {count(rows, 'no scaling', 'equal weights')}.\n")
    shown = ("isolated", "vfedpca", "no scaling", "equal weights")
    dots("vertical", rows, ("data", "p"), shown, "Fig. 6: clients")


def by_iterations(quick):
    """Fig. 7: local iterations; warm start."""
    rows = []
    for name, X in data(True):
        truth = leading(X)
        alone = isolated(X, 5, truth)
        for iterations in (1, 5, 20) if quick else (1, 2, 5, 10, 20, 50):
            row = {"data": name, "l": iterations, "isolated": alone}
            for way, options in {
                "1 round": {"n_rounds": 1},
                "warm": {},
                "cold": {"warm_start": False},
            }.items():
                method = VFedPCA(iterations, **options)
                row[way], _ = error(X, truth, feature_groups=5, method=method)
            rows.append(row)
    table("vertical_iterations", rows)
    names = dict.fromkeys(row["data"] for row in rows)
    ends = [[row["warm"] for row in rows if row["data"] == name] for name in names]
    fewer = sum(end[-1] < end[0] for end in ends)
    print(
        f'"More local iterations help": from the fewest to the most in {fewer} of {len(ends)};',
        end=" ",
    )
    few = [row for row in rows if row["l"] == 1]
    print(f"of one iteration, {count(few, 'warm', 'isolated')}.")
    apart = max(abs(row["warm"] - row["cold"]) for row in rows)
    print(f'"A warm start helps": no, 3 rounds with and without differ by at most {apart:.1g}.\n')
    dots("vertical_iterations", rows, ("data", "l"), ("isolated", "1 round", "warm"), "Fig. 7")


def equal_floats(quick):
    """The paper's method beside merge and power that send no more."""
    rows = []
    for name, X in data(quick):
        truth = leading(X)
        for p in CLIENTS:
            for rounds in (1, 3):  # a round is 2 p n floats, as many as a direction up and one down
                ways = {
                    "vfedpca": VFedPCA(n_rounds=rounds),
                    "merge": LeftVectorMerge(2 * rounds - 1),
                    "power": PowerRounds(rounds, tol=0.0),
                }
                row = {"data": name, "p": p, "rounds": rounds}
                for way, method in ways.items():
                    found = error(X, truth, feature_groups=p, method=method)
                    row[way], row[f"floats, {way}"] = found
                rows.append(row)
    table("vertical_equal_floats", rows)
    for rounds in (1, 3):
        some = [row for row in rows if row["rounds"] == rounds]
        print(f"At the floats of {rounds} round(s): {count(some, 'merge', 'vfedpca')};")
        print(f"{count(some, 'power', 'vfedpca')}.")
    print()
    three = [row for row in rows if row["rounds"] == 3]
    ways = ("vfedpca", "merge", "power")
    dots("vertical_equal_floats", three, ("data", "p"), ways, "At the floats of three rounds")


TOPOLOGIES = {
    "server": None,
    "complete": Complete(1e-6),
    "ring": Ring(1e-6),
    "star": Star(1e-6),
    "path": Graph(np.eye(5, k=1) + np.eye(5, k=-1), 1e-6),
}


def topologies(quick):
    """Fig. 14: who hears whom."""
    rows = []
    for name, X in data(True):
        truth = leading(X)
        for topology, strategy in TOPOLOGIES.items():
            pca = VerticalFederatedPCA(
                1,
                feature_groups=5,
                method=VFedPCA(weight_scaling=False),
                topology=strategy,
                random_state=0,
            ).fit(X)
            rounds = pca.communication_.table[:-LAST]
            rows.append(
                {
                    "data": name,
                    "topology": topology,
                    "error": subspace_distance(pca.components_, truth),
                    "disagreement": pca.disagreement_,
                    "exchanges": len(rounds),
                    "floats": sum(row["floats_up"] + row["floats_down"] for row in rounds),
                }
            )
    table("vertical_topologies", rows)
    m = len(TOPOLOGIES)
    for some, where in ((rows[:-m], "the paper's data"), (rows[-m:], "digits")):
        apart = max(abs(row["error"] - some[i - i % m]["error"]) for i, row in enumerate(some))
        print(f'"Without a server it is as good": on {where} errors differ by {apart:.1g} at most.')
    for k, topology in enumerate(TOPOLOGIES):
        times = np.median(
            [rows[i + k]["floats"] / rows[i]["floats"] for i in range(0, len(rows), m)]
        )
        print(f"{topology}: {rows[k]['exchanges']} exchanges, {times:.3g} times the floats.")
    print()

    def draw(ax):
        for topology in TOPOLOGIES:
            some = [row for row in rows if row["topology"] == topology]
            ax.loglog([r["floats"] for r in some], [r["error"] for r in some], "o", label=topology)
        ax.set(xlabel="floats", ylabel="sine to the leading component", title="Fig. 14")
        ax.legend(fontsize=7)

    picture("vertical_topologies", draw)


def against_horizontal():
    if (file := load("sonar.npz")) is None:
        return
    X = np.load(file)["X"].astype(float)
    truth = leading(X)
    rows = []
    for p in (2, 3, 5, 10):
        flat = FederatedPCA(1, n_clients=p).fit(X)
        rows.append(
            {
                "p": p,
                "vertical, vfedpca": error(X, truth, feature_groups=p)[0],
                "vertical, merge": error(X, truth, feature_groups=p, method="merge")[0],
                "horizontal, FederatedPCA": subspace_distance(flat.components_, truth),
            }
        )
    table("vertical_horizontal", rows)
    worst = max(max(row["vertical, merge"], row["horizontal, FederatedPCA"]) for row in rows)
    print(f"Columns or rows: merged they are exact to {worst:.1g}, vfedpca of columns is not.\n")


def clusters():
    X, y = load_digits(return_X_y=True)
    rows = []
    for name, pca in {
        "PCA": PCA(10),
        "vfedpca": VerticalFederatedPCA(10, feature_groups=4, random_state=0),
        "merge": VerticalFederatedPCA(10, feature_groups=4, method="merge"),
        "power": VerticalFederatedPCA(10, feature_groups=4, method="power", random_state=0),
    }.items():
        labels = KMeans(10, n_init=4, random_state=0).fit_predict(pca.fit_transform(X))
        rows.append({"projection": name, "adjusted Rand index": adjusted_rand_score(y, labels)})
    table("vertical_clusters", rows)
    scores = [row["adjusted Rand index"] for row in rows]
    print(f"k-means after projection is as good as PCA's: from {min(scores):.2f} to", end=" ")
    print(f"{max(scores):.2f}, PCA {scores[0]:.2f}.\n")


def kernels(quick):
    X = scale(load_digits().data)[: 300 if quick else 1000]
    rows = []
    for kernel in ("rbf", "poly", "sigmoid"):
        central = KernelPCA(5, kernel=kernel, eigen_solver="dense").fit(X)
        for aggregation in ("exact", "paper"):
            pca = VerticalFederatedKernelPCA(
                5, feature_groups=4, kernel=kernel, aggregation=aggregation, random_state=0
            ).fit(X)
            log = pca.communication_
            rows.append(
                {
                    "kernel": kernel,
                    "aggregation": aggregation,
                    "distance from KernelPCA": subspace_distance(
                        pca.eigenvectors_.T, central.eigenvectors_.T
                    ),
                    "floats up": log.floats_up,
                }
            )
    table("vertical_kernels", rows)
    exact, paper = rows[::2], rows[1::2]
    far = [max(row["distance from KernelPCA"] for row in some) for some in (exact, paper)]
    less = exact[0]["floats up"] / paper[0]["floats up"]
    print(
        f"Exact kernels give KernelPCA to {far[0]:.1g}; VFedKPCA is up to {far[1]:.2f} from it",
        end=" ",
    )
    print(f"and sends {less:.0f} times less.")


def main(quick=False):
    by_clients(quick)
    by_iterations(quick)
    equal_floats(quick)
    topologies(quick)
    against_horizontal()
    clusters()
    kernels(quick)
