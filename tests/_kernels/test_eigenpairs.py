"""A few leading eigenpairs, beside those that were put in; and bases that are completed.

Nystroem's approximation and its certificates, beside numpy's eigenvectors of whole matrices.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chi2, ortho_group

from fedpca_sklearn import subspace_distance
from fedpca_sklearn._kernels import linalg
from fedpca_sklearn._kernels.certificates import (
    FAILURE,
    _sine,
    certificate_of_cut,
    certificate_of_products,
    largest_eigenvalue,
)
from fedpca_sklearn._kernels.linalg import (
    _few_pairs,
    _pairs_by_lanczos,
    block_krylov,
    complete_basis,
    eigh_top,
    n_above,
)
from fedpca_sklearn._kernels.subspace_passes import ProductSpace, nystrom, nystrom_factor

N = 300
E = ortho_group.rvs(N, random_state=0)
EPS = np.finfo(float).eps
ORDER = np.arange(1.0, N + 1)
KNOWN = {
    "slow": ORDER**-0.5,
    "decay": 1 / ORDER,
    "fast": ORDER**-3.0,
    "negative": np.concatenate([3 / ORDER[:40], np.linspace(0, -0.1, N - 40)]),
    "rank 40": np.concatenate([3 / ORDER[:40], np.zeros(N - 40)]),
}
REPEATED = np.repeat([9.0, 4.0, 1.0], [20, 30, N - 50])
RANK_3 = np.concatenate([[3.0, 2.0, 1.0], np.zeros(N - 3)])
UNCERTAIN = {  # to Lanczos's method
    "noise": np.linspace(2, 1, N),
    "steep": 10.0 ** -np.arange(N),
    "rank 3": RANK_3,
    "zero": np.zeros(N),
    "repeated": REPEATED,
}
BY_BLOCKS = {
    "decay": 1 / ORDER,
    "steep": 2.0 ** -np.arange(N),
    "repeated": REPEATED,
    "rank 3": RANK_3,
    "rank 11": np.concatenate([np.linspace(2, 1, 11), np.zeros(N - 11)]),
    "tiny": 1e-250 / ORDER,
    "zero": np.zeros(N),
}


def of_spectrum(lam):
    return (E * lam) @ E.T


# -------------------------------------------------------------------------- single vectors


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("count", [1, 5, 18])
@pytest.mark.parametrize("exponent", [-830, -500, 0, 830])
@pytest.mark.parametrize("spectrum", [*KNOWN, *UNCERTAIN])
def test_the_pairs_are_those_that_were_put_in_whatever_the_unit(spectrum, exponent, count, order):
    """LAPACK's evr lost six digits of the vectors below 2^-480; a triangle is all that is read."""
    lam = {**KNOWN, **UNCERTAIN}[spectrum]
    S, rounding = of_spectrum(lam), N * EPS * np.abs(lam).max()
    A = np.array(np.ldexp(S, exponent), order=order)
    A[np.triu_indices(N, 1)] = np.nan if abs(exponent) < 600 else 7.0
    before = A.copy()
    found, W = eigh_top(A, count)
    assert_array_equal(A, before)
    found, W = np.ldexp(found[:count], -exponent), W[:, :count]
    assert_allclose(found, lam[:count], atol=rounding)
    assert_allclose(W.T @ W, np.eye(count), atol=1e-13)
    assert_allclose(S @ W, W * found, atol=10 * rounding)


@settings(max_examples=25, deadline=None)
@given(
    times=st.lists(st.integers(1, 4), min_size=4, max_size=12),
    count=st.integers(1, 12),
    fall=st.floats(0.3, 0.95),
)
def test_eigenvalues_may_repeat_as_often_as_they_like(times, count, fall):
    head = np.repeat(fall ** np.arange(len(times)), times)
    lam = np.concatenate([head, head[-1] * 0.9 / np.arange(1, N - len(head) + 1)])
    found = eigh_top(of_spectrum(lam), count)[0][:count]
    assert_allclose(found, lam[:count], rtol=N * EPS / lam[count - 1])


@pytest.mark.parametrize("eigenvalue", [0.45, 0.5, 0.9, 1.0, 5.0, 1e3])
def test_a_direction_hidden_from_the_first_vector_is_not_missed(eigenvalue):
    start = np.random.default_rng(0).standard_normal(N)
    u = E[:, 0] - (E[:, 0] @ start) / (start @ start) * start
    u /= np.linalg.norm(u)
    across = np.eye(N) - np.outer(u, u)
    A = across @ of_spectrum(1 / ORDER) @ across + eigenvalue * np.outer(u, u)
    lam, W = eigh_top(A, 5)
    assert np.linalg.norm(u @ W) > 1 - 1e-12
    assert_allclose(lam, np.linalg.eigvalsh(A)[::-1][:5], rtol=1e-13, atol=N * EPS * eigenvalue)


