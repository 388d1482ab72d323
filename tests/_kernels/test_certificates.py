"""Nystroem's approximation and its certificates, beside numpy's eigenvectors of whole matrices."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import chi2, ortho_group

from fedpca_sklearn import subspace_distance
from fedpca_sklearn._kernels.certificates import (
    FAILURE,
    certificate_of_cut,
    certificate_of_products,
    largest_eigenvalue,
)
from fedpca_sklearn._kernels.subspace_passes import ProductSpace, nystrom, nystrom_factor


def matrix(values, seed=0):
    """A symmetric matrix with these eigenvalues, and its eigenvectors as rows."""
    Q = ortho_group.rvs(len(values), random_state=seed)
    return (Q.T * values) @ Q, Q


def space_of(S, start, n_products):
    space = ProductSpace(start)
    for _ in range(n_products):
        space.add(space.block @ S)
    return space


def certified(S, start, n_products, rank, seed=0, n_probes=8):
    """Sine of the angle to numpy's eigenvectors, and the certificate, which holds."""
    probes = np.random.default_rng(seed).standard_normal((n_probes, len(S)))
    space = space_of(S, np.concatenate([start, probes]), n_products)
    trace = float(np.trace(S))
    found = certificate_of_products(
        space.basis, space.products, len(start), probes, n_products, rank, trace, 1e-14 * trace
    )
    lam, W = (array[..., ::-1] for array in np.linalg.eigh(S))
    error = subspace_distance(nystrom(space.basis, space.products)[0][:rank], W[:, :rank].T)
    assert error <= found.sine
    return error, found, lam[:rank]


def test_the_approximation_never_exceeds_the_matrix_and_is_it_on_the_basis():
    S, _ = matrix(0.8 ** np.arange(30))
    V = np.linalg.qr(np.random.default_rng(0).standard_normal((30, 4)))[0].T
    F = nystrom_factor(V, V @ S)
    assert np.linalg.eigvalsh(S - F.T @ F).min() > -1e-14
    assert_allclose(F.T @ (F @ V.T), S @ V.T, atol=1e-14)
    W, s = nystrom(V, V @ S)
    assert_allclose(W @ W.T, np.eye(4), atol=1e-13)
    assert_allclose((W.T * s**2) @ W, F.T @ F, atol=1e-13)
    S, Q = matrix(np.r_[3.0, 2.0, 1.0, np.zeros(9)])  # directions without variance do no harm
    W, s = nystrom(Q[:5], Q[:5] @ S)
    assert_allclose(s, np.sqrt([3, 2, 1]), rtol=1e-12)
    assert subspace_distance(W, Q[:3]) < 1e-12
    assert len(nystrom(Q[3:6], np.zeros((3, 12)))[0]) == 0


def test_the_bound_of_a_cut_is_reached():
    # E of one direction and trace t, between the last kept and the next one
    gap, t = 2.0, 1.2
    angle = np.arccos(-t / gap) / 2
    x = np.array([np.cos(angle), np.sin(angle)])
    S = np.diag([3.0, 1.0]) + t * np.outer(x, x)
    error = subspace_distance(np.eye(2)[:1], np.linalg.eigh(S)[1][:, 1:].T)
    found = certificate_of_cut(np.array([3.0, 1.0]), 1, 2, 4.0 + t, 0.0)
    assert_allclose(found.sine, error, rtol=1e-12)
    assert_allclose(found.eigenvalues, [[3.0, 3.0 + t]])


@pytest.mark.parametrize("seed", range(10))
def test_no_cut_is_further_off_than_its_bound(seed):
    rng = np.random.default_rng(seed)
    A, Q = matrix(np.r_[np.sort(rng.uniform(1, 3, 4))[::-1], np.zeros(8)], seed)
    E, _ = matrix(rng.uniform(0, 0.1, 12) * (rng.random(12) < 0.3), seed + 100)
    values = np.linalg.eigvalsh(A)[::-1]
    best, vectors = (array[..., ::-1] for array in np.linalg.eigh(A + E))
    for rank in range(1, 5):
        found = certificate_of_cut(values[:4], rank, 12, np.trace(A + E), 1e-14)
        assert subspace_distance(Q[:rank], vectors[:, :rank].T) <= found.sine
        low, high = found.eigenvalues.T
        assert np.all((low <= best[:rank]) & (best[:rank] <= high))


