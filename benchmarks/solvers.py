"""StreamingPCA beside every solver of scikit-learn, and gensim, on rows of many shapes.

The least of several times of each, in turn, by the clock of the process (run it with one BLAS
thread); short fits are timed in more turns, as they vary more. What takes more than three times as
long as StreamingPCA is timed once. "excess" is the
error of reconstruction beyond the least possible one, as a share of it. A peer counts as good
enough where its excess is at most ours, or 1e-4. "of product": our time as a multiple of `X @ V.T`
with r vectors, which reads the rows once; "bound" is the multiple that a symmetric product of the
rows takes, which any exact route by a scatter matrix needs; "transform" is the time of ours over
that peer's. The geometric mean is that of our time
over the fastest good peer's. The same of shapes that are drawn, on which no constant was chosen.
"""

from time import process_time

import numpy as np
import scipy.sparse as sp
from scipy.linalg.blas import dsyrk, ssyrk
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD

from benchmarks._tools import interleaved, picture, table
from benchmarks.sparse_text import Gensim, has_gensim
from fedpca_sklearn import StreamingPCA, make_power_law

# rows, features, components, decay of the variances, dtype, share of stored entries
SHAPES = [
    (20_000, 100, 10, 1.0, "f8", 1),
    (200_000, 64, 8, 1.0, "f8", 1),
    (100_000, 256, 20, 1.0, "f8", 1),
    (10_000, 400, 5, 1.0, "f8", 1),
    (10_000, 600, 10, 1.0, "f8", 1),
    (2_000, 500, 5, 1.0, "f8", 1),
    (20_000, 784, 50, 1.0, "f8", 1),
    (10_000, 1_000, 20, 1.0, "f8", 1),
    (3_000, 2_000, 200, 1.0, "f8", 1),
    (10_000, 2_000, 20, 1.0, "f8", 1),
    (10_000, 2_000, 20, 0.5, "f8", 1),
    (20_000, 2_000, 100, 1.0, "f8", 1),
    (2_000, 10_000, 10, 1.0, "f8", 1),
    (200_000, 64, 8, 1.0, "f4", 1),
    (20_000, 784, 50, 1.0, "f4", 1),
    (20_000, 784, 50, 2.0, "f4", 1),
    (10_000, 2_000, 20, 1.0, "f4", 1),
    (50_000, 200, 10, 0.0, "f8", 0.02),
    (20_000, 500, 10, 0.0, "f8", 0.05),
    (50_000, 2_000, 50, 0.0, "f8", 0.05),
    (100_000, 1_000, 10, 0.0, "f8", 0.01),
    (20_000, 5_000, 20, 0.0, "f8", 0.01),
    (100_000, 3_000, 20, 0.0, "f8", 0.005),
    (10_000, 20_000, 10, 0.0, "f8", 0.005),
]
# Further dense shapes that are drawn, and their numbers of entries and multiplications of a scatter
# matrix at most. Nothing was chosen on them.
_DRAWN = 60
_ENTRIES, _WORK = (3e4, 1.5e7), 2.5e10
GOOD_ENOUGH = 1e-4
# Ratio of times from which on a peer is faster.
ABOVE = 1.15
# Multiplications above which a full SVD is left out.
_FULL_SVD = 1e10
# Short fits are timed in so many turns, or until ours have taken so many seconds.
_MOST_TURNS, _SECONDS = 40, 0.5


def drawn(count):
    """Dense shapes at random, most of which are small."""
    rng, shapes = np.random.default_rng(20261124), []
    while len(shapes) < count:
        n, d = int(10 ** rng.uniform(2.3, 5)), int(10 ** rng.uniform(1.2, 3.7))
        r = int(rng.choice([1, 2, 3, 5, 10, 20, 50]))
        fits = _ENTRIES[0] < n * d < _ENTRIES[1] and n * d * min(n, d) <= _WORK
        if fits and r <= min(n, d) // 2:
            alpha, dtype = float(rng.choice([0.3, 0.7, 1.0, 2.0])), rng.choice(["f8", "f8", "f4"])
            shapes.append((n, d, r, alpha, str(dtype), 1))
    return shapes