def test_a_pair_that_was_missed_is_noticed(monkeypatch):
    A = of_spectrum(KNOWN["decay"])
    found, W = _pairs_by_lanczos(A, 5)
    others = _pairs_by_lanczos(A, 6)
    for missed in range(5):
        some = [np.delete(part, missed, axis=-1)[..., ::-1] for part in others]
        monkeypatch.setattr(linalg, "eigsh", lambda *a, some=some, **of: some)
        assert _pairs_by_lanczos(A, 5) is None
    monkeypatch.setattr(linalg, "eigsh", lambda *a, **of: (found[::-1], W[:, ::-1]))
    assert _pairs_by_lanczos(A, 5) is not None


# -------------------------------------------------------------------------- blocks of vectors


@pytest.mark.parametrize("spectrum", BY_BLOCKS)
def test_the_leading_pairs_are_those_of_the_operator(spectrum):
    lam, tol = BY_BLOCKS[spectrum], 1e-9
    A = of_spectrum(lam)
    for kept in (1, 5, 30):
        found, V = block_krylov(lambda B: A @ B, N, kept, kept, tol)
        rounding = N * EPS * lam[0]
        assert len(found) >= min(kept, np.sum(lam > 2 * rounding))
        assert_allclose(V.T @ V, np.eye(len(found)), atol=1e-13)
        # a residual of tol lam is an error of tol^2 lam^2 over the gap, at least lam / N here
        assert_allclose(found, lam[: len(found)], rtol=N * tol**2, atol=2 * rounding)
        residuals = np.linalg.norm(A @ V - V * found, axis=0)
        assert np.all(residuals <= 2 * np.maximum(tol * found, rounding))


# -------------------------------------------------------------------------- of a whole matrix

MANY_EQUAL = {
    "one level and a zero": np.eye(N) - 1 / N,
    "one level": np.eye(N),
    "two levels": np.diag(1.0 + (ORDER > 201)),
    "nearly one level": np.eye(N) - 1 / N + np.diag(1e-15 * ORDER),
}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize("S", MANY_EQUAL.values(), ids=MANY_EQUAL)
def test_equal_eigenvalues_are_all_found(S, count, overwrite):
    """LAPACK's bisection finds none, or some, of the last eigenvalues of I - 1/m."""
    lower = np.tril(S) + np.triu(np.full((N, N), np.nan), 1)  # only one triangle is read
    by_bisection = _few_pairs(np.asfortranarray(lower), count)
    assert by_bisection is None or len(by_bisection[0]) == count
    lam, W = eigh_top(np.asfortranarray(lower), count, overwrite=overwrite)
    lam, W = lam[:count], W[:, :count]
    assert_allclose(lam, np.linalg.eigvalsh(S)[::-1][:count], atol=1e-13)
    assert_allclose(S @ W, W * lam, atol=1e-13)
    assert_allclose(W.T @ W, np.eye(count), atol=1e-13)


# -------------------------------------------------------------------------- completed bases


@settings(max_examples=80, derandomize=True, deadline=None, database=None)
@given(st.data(), st.integers(1, 12), st.sampled_from(["f8", "f4"]))
def test_the_extended_rows_are_orthonormal_whatever_the_first_are(data, d, dtype):
    """Alike or zero on some axes, or along groups of equal columns, as those of equal columns."""
    if data.draw(st.booleans()):
        k = data.draw(st.integers(0, d))
        entries = st.lists(st.sampled_from([0.0, 0.0, 1.0, -1.0]), min_size=d * k, max_size=d * k)
        some = np.array(data.draw(entries)).reshape(k, d)
        V = (
            np.linalg.svd(some, full_matrices=False)[2][: np.linalg.matrix_rank(some)]
            if k
            else some
        )
    else:
        sizes = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=30))
        d, groups = sum(sizes), np.repeat(np.diag(np.array(sizes) ** -0.5), sizes, axis=1)
        turned = np.linalg.qr(np.random.default_rng(0).standard_normal((len(sizes),) * 2))[0]
        V = (turned @ groups)[: data.draw(st.integers(1, 60))]
    n_rows = data.draw(st.one_of(st.just(d), st.integers(0, d)))
    full = complete_basis(V.astype(dtype), n_rows)
    assert full.shape == (max(n_rows, len(V)), d)
    assert full.dtype == dtype
    assert_array_equal(full[: len(V)], V.astype(dtype))
    assert_allclose(full @ full.T, np.eye(len(full)), atol=20 * max(d, 5) * np.finfo(dtype).eps)


