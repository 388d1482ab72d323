"""Number of directions kept, rows of a block, and the memory that updates take."""

from __future__ import annotations

import numpy as np

from .slices import rows_within

# Up to this many features all directions are kept, and sparse rows are made dense.
SMALL_DIMENSION = 256

# Up to this many rows, or columns, of a stack its leading directions are found all at once.
EXACT_ORDER = 1024


def auto_oversampling(n_components: int) -> int:
    """Directions kept beyond the k requested ones: 1.25 k, at least 10."""
    return max(10, -(-5 * n_components // 4))


def auto_block_size(max_keep: int | None, n_features: int, sparse: bool) -> int:
    """Rows updated at once, near the flop optimum of the route that such a block takes.

    Dense: Gram and rotation cost d (4 k + b + 2 k^2 / b) a row, least at b = 1.4 k and flat to
    1.8 k. Small d: the d x d eigenproblem is spread over 8 d rows. Sparse: products cost the same
    however the rows are cut, so blocks are as large as the Krylov basis allows.
    """
    if n_features <= SMALL_DIMENSION:
        return max(64, 8 * n_features)
    if max_keep is None:
        return 512
    if sparse and 4 * max_keep < n_features:
        return 2**15
    return max(64, 7 * max_keep // 4)


def columns_at_once(n_rows: int) -> int:
    """Columns of a dense stack of rows that are worked on at once, so that they stay in cache."""
    return rows_within(n_rows, least=256)


def peak_bytes(
    k: int, block_size: int, n_features: int, itemsize: int, center: bool, solver: str
) -> int:
    """Peak memory of dense updates with k directions kept, see `StreamingPCA.memory_bytes`."""
    d, R = n_features, k + block_size + center
    bases = 2 * itemsize * k * d
    vectors, buffers = 8 * 8 * d, 2**17
    if d <= R:  # a stack in float64, its Gram matrix and eigenvectors
        return 8 * R * d + 8 * d * d + max(8 * d * d + bases // 2, bases) + vectors + buffers
    if solver == "qr":  # a stack in float64 that becomes Q, a basis in float64 beside those kept
        return 8 * R * d + 8 * 3 * R * R + 8 * k * d + bases * itemsize // 8 + vectors + buffers
    chunk = itemsize * R * min(d, columns_at_once(R))
    return bases + chunk + 8 * 2 * R * (R + k) + vectors


def kept_directions(n_components: int, n_features: int, oversampling: int | None = None) -> int:
    """Directions kept internally: all while d is small, else with oversampling."""
    if oversampling is None:
        if n_features <= SMALL_DIMENSION:
            return n_features
        oversampling = auto_oversampling(n_components)
    return min(n_components + oversampling, n_features)


def rank_for_fraction(singular_values: np.ndarray, scatter: float, fraction: float) -> int:
    """Smallest number of directions that explain more than a fraction of the scatter."""
    largest = singular_values.max(initial=0.0) or 1.0  # squares of tiny values vanish
    explained = np.cumsum((singular_values / largest) ** 2)
    wanted = fraction * (scatter / largest / largest)
    return min(int(np.searchsorted(explained, wanted, side="right")) + 1, len(singular_values))