def rows_of(n, d, alpha, dtype, density):
    """Rows of a shape; sparse ones are counts whose columns differ in how often they are used."""
    if density == 1:
        return make_power_law(n, d, alpha=alpha, random_state=0).astype(dtype)
    rng = np.random.default_rng(0)
    likely = 1 / np.sqrt(1 + np.arange(d))
    size = int(n * d * density)
    columns = rng.choice(d, size, p=likely / likely.sum())
    X = sp.coo_array((rng.exponential(size=size), (rng.integers(n, size=size), columns)), (n, d))
    return X.tocsr().astype(dtype)


def peers_of(X, r):
    """Every solver of scikit-learn, and gensim, that takes the rows and so many components."""
    n, d = X.shape
    peers = {"covariance_eigh": PCA(r, svd_solver="covariance_eigh")}
    if d > 5_000:
        peers = {}
    peers["arpack"] = PCA(r, svd_solver="arpack", random_state=0)
    if sp.issparse(X):
        peers["TruncatedSVD"] = TruncatedSVD(r, random_state=0)
        if has_gensim():
            peers["gensim"] = Gensim(r)
        return peers
    if n * d * min(n, d) <= _FULL_SVD:
        peers["full"] = PCA(r, svd_solver="full")
    peers["randomized"] = PCA(r, svd_solver="randomized", random_state=0)
    peers["IncrementalPCA"] = IncrementalPCA(r, batch_size=max(64, r))
    return peers


class Excess:
    """Error of reconstruction beyond the least possible, of bases of some rows."""

    def __init__(self, X, r):
        self.X, self.mean = X, np.asarray(X.mean(axis=0), dtype=np.float64).ravel()
        squares = X.multiply(X).sum() if sp.issparse(X) else np.einsum("ij,ij", X, X, dtype=float)
        self.scatter = float(squares) - X.shape[0] * float(self.mean @ self.mean)
        G = self._gram()
        self.best = float(np.sort(np.linalg.eigvalsh(G))[-r:].sum())

    def _gram(self):
        n, d = self.X.shape
        X = self.X.astype(np.float64)
        if d <= n and d <= 5_000:
            G = X.T @ X
            return (G.toarray() if sp.issparse(G) else G) - n * np.outer(self.mean, self.mean)
        G = X @ X.T
        G = G.toarray() if sp.issparse(G) else G
        a = X @ self.mean
        return G - a[:, None] - a + self.mean @ self.mean

    def __call__(self, V):
        """Excess of a basis, as a share of the least possible error."""
        V = V.astype(np.float64)
        kept = float(np.sum((self.X @ V.T - self.mean @ V.T) ** 2))
        return max((self.best - kept) / (self.scatter - self.best), 0.0)


def _seconds_of_scatter(X):
    """Of ``X.T @ X``, by the symmetric product of some rows; of sparse rows by scipy."""
    n, d = X.shape
    if sp.issparse(X):
        product, m = (lambda: X.T @ X), n
    else:
        m = min(n, 4_000)
        product = lambda Z=X[:m].T: (ssyrk if X.dtype == "f4" else dsyrk)(1.0, Z)  # noqa: E731
    if d > 5_000:
        return np.nan
    return interleaved({"scatter": product}, 2, process_time)[0]["scatter"][1] * n / m


def _ratio_of_transform(X, ours, peer, turns):
    """Time of our ``transform`` over that of the peer's."""
    calls = {"ours": lambda: ours.transform(X), "peer": lambda: peer.transform(X)}
    seconds = interleaved(calls, turns, process_time)[0]
    return seconds["ours"][1] / seconds["peer"][1]


