"""Means of projection matrices in factored form."""

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import (
    random_basis,
    sine,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from projection_helpers import assert_orthonormal, examples

from fedpca_sklearn import (
    Subspace,
)
from fedpca_sklearn._kernels import linalg
from fedpca_sklearn._kernels.rows import centred_product
from fedpca_sklearn.summary._projection_mean import ProjectionMean
from fedpca_sklearn.summary._rayleigh_ritz import along


@examples
@given(
    calls=st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=6),
    max_keep=st.sampled_from([3, 8, 30]),
    seed=st.integers(0, 2**20),
)
def test_what_was_cut_off_is_positive_and_within_the_bound(calls, max_keep, seed):
    rng = np.random.default_rng(seed)
    d, mean, total, exact = 30, ProjectionMean.empty(30), 0.0, np.zeros((30, 30))
    for ranks in calls:
        bases = [random_basis(rng, r, d) for r in ranks]
        weights = rng.uniform(0.1, 5, len(ranks))
        parts = [Subspace(V, np.zeros(len(V)), np.zeros(d), 1, 0) for V in bases]
        mean = mean.add(parts, weights, max_keep)
        exact += sum((w * V.T @ V for w, V in zip(weights, bases, strict=True)), np.zeros((d, d)))
        total += weights.sum()
        assert_allclose(mean.weight, total)
        assert len(mean.vectors) == len(mean.values) <= max_keep
        assert_orthonormal(mean.vectors)
        assert np.all(np.diff(mean.values) <= 0)
        cut = exact / (total or 1) - (mean.vectors.T * mean.values) @ mean.vectors
        values = np.linalg.eigvalsh(cut)
        assert values[0] >= -1e-12
        assert values[-1] <= mean.dropped + 1e-12
        if max_keep == d:
            assert mean.dropped <= 1e-12


def test_many_projections_of_few_features_take_a_small_eigenproblem(monkeypatch):
    rng = np.random.default_rng(4)
    bases = [random_basis(rng, 5, 12) for _ in range(300)]
    parts = [Subspace(V, np.zeros(5), np.zeros(12), 1, 0) for V in bases]
    orders, eigh_top = [], linalg.eigh_top

    def counted(G, max_keep):
        orders.append(len(G))
        return eigh_top(G, max_keep)

    monkeypatch.setattr(linalg, "eigh_top", counted)
    mean = ProjectionMean.empty(12).add(parts, np.ones(300), 12)
    assert max(orders) <= 24
    found = (mean.vectors.T * mean.values) @ mean.vectors
    assert_allclose(found, np.mean([V.T @ V for V in bases], axis=0), atol=1e-13)


def test_directions_of_few_columns_are_averaged_as_all_others():
    rng = np.random.default_rng(0)
    d, mean, exact, parts = 60, ProjectionMean.empty(60), np.zeros((60, 60)), []
    for i in range(5):
        V = np.zeros((3, d))
        V[:, 10 * i : 10 * i + 15] = random_basis(rng, 3, len(V[0, 10 * i : 10 * i + 15]))
        parts.append(Subspace(V, np.zeros(3), np.zeros(d), 1, 0))
        exact += V.T @ V / 5
    for group in (parts[:1], parts[1:3], parts[3:]):
        mean = mean.add(group, [1.0] * len(group), d)
    assert_allclose((mean.vectors.T * mean.values) @ mean.vectors, exact, atol=1e-12)
    assert_array_equal(np.any(mean.vectors != 0, axis=0), np.diag(exact) > 0)


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_a_summary_along_directions_has_the_scatter_along_them(rows):
    rng = np.random.default_rng(1)
    total = Subspace.from_rows(rng.standard_normal((40, 9)), 0)
    V, factor = random_basis(rng, 4, 9), 0.1 * rng.standard_normal((rows, 4))
    part = along(total, V, factor)
    S = V.T @ (factor.T @ factor) @ V
    assert_orthonormal(part.components)
    assert sine(part.components, V) <= 1e-12
    C = part.components
    assert_allclose(C @ S @ C.T, np.diag(part.singular_values**2), atol=1e-12)
    assert np.all(np.diff(part.singular_values) <= 0)
    assert part.n_components == 4
    assert part.scatter == total.scatter
    assert part.n_samples == 40
    assert_array_equal(part.mean, total.mean)


@pytest.mark.parametrize("d", [5, 300])
def test_rows_are_centred_before_they_are_projected(d):
    rng = np.random.default_rng(2)
    X = rng.integers(-9, 9, (1500, d)) + 2.0**40  # so that all differences are exact
    mean, basis = np.full(d, 2.0**40 + 0.5), rng.standard_normal((d, 3))
    Z = centred_product(X, mean, basis)
    assert_allclose(Z, (X - 2.0**40 - 0.5) @ basis, rtol=1e-12, atol=1e-12)
    sparse = sp.csr_array(rng.integers(0, 2, (50, d)) * 1.0)
    Z = centred_product(sparse, np.full(d, 0.5), basis)
    assert_allclose(Z, (sparse.toarray() - 0.5) @ basis, atol=1e-12 * d)
