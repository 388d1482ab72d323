"""`VerticalFederatedPCA` by secure sums: products with the columns of all sites together.

A sum is what all sites have of one shape and what only matters added up: products of left vectors
with X_i X_i^T, whose sum is that of all columns, and the scatter. The keys of rows are no sum, they
are intersected. Nor are a site's part of the components and its mean: side by side they are the
result, so that a sum of them, each at its columns, would be the parts themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone

from ..vertical import PowerRounds, VerticalFederatedPCA
from ._columns import Parts, centred, fit_columns, parts_of, spanning
from ._estimators import are_too_large, site_work, until_nobody_is_lost
from ._matching import KEYS, OF_ROWS, ColumnRounds, Matched, bounded
from ._messages import Answer
from ._questions import RefusedError, Task
from ._secure_bounds import BOUNDS, Bounds, Summed, grids_of_products
from ._secure_fits import fit_by_sums, secure_work
from ._secure_site import Open
from ._secure_sums import SecureSums

# -------------------------------------------------------------------- at a site


@secure_work.register
def _(estimator: VerticalFederatedPCA) -> dict[str, Task]:
    if not isinstance(method := estimator._method(), PowerRounds):
        raise ValueError(
            'method must be "power" with secure sums: the vectors of other methods do not add up, '
            f"got {estimator.method!r}."
        )
    plain, center, rank = site_work(estimator), estimator.center, estimator.n_components

    def bounds(site, X):
        scatter = float(np.square(centred(X, center)[0]).sum())
        if are_too_large(0.0, scatter / len(X), X.dtype):
            raise RefusedError("values that are too large")
        return {BOUNDS: Bounds.of_numbers(len(X), len(X), scatter=scatter).vector}

    def times_columns(site, X, V):
        return {"products": plain["times_columns"].work(site, X, V)["message"]}

    def scatter(site, X):
        return {"scatter": np.array([np.square(centred(X, center)[0]).sum()])}

    def parts(site, X, U):
        found = parts_of(X, U, center, rank)
        return {"part": found["part"], "mean": found["mean"]}

    summed = partial(Summed, reads=OF_ROWS, matched=True, grids=grids_of_products)
    return {
        "keys": Open(plain["keys"].work, reads=KEYS),
        "columns_bound": Open(bounds, reads=OF_ROWS, matched=True),
        # one more than the rounds, for the scores
        "times_columns": summed(times_columns, method.n_rounds + 1),
        "scatter": summed(scatter),
        "parts": Open(parts, reads=OF_ROWS, matched=True, once=True),
    }


# -------------------------------------------------------------------- at the server


class SecureColumnRounds(ColumnRounds):
    """Rounds of secure sums about the rows that all sites have."""

    def __init__(self, sums: SecureSums, matched: Matched, rng: np.random.RandomState):
        super().__init__(sums.sites, matched, rng)
        self.sums = sums
        sums.begin(sums.sites.names.values())
        sums.announce("columns_bound", matched.keys)

    def sum(
        self, function: Any, clients: Sequence[tuple], broadcast: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the sum of the answers of all sites to a query."""
        self.n_rounds += 1
        return self.products(function.V)

    def products(self, V: np.ndarray) -> np.ndarray:
        """Left vectors times the columns of all sites, and these transposed."""
        shapes = {"products": V.shape}
        return self.sums.sum("times_columns", shapes, self.matched.keys, V)["products"]


def _parts(rounds: SecureColumnRounds, vectors: np.ndarray) -> Parts:
    """Scores and scatter by sums, and then the part of each site."""
    U, widths = spanning(vectors), rounds.widths
    scores = rounds.products(U)
    (scatter,) = rounds.sums.sum("scatter", {"scatter": (1,)}, rounds.matched.keys)["scatter"]

    def read(answer: Answer) -> tuple[np.ndarray, np.ndarray]:
        d = widths.get(answer.site)
        return bounded(answer, "part", (len(U), d)), bounded(answer, "mean", (d,))

    parts, means = zip(*rounds.ask("parts", read, U), strict=True)
    V = np.concatenate(parts, axis=1)
    return Parts(U, V, scores, np.concatenate(means), max(float(scatter), 0.0))


@fit_by_sums.register
def _(estimator: VerticalFederatedPCA, sums: SecureSums) -> VerticalFederatedPCA:
    def rounds(sites: Any, matched: Matched, rng: np.random.RandomState) -> SecureColumnRounds:
        return SecureColumnRounds(sums, matched, rng)

    return until_nobody_is_lost(lambda: fit_columns(clone(estimator), sums.sites, rounds, _parts))
