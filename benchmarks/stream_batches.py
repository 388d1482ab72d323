"""A row of a stream, by rows a call: ways to feed `StreamingPCA`, and ten lines of numpy.

Ten components of the power law i^-1, rotated; the seed draws both (``--seed``). Every way goes
through the same rows, a batch a call, until they end or its time is over, and reads the components
at the end. Times are of the processor, for a row, each the least of several rounds in which all
ways take turns.

- products: written by hand, a shifted sum of products and one eigenproblem at the end; rows are
  multiplied 256 at a time. "of it checks": the part of scikit-learn's `validate_data`.
- read: `partial_fit` and then `components_`, each time.
- half-life: ``half_life="1h"`` with times, a row a second.
- ten clients: `FederatedPCA.partial_fit`, the clients in turn.
- IncrementalPCA: scikit-learn's, which takes no fewer rows a call than components.

Other streams are drawn, by the seed: 20 to 1,000 features, 1 to 100 components, 1 to 3,000 rows a
call, dense in both precisions and sparse, with other powers.
"""

from functools import partial
from time import process_time

import numpy as np
import scipy.sparse as sp
from scipy.linalg import eigh
from sklearn.base import BaseEstimator
from sklearn.decomposition import IncrementalPCA
from sklearn.utils.validation import validate_data

from benchmarks._tools import table
from fedpca_sklearn import FederatedPCA, StreamingPCA, make_power_law

RANK = 10
FEATURES, ROWS_A_CALL = (20, 64, 200, 400, 784, 2000), (1, 2, 10, 100, 1000)
# Entries of the rows of a stream, its most rows, and the seconds after which no way begins a call.
ENTRIES, MOST_ROWS, SECONDS = 2**24, 40_000, 0.25
# Rows of a product by hand, at least.
AT_ONCE = 256
TIMES = np.datetime64("2026-01-01") + np.arange(MOST_ROWS).astype("timedelta64[s]")


class Products(BaseEstimator):
    """The components by hand: a sum of products about the first row, and one eigenproblem."""

    n, of_checks = 0, 0.0

    def __init__(self, n_components=RANK):
        self.n_components = n_components

    def partial_fit(self, X):
        """Take rows, whose products are added some at a time."""
        start = process_time()
        X = validate_data(self, X, accept_sparse="csr", reset=not self.n)
        self.of_checks += process_time() - start
        if not self.n:
            self.shift, d, self.collected = None if sp.issparse(X) else X[0].copy(), X.shape[1], []
            self.sum, self.products = np.zeros(d), np.zeros((d, d))
        self.n += X.shape[0]
        self.collected.append(X if self.shift is None else X - self.shift)
        if sum(Y.shape[0] for Y in self.collected) >= AT_ONCE:
            self.multiply()

    def multiply(self):
        """Add the products of the rows collected so far."""
        joined = np.concatenate if self.shift is not None else sp.vstack
        Y = joined(self.collected) if self.collected[1:] else self.collected[0]
        self.sum += np.asarray(Y.sum(axis=0)).ravel()
        self.products += Y.T @ Y
        self.collected.clear()

    @property
    def components_(self):
        """Leading eigenvectors of the scatter matrix."""
        if self.collected:
            self.multiply()
        S, d = self.products - np.outer(self.sum, self.sum / self.n), len(self.sum)
        return eigh(S, subset_by_index=(d - self.n_components, d - 1))[1][:, ::-1].T


def by_partial_fit(model, batches):
    for rows in batches:
        model.partial_fit(rows)
    return model.components_


def with_reads(batches):
    model = StreamingPCA(RANK)
    for rows in batches:
        components = model.partial_fit(rows).components_
    return components


def with_times(batches):
    model, n = StreamingPCA(RANK, half_life="1h"), 0
    for rows in batches:
        model.partial_fit(rows, times=TIMES[n : n + len(rows)])
        n += len(rows)
    return model.components_


def of_clients(batches):
    model = FederatedPCA(RANK)
    for i, rows in enumerate(batches):
        model.partial_fit(rows, clients=np.full(len(rows), i % 10))
    return model.components_


WAYS = {
    "partial_fit": lambda batches: by_partial_fit(StreamingPCA(RANK), batches),
    "fit(iterable)": lambda batches: StreamingPCA(RANK).fit(batches).components_,
    "read": with_reads,
    "half-life": with_times,
    "ten clients": of_clients,
    "IncrementalPCA": lambda batches: by_partial_fit(IncrementalPCA(RANK), batches),
}