def test_axes_that_the_rows_do_not_touch_are_taken_as_they_are():
    V = np.zeros((2, 7))
    V[0, [1, 4]], V[1, [1, 4]] = [0.6, 0.8], [0.8, -0.6]
    assert_array_equal(complete_basis(V, 5)[2:], np.eye(7)[[0, 2, 3]])


SEMI_DEFINITE = {name: lam for name, lam in {**KNOWN, **BY_BLOCKS}.items() if lam.min() >= 0}


@pytest.mark.parametrize("spectrum", [*SEMI_DEFINITE, "huge", "tiny"])
def test_eigenvalues_above_a_number_are_counted(spectrum):
    size = {"huge": 1e300, "tiny": 1e-300}.get(spectrum, 1.0)
    lam = size / ORDER if spectrum in ("huge", "tiny") else SEMI_DEFINITE[spectrum]
    A, off = of_spectrum(lam), N * EPS * lam.max()
    for number in (4 * off, *np.quantile(lam, [0.3, 0.9]) * 1.001, 2 * lam.max()):
        if np.abs(lam - number).min() > off:
            for G in (A, np.asfortranarray(A), np.tril(A)):
                assert n_above(G, number) == np.sum(lam > number)
    assert n_above(np.diag([1.0, 2.0, 3.0]), 2.0) == 1


# ------------------------------------------------------------------------------ certificates


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
    off = 1e-14 * trace * np.array([-1, 1])
    assert ((found.eigenvalues + off - lam[:rank, None]) * [-1, 1] >= 0).all()
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


def test_what_a_cut_of_nothing_tells():
    for values, rank, d, least, most in (
        ([1, 1, 1], 2, 5, np.inf, np.inf),  # nothing is known of equal values
        ([1, 1, 1], 4, 5, np.inf, np.inf),  # nor of no variance
        ([1, 1, 1], 3, 3, 0, 0),  # and all of all directions
        ([3, 2, 1], 2, 5, 0, 1e-13),
    ):
        found = certificate_of_cut(np.array(values, float), rank, d, float(sum(values)), 1e-14)
        assert least <= found.sine <= most


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
    assert certified(S, Q[[0, 2]], 1, 2, n_probes=0)[1].sine == np.inf  # one is missed
    flat, Q = matrix(np.r_[5.0, 4.0, np.ones(98)])
    assert certified(flat, Q[:2], 1, 2, n_probes=0)[1].sine == np.inf
    assert certified(flat, Q[:2], 4, 2)[1].sine < 1e-10


@pytest.mark.parametrize("n_products", [1, 3])
def test_the_bound_on_what_is_left_is_by_the_polynomial_of_least_mean_square(n_products):
    """By normal equations in powers of the matrix: f has f(x) = 1 and the least |f(E) probes|."""
    rng = np.random.default_rng(0)
    values = np.sort(rng.uniform(0, 1, 30) ** 3)[::-1]
    E, _ = matrix(values)
    probes, trace = rng.standard_normal((4, 30)), float(values.sum())
    powers = [probes @ np.linalg.matrix_power(E, i) for i in range(n_products + 1)]
    gram = np.array([[np.sum(a * b) for b in powers] for a in powers])
    quantile = np.sqrt(chi2.ppf(FAILURE, 4))

    def certain(x):
        c = np.linalg.solve(gram, x ** np.arange(n_products + 1))
        c /= c @ x ** np.arange(n_products + 1)
        return np.linalg.norm(np.tensordot(c, powers, 1), 2) < quantile

    bound = largest_eigenvalue(lambda P: P @ E, probes, n_products, trace)
    assert certain(bound) or bound == trace
    assert not certain(0.95 * bound)


def test_the_sine_is_by_a_system_of_two_inequalities():
    """|X2| and |X3| where both are equalities; the gap is the least eigenvalue of their matrix."""
    values, across, e = np.array([3.0, 2.0, 0.5]), np.diag([1e-2, 2e-2, 0.5]), 0.8
    found = []
    for at in (1, 2, 3):
        W, Z = slice(1, at), slice(at, 3)
        upper = values + e * np.diag(across)
        gaps = [3.0 - upper[W].max(initial=0.0), 3.0 - max(e, upper[Z].max(initial=0.0))]
        of_V, of_W = 0.1, np.sqrt(np.diag(across)[W].max(initial=0.0))
        A = np.array([[gaps[0], -e * of_W], [-e * of_W, gaps[1]]])
        x = np.linalg.solve(A, e * of_V * np.array([of_W, 1.0]))
        gap = np.linalg.eigvalsh(A)[0]
        if at == 1:  # all others are one part
            gap = gaps[1]
            x = np.array([0.0, e * of_V / gap])
        found.append(np.linalg.norm(x) + 1e-3 / gap)
    assert_allclose(_sine(values, across, 1, e, 1e-3), min(found), rtol=1e-12)
