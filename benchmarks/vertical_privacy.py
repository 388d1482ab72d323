"""Private left vectors of columns: what no mechanism can do, and what directions cost.

Row-level neighbours, (epsilon, 1e-6), one direction of 20 features at four owners, rows of norm up
to 1, whose first direction has a third of the variance. "any mechanism": the largest mean cosine
between a private vector with one number a row and the left vector, for rows b_j v with random
signs b_j (docs/privacy.md has the proof). "left vector" and "direction, columns": four rounds of
the power method on columns, with Gaussian noise on the sum of the owners' products. "direction,
rows": `AnalyzeGauss` of the same budget where the same numbers are held as rows. Means of runs.
"""

import math

import numpy as np

from benchmarks._tools import table
from fedpca_sklearn import AnalyzeGauss, FederatedPCA
from fedpca_sklearn.privacy._gaussian import mu_of

DELTA, D, OWNERS, ROUNDS, C = 1e-6, 20, 4, 4, 5.0


def largest_cosine(epsilon, delta=DELTA):
    """sqrt(t) for the largest distance t of the laws of a release on two rows."""
    return math.sqrt((math.exp(epsilon) - 1 + 2 * delta) / (math.exp(epsilon) + 1))


def rows(n, rng):
    """Rows within the unit ball, a third of whose variance is along the first axis."""
    X = rng.standard_normal((n, D)) * np.sqrt([0.5, *[1 / (D - 1)] * (D - 1)])
    X /= np.maximum(1.0, np.linalg.norm(X, axis=1))[:, None]
    return X


def product(X, u):
    """X w for w = X^T u, of which each owner shortens its own part so that |w| <= C.

    A row of norm up to 1 in the place of another moves w by up to 2 |u_j|, also after it was
    shortened, its own entry of X w by up to 2 C, and all others together by up to 2 |u_j| |X| <= 2
    |u_j| sqrt(n).
    """
    w = (X.T @ u).reshape(OWNERS, -1)
    most = C / math.sqrt(OWNERS)
    w *= most / np.maximum(np.linalg.norm(w, axis=1), most)[:, None]
    return X @ w.ravel()


def sensitivity(u):
    """By how much a replaced row moves the product with a public vector, at most."""
    return 2 * C + 2 * np.abs(u).max() * math.sqrt(len(u))


def by_columns(X, epsilon, rng):
    """Left vector and direction from rounds in which the sum over the owners of columns is noisy.

    Nobody but an owner sees its part of X^T u, and the direction is made of these parts.
    """
    n = len(X)
    mu = mu_of(epsilon, DELTA) / math.sqrt(ROUNDS)
    u = rng.standard_normal(n)
    for _ in range(ROUNDS):
        u /= np.linalg.norm(u)
        u = product(X, u) + sensitivity(u) / mu * rng.standard_normal(n)
    w = X.T @ u  # each owner has its part of it, and keeps it
    return u / np.linalg.norm(u), w / np.linalg.norm(w)


def main(quick=False):
    found = []
    for n in (1000,) if quick else (1000, 10_000, 100_000, 1_000_000):
        for epsilon in (1.0,) if quick else (1.0, 4.0):
            runs = []
            for seed in range(2 if quick else 5):
                rng = np.random.default_rng(seed)
                X = rows(n, rng)
                values, V = np.linalg.eigh(X.T @ X)
                v = V[:, -1]
                u, w = by_columns(X, epsilon, rng)
                private = AnalyzeGauss(epsilon, DELTA, 1.0, mean="fixed")
                pca = FederatedPCA(1, mechanism=private, n_clients=1, random_state=seed).fit(X)
                left = X @ v / math.sqrt(values[-1])
                cosines = abs(u @ left), abs(w @ v), abs(pca.components_[0] @ v)
                runs.append(cosines)
            left, columns, by_rows = np.mean(runs, axis=0)
            found.append(
                {
                    "rows": n,
                    "epsilon": epsilon,
                    "any mechanism": largest_cosine(epsilon),
                    "left vector": left,
                    "direction, columns": columns,
                    "direction, rows": by_rows,
                }
            )
    table("vertical_privacy", found)
    return found


if __name__ == "__main__":
    main()
