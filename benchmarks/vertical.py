"""Columns at clients: which method, on data that no default was chosen on.

Six sets that the paper of Cheung et al. does not have, one or three components, 2 to 12 clients,
and columns contiguous, in random order, or in random order and unequal numbers. Error: sine of the
largest angle to the components of all columns. "vfedpca" has the library's defaults, ten rounds;
"as printed" eq. 13 and 14 as they stand; "merge" and "power" send no more floats than these, "merge
of 1" no more than one round. "isolated": mean of the clients by themselves. Then near ties, where
clients' leading vectors differ, and kernels.
"""

from itertools import product

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.decomposition import PCA, KernelPCA
from sklearn.preprocessing import scale

from benchmarks._columns import (
    READINGS,
    Site,
    agreed,
    count,
    error,
    isolated,
    leading,
)
from benchmarks._tools import load, picture, table
from fedpca_sklearn import (
    LeftVectorMerge,
    PowerRounds,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
    VFedPCA,
    make_spiked,
    subspace_distance,
)

CLIENTS = (2, 4, 8, 12)
SPLITS = ("contiguous", "random", "unequal")
ROUNDS = 10
# A round of p clients is p (2 n + 1) floats, ten as many as 19 directions up and one down.
METHODS = {
    "vfedpca": VFedPCA(n_rounds=ROUNDS),
    "as printed": VFedPCA(n_rounds=ROUNDS, **READINGS["as printed"]),
    "merge": LeftVectorMerge(2 * ROUNDS - 1),
    "power": PowerRounds(ROUNDS, tol=0.0),
    "merge of 1": LeftVectorMerge(1),
}


def words(n_rows, n_words):
    """Log counts of the most frequent words in evenly spaced documents."""
    from scipy.sparse import load_npz

    if (file := load("newsgroups20_counts.npz")) is not None:
        counts = load_npz(file)
        frequent = np.argsort(-np.asarray((counts > 0).sum(axis=0)).ravel())[:n_words]
        rows = np.linspace(0, counts.shape[0] - 1, n_rows).astype(int)
        yield "newsgroups", np.log1p(counts[rows][:, frequent].toarray().astype(float))


def data(quick):
    yield "breast cancer", scale(load_breast_cancer().data)
    yield "spiked", make_spiked(400, 60, spikes=(5.0, 4.0, 3.0), random_state=0)[0]
    if quick:
        return
    X = load_digits().data[:1000]
    yield "digits", X[:, X.any(axis=0)]
    if (file := load("wine_redwhite.npz")) is not None:
        yield "wine", scale(np.load(file)["X"][::5].astype(float))
    yield from words(1000, 200)
    if (file := load("mnist_test.npz")) is not None:
        X = np.load(file)["X"][5000:5500] / 255.0
        yield "mnist", X[:, X.any(axis=0)]


def groups(split, d, p):
    """Columns of each client."""
    rng = np.random.default_rng(p)
    order = np.arange(d) if split == "contiguous" else rng.permutation(d)
    if split != "unequal":
        return np.array_split(order, p)
    cuts = np.sort(rng.choice(np.arange(1, d), p - 1, replace=False))
    return np.split(order, cuts)


def alone(Z, parts, truth):
    """Mean error of the clients by themselves, of those with columns enough."""
    k = len(truth)
    errors = []
    for columns in parts:
        if len(columns) >= k:
            U = np.linalg.svd(Z[:, columns], full_matrices=False)[0][:, :k]
            errors.append(subspace_distance(U.T @ Z, truth))
    return float(np.mean(errors)) if errors else 1.0


def medians(rows, ways):
    """Medians by data and number of components."""
    found = []
    for name, k in dict.fromkeys((row["data"], row["k"]) for row in rows):
        some = [row for row in rows if (row["data"], row["k"]) == (name, k)]
        errors = {way: float(np.median([row[way] for row in some])) for way in ways}
        found.append({"data": name, "k": k, "cases": len(some), **errors})
    return found


def methods(quick):
    rows = []
    for (name, X), k in product(data(quick), (1, 3)):
        Z = X - X.mean(axis=0)
        truth = PCA(k, svd_solver="full").fit(X).components_
        for p, split in product(CLIENTS, SPLITS):
            parts = groups(split, X.shape[1], min(p, X.shape[1] - 1))
            row = {"data": name, "k": k, "p": len(parts), "split": split}
            row["isolated"] = alone(Z, parts, truth)
            for way, method in METHODS.items():
                pca = VerticalFederatedPCA(k, feature_groups=parts, method=method, random_state=0)
                row[way] = subspace_distance(pca.fit(X).components_, truth)
            rows.append(row)
    shown = ("isolated", *METHODS)
    table("vertical", medians(rows, shown))
    for way in ("vfedpca", "merge", "power"):
        by = (np.median([row[way] for row in rows if row["split"] == split]) for split in SPLITS)
        found = ", ".join(f"{split} {m:.1g}" for split, m in zip(SPLITS, by, strict=True))
        print(f"{way}, medians by split: {found}.")
    for first, second in (
        ("vfedpca", "isolated"),
        ("vfedpca", "as printed"),
        ("as printed", "isolated"),
        ("merge", "vfedpca"),
        ("power", "vfedpca"),
        ("merge of 1", "as printed"),
        ("merge of 1", "isolated"),
    ):
        print(f"{count(rows, first, second)}.")
    for way in shown:
        errors = np.array([row[way] for row in rows])
        print(
            f"{way}: median {np.median(errors):.2g}, worst {errors.max():.2g}, below .01 in "
            f"{np.sum(errors < 0.01)} of {len(rows)}"
        )
    print()

    def draw(ax):
        for way in shown:
            errors = np.sort([max(row[way], 1e-15) for row in rows])
            ax.semilogx(errors, np.arange(1, len(errors) + 1) / len(errors), label=way)
        ax.set(xlabel="sine of the largest angle", ylabel="share of cases below")
        ax.legend(fontsize=7)

    picture("vertical", draw)
    return rows


