"""Columns at different clients: Cheung et al., Fig. 6, 7 and 14, warm start, weight scaling.

College and vehicle standardised, sonar as it is, and Gaussian rows of one component or a mixture
of three, with features by samples [1000, 200] and [5000, 1000]. Error: sine of the angle to the
leading component of all columns. "isolated" is the mean of the clients' own leading vectors, each
by itself.
"""

import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA, KernelPCA
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import scale

from benchmarks._tools import load, picture, table
from fedpca_sklearn import (
    FederatedPCA,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
    subspace_distance,
)

CLIENTS = (3, 5, 10)


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
    pca = VerticalFederatedPCA(1, random_state=0, **options).fit(X)
    return subspace_distance(pca.components_, truth), pca.communication_


def figures_6_and_7(quick):
    rows = []
    for name, X in data(quick):
        truth = leading(X)
        for p in CLIENTS:
            alone = isolated(X, p, truth)
            ways = {
                "vfedpca": {},
                "no scaling": {"weight_scaling": False},
                "equal weights": {"weighting": "equal", "weight_scaling": False},
                "1 round": {"n_rounds": 1},
                "10 rounds": {"n_rounds": 10},
            }
            found = {way: error(X, truth, feature_groups=p, **o)[0] for way, o in ways.items()}
            merge, _ = error(X, truth, feature_groups=p, method="merge", local_components=1)
            power, _ = error(X, truth, feature_groups=p, method="power", n_rounds=3)
            rows.append(
                {"data": name, "p": p, "isolated": alone}
                | found
                | {"merge, 1 direction": merge, "power, 3 rounds": power}
            )
    table("vertical", rows)
    better = [row["vfedpca"] < row["isolated"] for row in rows]
    plain = [row["no scaling"] < row["isolated"] for row in rows]
    print(f"vfedpca beats the isolated clients in {sum(better)} of {len(rows)} cases, without")
    print(f"weight scaling in {sum(plain)}; scaling helps in", end=" ")
    print(sum(row["vfedpca"] < row["no scaling"] for row in rows), end=", 10 rounds over 1 in ")
    print(sum(row["10 rounds"] < row["1 round"] - 1e-6 for row in rows), end=", merge beats")
    print(f" vfedpca in {sum(row['merge, 1 direction'] < row['vfedpca'] for row in rows)}")

    def draw(ax):
        names = [f"{row['data']}, {row['p']}" for row in rows]
        for way in ("isolated", "vfedpca", "no scaling", "merge, 1 direction"):
            ax.plot(names, [row[way] for row in rows], "o", ms=4, label=way)
        ax.tick_params(axis="x", rotation=90, labelsize=6)
        ax.set(ylabel="sine to the leading component", title="Fig. 6 and 7")
        ax.legend(fontsize=6)

    picture("vertical", draw)


def warm_start(quick):
    rows = []
    for name, X in data(True):
        truth = leading(X)
        row = {"data": name}
        for iterations in (1, 2, 5, 20):
            for warm in (True, False):
                way = f"{'warm' if warm else 'cold'}, {iterations}"
                row[way], _ = error(
                    X, truth, feature_groups=5, local_iterations=iterations, warm_start=warm
                )
        rows.append(row)
    table("vertical_warm_start", rows)


def topologies(quick):
    rows = []
    for name, X in data(True):
        truth = leading(X)
        for topology in ("server", "complete", "ring", "star"):
            pca = VerticalFederatedPCA(
                1,
                feature_groups=5,
                topology=topology,
                weight_scaling=False,
                tol=1e-6,
                random_state=0,
            ).fit(X)
            log = pca.communication_
            rows.append(
                {
                    "data": name,
                    "topology": topology,
                    "error": subspace_distance(pca.components_, truth),
                    "disagreement": pca.disagreement_,
                    "rounds": log.rounds,
                    "floats": log.floats_up + log.floats_down,
                }
            )
    table("vertical_topologies", rows)


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


def kernels():
    X = scale(load_digits().data)[:1000]
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


def main(quick):
    figures_6_and_7(quick)
    warm_start(quick)
    topologies(quick)
    against_horizontal()
    clusters()
    kernels()