def measured(shape, repeats, at_least):
    """The row of a shape, and a row for every estimator.

    Each is timed ``repeats`` times, or until our fits have taken ``at_least`` so many seconds.
    """
    n, d, r, alpha, dtype, density = shape
    X = rows_of(n, d, alpha, dtype, density)
    V = np.random.default_rng(0).standard_normal((r, d)).astype(dtype)
    peers = peers_of(X, r)
    models = {"StreamingPCA": StreamingPCA(r), **peers}
    calls = {name: (lambda m=model: m.fit(X)) for name, model in models.items()}
    calls["product"] = lambda: X @ V.T
    seconds, fitted = interleaved(calls, 1, process_time)
    seconds = {m: least for m, (_, least) in seconds.items()}
    near = {m: c for m, c in calls.items() if seconds[m] <= 3 * seconds["StreamingPCA"]}
    turns = max(repeats - 1, min(int(at_least / seconds["StreamingPCA"]), _MOST_TURNS))
    for m, (_, least) in interleaved(near, turns, process_time)[0].items():
        seconds[m] = min(seconds[m], least)
    excess = Excess(X, r)
    name = f"{n:,} x {d:,}, {r}, {dtype}, i^-{alpha:g}" + (density < 1) * f", {density:g} stored"
    lines = [
        {"rows": name, "estimator": m, "seconds": seconds[m], "excess": excess(f.components_)}
        for m, f in fitted.items()
        if m != "product"
    ]
    ours = lines[0]
    good = [x for x in lines[1:] if x["excess"] <= max(ours["excess"], GOOD_ENOUGH)]
    peer = min(good, key=lambda line: line["seconds"])
    row = {
        "rows": name,
        "seconds": ours["seconds"],
        "excess": ours["excess"],
        "fastest good peer": peer["estimator"],
        "its seconds": peer["seconds"],
        "its excess": peer["excess"],
        "ratio": ours["seconds"] / peer["seconds"],
        "of product": ours["seconds"] / seconds["product"],
        "bound": _seconds_of_scatter(X) / seconds["product"],
        "transform": _ratio_of_transform(
            X, fitted["StreamingPCA"], fitted[peer["estimator"]], turns
        ),
    }
    return row, lines


def main(quick=False):
    shapes = [(min(n, 1_000), min(d, 300), min(r, 20), *more) for n, d, r, *more in SHAPES]
    shapes = list(dict.fromkeys(shapes)) if quick else SHAPES
    rows, lines = run(shapes, quick)
    table("solvers_all", lines)
    print()
    table("solvers", rows)
    ratios = np.array([row["ratio"] for row in rows])
    print(f"geometric mean of the ratios: {mean_of(ratios):.2f}")
    least = [np.fmin(1, row["bound"] / row["of product"]) for row in rows]
    print(
        "and if our time were that of the symmetric product alone, where that is less: "
        f"{mean_of(ratios * least):.2f}"
    )
    print(f"and of transform: {mean_of(np.array([row['transform'] for row in rows])):.2f}")
    print("\nshapes that are drawn")
    others, _ = run(drawn(3 if quick else _DRAWN), quick)
    table("solvers_drawn", others)
    for name, long in (("all", 0.0), ("5 ms or more", 5e-3), ("less", -5e-3)):
        of = [x["ratio"] for x in others if x["seconds"] * np.sign(long or 1) >= long]
        if of:
            print(
                f"{name}: {len(of)} shapes, geometric mean {mean_of(np.array(of)):.2f}, "
                f"{np.sum(np.array(of) > ABOVE)} above {ABOVE}, largest {max(of):.2f}"
            )

    def draw(ax):
        ax.barh([row["rows"] for row in rows], ratios)
        ax.axvline(1, color="0.5")
        ax.set(xlabel="seconds over those of the fastest good peer")
        ax.tick_params(axis="y", labelsize=6)
        ax.invert_yaxis()

    picture("solvers", draw)


def mean_of(ratios):
    """Geometric mean."""
    return np.exp(np.log(ratios).mean())


def run(shapes, quick):
    """Rows of shapes, and of all estimators; the first are printed at once."""
    rows, lines = [], []
    measured((200, 20, 2, 1.0, "f8", 1), 2, 0)  # first fits import what they need, and took peers
    # that were five times as slow then out of the later turns
    for shape in shapes:
        row, of_shape = measured(shape, *((2, 0) if quick else (3, _SECONDS)))
        rows.append(row)
        lines += of_shape
        print(
            *(v if isinstance(v, str) else f"{v:.3g}" for v in row.values()), sep="  ", flush=True
        )
    print()
    return rows, lines
