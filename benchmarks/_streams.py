"""What the scenarios of Narayanamurthy et al. share: sizes, errors batch by batch.

Error of a batch: sine of the largest angle to P_j, the leading singular vectors of its complete
rows, as the paper defines its target.
"""

from time import process_time

import numpy as np

from fedpca_sklearn import subspace_distance

RANK, BATCH, N_FEATURES = 30, 60, 1000
# Parameters of the paper: about the origin, by least squares, by the last batch alone.
PAPER = {"forgetting_factor": 0.0, "fill": "subspace", "center": False}
SHOWN = (1, 2, 3, 5, 10, 20, 25, 26, 27, 28, 30, 40, 50)


def targets(stream):
    """P_j of every batch."""
    batches = np.split(stream.low_rank, len(stream.low_rank) // BATCH)
    return [np.linalg.svd(rows, full_matrices=False)[2][:RANK] for rows in batches]


def no_lev(stream):
    """Largest no-lev of the paper: singular value r + 1 over r of a batch."""
    batches = np.split(stream.low_rank, len(stream.low_rank) // BATCH)
    values = [np.linalg.svd(rows, compute_uv=False) for rows in batches]
    return max(s[RANK] / s[RANK - 1] for s in values)


def errors(model, stream, P):
    """Error of a model after every batch, and processor seconds without those of measuring it."""
    result, seconds = [], 0.0
    for j, wanted in enumerate(P):
        before = process_time()
        model.partial_fit(stream.X[j * BATCH : (j + 1) * BATCH])
        seconds += process_time() - before
        result.append(subspace_distance(model.components_, wanted))
    return np.array(result), seconds


def shown(line):
    """Columns of a table: the error after some of the batches."""
    return {f"batch {j}": line[j - 1] for j in SHOWN if j <= len(line)}


def first_below(line, bound):
    """Number of the first batch with an error below a bound; None if there is none."""
    below = np.flatnonzero(np.asarray(line) < bound)
    return int(below[0]) + 1 if len(below) else None


def draw_lines(ax, lines, title):
    """Errors by batch on a logarithmic scale."""
    for name, line in lines.items():
        ax.semilogy(1 + np.arange(len(line)), np.maximum(line, 1e-15), label=name)
    ax.set(xlabel=f"batch of {BATCH} rows", ylabel="subspace error", title=title)
    ax.legend(fontsize=7)
