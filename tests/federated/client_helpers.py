"""Rows of clients that come in some calls, drawn by hypothesis."""

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from helpers import client_sizes, unlike_sites
from hypothesis import strategies as st


class Drawn(NamedTuple):
    """All rows, with their labels, weights if there are any, and the call that each comes with."""

    X: np.ndarray
    clients: np.ndarray
    weight: np.ndarray | None
    call: np.ndarray
    mean: float
    sparse: bool

    def calls(self):
        """Rows and options of each call, and which rows have come by then, and their weights."""
        for time in sorted(set(self.call.tolist())):
            now, seen = self.call == time, self.call <= time
            given = {"clients": self.clients[now]}
            if self.weight is not None:
                given["sample_weight"] = self.weight[now]
            rows = sp.csc_array(self.X[now]) if self.sparse else self.X[now]
            yield rows, given, seen, None if self.weight is None else self.weight[seen]


WEIGHTS = {
    "none": lambda rng, n: None,
    "whole": lambda rng, n: rng.integers(1, 4, n),
    "zeros": lambda rng, n: np.maximum(rng.integers(0, 3, n), np.arange(n) == 0).astype(float),
    "fractions": lambda rng, n: rng.uniform(0.1, 3, n),
}


@st.composite
def rows_of_clients(draw, d, weights=("none", "fractions"), means=(0.0, 1e8), sparse=False):
    """Clients at +5 and -5 and their mean, of any numbers of rows, in up to five calls."""
    sizes, seed = draw(client_sizes), draw(st.integers(0, 2**20))
    rng, mean = np.random.default_rng(seed), draw(st.sampled_from(means))
    X, clients = unlike_sites(rng, sizes, draw(d) if hasattr(d, "example") else d)
    sparse = sparse and draw(st.booleans())
    X = X * (rng.random(X.shape) < 0.3) if sparse else X + mean
    weight = WEIGHTS[draw(st.sampled_from(weights))](rng, len(X))
    call = rng.integers(0, draw(st.integers(1, 5)), len(X))
    call[0] = 0  # which has a weight
    return Drawn(X, clients, weight, call, mean, sparse)
