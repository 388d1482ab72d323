"""Triangular factors of rows and their merge; means of projection matrices in factored form."""

import numpy as np
import pytest
from helpers import peak_bytes, random_basis
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from projection_helpers import assert_orthonormal
from triangle_helpers import examples, seeds

from fedpca_sklearn import Subspace
from fedpca_sklearn.summary._projection_mean import ProjectionMean
from fedpca_sklearn.summary._triangle import triangle_of_rows


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_are_not_copied_as_a_whole(dtype, weighted):
    X = np.random.default_rng(29).standard_normal((100_000, 8)).astype(dtype)
    w = np.full(len(X), 2.0) if weighted else None
    triangle_of_rows(X[:10], w if w is None else w[:10])
    assert peak_bytes(lambda: triangle_of_rows(X, w)) < 10 * 1000 * 8 * 8  # a few blocks


# -------------------------------------------------------------------------- means of projections


def of_basis(V):
    return Subspace(V, np.zeros(len(V)), np.zeros(V.shape[1]), 1, 0)


@examples
@given(
    calls=st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=6),
    max_rank=st.sampled_from([3, 8, 30]),
    used=st.sampled_from([8, 30]),
    seed=seeds,
)
def test_what_was_cut_off_is_positive_and_within_the_bound(calls, max_rank, used, seed):
    """Of bases of all columns, or of some columns each."""
    rng, d = np.random.default_rng(seed), 30
    mean, total, exact = ProjectionMean.empty(d), 0.0, np.zeros((d, d))
    for i, ranks in enumerate(calls):
        bases = [np.zeros((r, d)) for r in ranks]
        for V in bases:
            V[:, 4 * i % 20 :][:, :used] = random_basis(rng, len(V), min(used, d - 4 * i % 20))
        weights = rng.uniform(0.1, 5, len(ranks))
        mean = mean.add([of_basis(V) for V in bases], weights, max_rank)
        exact += sum((w * V.T @ V for w, V in zip(weights, bases, strict=True)), np.zeros((d, d)))
        total += weights.sum()
        assert_allclose(mean.weight, total)
        assert len(mean.vectors) == len(mean.values) <= max_rank
        assert_orthonormal(mean.vectors)
        assert np.all(np.diff(mean.values) <= 0)
        kept = (mean.vectors.T * mean.values) @ mean.vectors
        values = np.linalg.eigvalsh(exact / (total or 1) - kept)
        assert values[0] >= -1e-12
        assert values[-1] <= mean.dropped + 1e-12
        assert not mean.vectors[:, np.diag(exact) == 0].any()
        if max_rank == d:
            assert mean.dropped <= 1e-12