@pytest.mark.parametrize(
    ("values", "rank", "d", "least", "most"),
    [
        ([1, 1, 1], 2, 5, np.inf, np.inf),  # nothing is known of equal values
        ([1, 1, 1], 4, 5, np.inf, np.inf),  # nor of no variance
        ([1, 1, 1], 3, 3, 0, 0),  # and all of all directions
        ([3, 2, 1], 2, 5, 0, 1e-13),
    ],
)
def test_what_a_cut_of_nothing_tells(values, rank, d, least, most):
    values = np.array(values, float)
    assert least <= certificate_of_cut(values, rank, d, values.sum(), 1e-14).sine <= most


@pytest.mark.parametrize("n_probes", [1, 8])
def test_probes_may_be_as_weak_as_the_quantile_of_chi_squared(n_probes):
    E, Q = matrix(np.r_[1.0, np.zeros(39)])
    probes = np.random.default_rng(0).standard_normal((n_probes, 40))
    least = np.sqrt(chi2.ppf(FAILURE, n_probes) / n_probes)  # of each component along Q[0]
    for size in (1.01 * least, 1.0):
        of_size = probes + np.outer(size - probes @ Q[0], Q[0])
        for n_products in (1, 2, 3):
            bound = largest_eigenvalue(lambda P: P @ E, of_size, n_products, 1e3)
            assert bound >= 1.0
    assert bound < 1.2


@pytest.mark.parametrize("n_products", [1, 2, 4])
def test_the_norm_of_what_is_left_is_bounded(n_products):
    for seed in range(15):
        rng = np.random.default_rng(seed)
        values = np.sort(rng.uniform(0, 1, 60) ** rng.uniform(0.5, 6))[::-1]
        E, _ = matrix(values, seed)
        probes, trace = rng.standard_normal((8, 60)), float(values.sum())
        bound = largest_eigenvalue(lambda P, E=E: P @ E, probes, n_products, trace)
        assert values[0] <= bound <= trace * (1 + 1e-12)
        assert n_products < 4 or bound < 3 * values[0]


def test_a_direction_that_the_start_has_missed_is_found_or_no_bound_is_stated():
    S, Q = matrix(np.r_[5.0, 4.0, 3.0, np.ones(97) * 0.5])
    for n_products in (1, 2, 3, 5):  # the leading direction is not among those of the start
        error, found, _ = certified(S, Q[1:6], n_products, 2)
        assert found.eigenvalues[0, 1] >= 5.0
    assert error < 1e-6
    assert found.sine == np.inf  # of what the start leaves, the largest eigenvalue is 5
    space = space_of(S, np.concatenate([Q[1:6], np.random.default_rng(0).random((8, 100))]), 5)
    again = nystrom(space.basis, space.products)[0][:6]
    assert certified(S, again, 3, 2, seed=1)[1].sine < 1e-9


def test_without_probes_the_trace_decides():
    S, Q = matrix(np.r_[5.0, 4.0, 0.01 * np.ones(18)])
    turned = np.linalg.qr((Q[:2] + 0.02 * Q[2:4]).T)[0].T
    error, found, _ = certified(S, turned, 1, 2, n_probes=0)
    assert 0 < error <= found.sine < 100 * error
    flat, Q = matrix(np.r_[5.0, 4.0, np.ones(98)])
    assert certified(flat, Q[:2], 1, 2, n_probes=0)[1].sine == np.inf
    assert certified(flat, Q[:2], 4, 2)[1].sine < 1e-10


def test_eigenvalues_are_between_their_bounds():
    S, Q = matrix(np.r_[4.0, 3.5, 3.0, np.linspace(1.5, 0.5, 297)])
    noise = 0.05 * np.random.default_rng(7).standard_normal((5, 300))
    start = np.linalg.qr((Q[:5] + noise).T)[0].T
    for n_products in range(1, 6):
        error, found, lam = certified(S, start, n_products, 3)
        low, high = found.eigenvalues.T
        assert np.all((low <= lam) & (lam <= high))
    assert (high - low).max() < 1e-6
    assert found.sine < 30 * error