# How far the shares of two directions at a client are from a half, and the ratio of the singular
# values of all columns along them.
NEAR_TIES = {
    "both, tie .98": (0.1, 0.98),
    "one of two, tie .98": (0.9, 0.98),
    "one of two, tie .8": (0.9, 0.8),
}


def two_directions(p, spread, tie, rng):
    """What p clients see of two directions that all columns see nearly equally well."""
    shares = (1 + spread * rng.choice([-1, 1], p) * rng.uniform(0.5, 1, p)) / 2
    squares = np.array([shares / shares.sum(), tie**2 * (1 - shares) / (1 - shares).sum()])
    return np.sqrt(squares).T


def near_tie(kind, p, seed, n=300, columns=5):
    """Clients whose leading vectors are not alike; "hidden": each has one of its own first, 1 to
    1.1 times as strong as the one that they have in common.
    """
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((n, p + 2)))[0]
    if kind == "hidden":
        sizes = np.stack([np.ones(p), rng.uniform(1.0, 1.1, p)], axis=1)
        bases = [Q[:, [0, i + 2]] for i in range(p)]
    else:
        sizes, bases = two_directions(p, *NEAR_TIES[kind], rng), [Q[:, :2]] * p
    clients = []
    for i, (basis, size) in enumerate(zip(bases, sizes, strict=True)):
        right = np.linalg.qr(rng.standard_normal((columns, 2)))[0]
        noise = 0.02 / np.sqrt(n) * rng.standard_normal((n, columns))
        clients.append(Site(i, ((basis * size) @ right.T + noise).T.copy()))
    return clients


TIED = {
    "eigenvalue, 1": {"n_rounds": 1, "weighting": "eigenvalue"},
    "projection, 1": {"n_rounds": 1, "weighting": "projection"},
    "as printed, 10": READINGS["as printed"],
    "eigenvalue, 10": READINGS["original"],
    "projection, 10": {},
}


def near_ties(quick):
    rows = []
    for kind, p, seed in product((*NEAR_TIES, "hidden"), (3, 4, 8), range(3 if quick else 15)):
        clients = near_tie(kind, p, seed)
        truth, tie = leading(clients)
        row = {"data": kind, "tie": np.sqrt(tie), "isolated": isolated(clients, truth)}
        for way, options in TIED.items():
            row[way] = error(agreed(clients, VFedPCA(100, **options)), truth)
        row["merge of 1"] = error(agreed(clients, LeftVectorMerge(1)), truth)
        row["merge of 2"] = error(agreed(clients, LeftVectorMerge(2)), truth)
        rows.append(row)
    shown = []
    for kind in dict.fromkeys(row["data"] for row in rows):
        some = [row for row in rows if row["data"] == kind]
        shown.append(
            {"clients see": kind}
            | {key: float(np.median([row[key] for row in some])) for key in list(some[0])[1:]}
        )
    table("vertical_near_ties", shown)
    for kind in dict.fromkeys(row["data"] for row in rows):
        some = [row for row in rows if row["data"] == kind]
        for way in TIED:
            worse = sum(row[way] > row["isolated"] * (1 + 1e-6) for row in some)
            right = sum(row[way] < 0.1 for row in some)
            print(
                f"{kind}: {way} is right to .1 in {right} of {len(some)} cases and worse than "
                f"isolated clients in {worse}."
            )
        pairs = [(row["eigenvalue, 10"], row["projection, 10"]) for row in some]
        print(
            f"{kind}: of ten periods eigenvalue is nearer than projection in "
            f"{sum(a < b for a, b in pairs)}, and right where projection is not in "
            f"{sum(a < 0.1 <= b for a, b in pairs)}; the other way round in "
            f"{sum(b < 0.1 <= a for a, b in pairs)}."
        )
    print()


def kernels(quick):
    X, rows = scale(load_digits().data)[: 300 if quick else 600], []
    for kernel in ("rbf", "poly", "sigmoid"):
        central = KernelPCA(5, kernel=kernel, eigen_solver="dense").fit(X)
        row = {"kernel": kernel}
        for way, aggregation in {
            "exact": "exact",
            "as printed": VFedPCA(100, 3, **READINGS["as printed"]),
            "vfedpca": VFedPCA(100),
        }.items():
            pca = VerticalFederatedKernelPCA(
                5,
                feature_groups=4,
                kernel=kernel,
                aggregation=aggregation,
                random_state=0,
            ).fit(X)
            row[way] = subspace_distance(pca.eigenvectors_.T, central.eigenvectors_.T)
            row[f"floats up, {way}"] = pca.communication_.floats_up
        rows.append(row)
    table("vertical_kernels", rows)
    print(
        "Distance of five vectors from KernelPCA of all columns: exact "
        f"{max(row['exact'] for row in rows):.1g} at most; vfedpca is nearer than as printed in "
        f"{sum(row['vfedpca'] < row['as printed'] for row in rows)} of {len(rows)}."
    )


def main(quick=False):
    methods(quick)
    near_ties(quick)
    kernels(quick)