def fed(way, X, size, seconds):
    """Seconds of the processor for a row, and the components after them."""
    given, start = 0, process_time()

    def batches():
        nonlocal given
        while given < X.shape[0] and not (given and process_time() - start > seconds):
            given += size
            yield X[given - size : given]

    components = way(batches())
    return (process_time() - start) / given, components


def measured(X, size, seconds=SECONDS, rounds=3):
    """Least seconds for a row by every way, and the checks' share of that by hand."""
    ways = {name: way for name, way in WAYS.items() if size >= RANK or name != "IncrementalPCA"}
    least, of_checks = dict.fromkeys(["products", *ways], np.inf), 0.0
    for _ in range(rounds):
        by_hand = Products()
        found, _ = fed(partial(by_partial_fit, by_hand), X, size, seconds)
        if found < least["products"]:
            least["products"], of_checks = found, by_hand.of_checks / by_hand.n / found
        for name, way in ways.items():
            least[name] = min(least[name], fed(way, X, size, seconds)[0])
    return least, of_checks


def drawn(seed, count):
    """Rows, components and rows a call of streams drawn at random."""
    rng = np.random.default_rng([20261127, seed])
    for _ in range(count):
        d, size = int(20 * 50 ** rng.random()), int(3000 ** rng.random())
        r = int(min(100 ** rng.random(), d // 3))
        kind = rng.choice(["float64", "float32", "sparse"])
        n = min(MOST_ROWS, ENTRIES // d)
        if kind == "sparse":
            density = 10 ** rng.uniform(-2.5, -1)
            X = sp.random(n, d, density, format="csr", random_state=int(rng.integers(2**31)))
        else:
            alpha = rng.choice([0.3, 1.0, 2.0])
            X = make_power_law(n, d, alpha=alpha, random_state=seed).astype(kind)
        yield kind, X, r, size


def of_drawn(seed, count, seconds=SECONDS):
    """A row for each drawn stream: times the products by hand, by either way."""
    rows = []
    for kind, X, r, size in drawn(seed, count):
        ways = {
            "products": lambda batches, r=r: by_partial_fit(Products(r), batches),
            "partial_fit": lambda batches, r=r: by_partial_fit(StreamingPCA(r), batches),
            "fit(iterable)": lambda batches, r=r: StreamingPCA(r).fit(batches).components_,
        }
        least = dict.fromkeys(ways, np.inf)
        for _ in range(3):
            for name, way in ways.items():
                least[name] = min(least[name], fed(way, X, size, seconds)[0])
        by_hand = least.pop("products")
        shape = {"rows": kind, "features": X.shape[1], "r": r, "rows a call": size}
        times = {name: s / by_hand for name, s in least.items()}
        rows.append({**shape, "products": 1e6 * by_hand, **times})
    print("\nDrawn streams: microseconds a row of the products by hand, and times that")
    table("stream_batches_drawn", rows)
    for name in ("partial_fit", "fit(iterable)"):
        times = np.array([row[name] for row in rows])
        print(f"{name}: geometric mean {np.exp(np.log(times).mean()):.2f}, most {times.max():.2f}")


def main(quick=False, seed=0):
    features, sizes = (FEATURES[:2], ROWS_A_CALL[::2]) if quick else (FEATURES, ROWS_A_CALL)
    by_row, ratios = [], []
    for d in features:
        n = min(1000 if quick else MOST_ROWS, ENTRIES // d // 1000 * 1000)
        X = make_power_law(n, d, alpha=1.0, random_state=seed)
        for size in sizes:
            least, of_checks = measured(X, size, *((0.01, 1) if quick else ()))
            by_hand, at = least["products"], {"features": d, "rows a call": size}
            least = {name: least.get(name, np.nan) for name in WAYS}
            us = {name: 1e6 * seconds for name, seconds in least.items()}
            by_row.append({**at, "products": 1e6 * by_hand, "of it checks": of_checks, **us})
            ratios.append({**at, **{name: s / by_hand for name, s in least.items()}})
    print(f"Microseconds a row; seed {seed}")
    table("stream_batches", by_row)
    print("\nTimes the products by hand")
    table("stream_batches_ratios", ratios)
    of_drawn(seed, *((3, 0.01) if quick else (24,)))
