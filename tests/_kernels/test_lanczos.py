"""A few leading eigenpairs from a Krylov space of one vector, beside those that were put in."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import ortho_group

from fedpca_sklearn._kernels import lanczos
from fedpca_sklearn._kernels.lanczos import leading_by_lanczos
from fedpca_sklearn._kernels.linalg import eigh_top
from fedpca_sklearn._kernels.sizes import vectors_of_lanczos, very_few_of_all

N = 300
E = ortho_group.rvs(N, random_state=0)
EPS = np.finfo(float).eps
KNOWN = {
    "slow": np.arange(1.0, N + 1) ** -0.5,
    "decay": 1 / np.arange(1.0, N + 1),
    "fast": np.arange(1.0, N + 1) ** -3.0,
    "negative": np.concatenate([3 / np.arange(1.0, 41), np.linspace(0, -0.1, N - 40)]),
    "rank 40": np.concatenate([3 / np.arange(1.0, 41), np.zeros(N - 40)]),
}
UNCERTAIN = {
    "equal": np.repeat([9.0, 4.0, 1.0], [20, 30, N - 50]),
    "noise": np.linspace(2, 1, N),
    "steep": 10.0 ** -np.arange(N),
    "rank 3": np.concatenate([[3.0, 2.0, 1.0], np.zeros(N - 3)]),
    "zero": np.zeros(N),
    "not a number": np.full(N, np.nan),
}


def of_spectrum(lam):
    return (E * lam) @ E.T


def pairs_of(A, count):
    """Pairs, and how often the matrix was multiplied."""
    calls = []

    def apply(q):
        calls.append(q)
        return A @ q

    return leading_by_lanczos(apply, A.diagonal(), count), len(calls)


@pytest.mark.parametrize("count", [1, 5, 15])
@pytest.mark.parametrize("spectrum", KNOWN)
def test_the_pairs_are_those_that_were_put_in(spectrum, count):
    lam = KNOWN[spectrum]
    (found, V), n_products = pairs_of(of_spectrum(lam), count)
    rounding = N * EPS * np.abs(lam).max()
    assert_allclose(found, lam[:count], atol=rounding)
    assert_allclose(V @ V.T, np.eye(count), atol=1e-13)
    gap = lam[count - 1] - lam[count]
    sine = np.linalg.norm(V @ E[:, count:], 2)
    assert sine <= (1e-13 * max(gap, 1e-3 * lam[count - 1]) + rounding) / gap
    assert n_products <= 2 * vectors_of_lanczos(count)


@pytest.mark.parametrize("count", [3, 15])
@pytest.mark.parametrize("spectrum", UNCERTAIN)
def test_nothing_is_said_of_pairs_that_are_not_certain(spectrum, count):
    A = of_spectrum(UNCERTAIN[spectrum])
    with np.errstate(invalid="ignore"):
        found, n_products = pairs_of(A, count)
    if (spectrum, count) in {("steep", 3), ("rank 3", 3), ("equal", 3), ("equal", 15)}:
        # may be known well enough: roundings lead on to further directions of an eigenvalue
        if found is not None:
            lam, V = found
            assert_allclose(lam, UNCERTAIN[spectrum][:count], atol=1e-12)
            assert_allclose(V @ V.T, np.eye(count), atol=1e-13)
            assert_allclose(V @ A, lam[:, None] * V, atol=1e-12)
        return
    assert found is None
    if spectrum == "noise":  # and it is given up early
        assert n_products <= 3 * count // 2 + 16


@settings(max_examples=40, deadline=None)
@given(
    times=st.lists(st.integers(1, 4), min_size=4, max_size=12),
    count=st.integers(1, 12),
    fall=st.floats(0.3, 0.95),
)
def test_what_is_said_is_right_however_often_eigenvalues_repeat(times, count, fall):
    head = np.repeat(fall ** np.arange(len(times)), times)
    lam = np.concatenate([head, head[-1] * 0.9 / np.arange(1, N - len(head) + 1)])
    found = pairs_of(of_spectrum(lam), count)[0]
    if found is None:
        assert np.min(1 - lam[1 : count + 1] / lam[:count]) < 0.2
    else:
        assert_allclose(found[0], lam[:count], rtol=N * EPS / lam[count - 1])


def hidden_from(start, eigenvalue):
    """A matrix of which one direction is orthogonal to the vector from which the space grows."""
    u = E[:, 0] - (E[:, 0] @ start) / (start @ start) * start
    u /= np.linalg.norm(u)
    B = of_spectrum(KNOWN["decay"])
    across = np.eye(N) - np.outer(u, u)
    return across @ B @ across + eigenvalue * np.outer(u, u), u


@pytest.mark.parametrize("eigenvalue", [0.45, 0.5, 0.9, 1.0, 5.0, 1e3])
def test_a_direction_hidden_from_the_first_vector_is_not_missed(eigenvalue):
    A, u = hidden_from(np.random.default_rng(0).standard_normal(N), eigenvalue)
    found, _ = pairs_of(A, 5)
    assert found is None or np.linalg.norm(found[1] @ u) > 1 - 1e-12
    lam, W = eigh_top(A, 5)
    assert np.linalg.norm(u @ W) > 1 - 1e-12
    assert_allclose(lam, np.linalg.eigvalsh(A)[::-1][:5], rtol=1e-13, atol=N * EPS * eigenvalue)


@pytest.mark.parametrize("above", [1.0001, 1.01, 1.5, 100.0])
@pytest.mark.parametrize("x", [1.0, 1e-9, 1e80])
def test_the_second_space_tells_an_eigenvalue_above_from_none(x, above):
    lam = x * np.concatenate([[0.99], 0.9 / np.arange(1.0, N)])
    for seed in range(20):
        start = np.random.default_rng(seed).standard_normal(N)
        for largest, none in ((x * above, False), (0.99 * x, True)):
            lam[0] = largest
            A = of_spectrum(lam)
            space = lanczos._Space(lambda q: A @ q, np.empty((90, N)), start)  # noqa: B023
            assert lanczos._none_above(space, x, float(start @ start)) == none


def test_the_second_vector_follows_from_the_matrix(monkeypatch):
    starts = []

    class Watched(lanczos._Space):
        def __init__(self, apply, basis, start, eps):
            starts.append(start.copy())
            super().__init__(apply, basis, start, eps)

    monkeypatch.setattr(lanczos, "_Space", Watched)
    A = of_spectrum(KNOWN["decay"])
    for B in (A, A, A + 1e-9 * np.outer(E[:, 7], E[:, 7])):
        pairs_of(B, 5)
    first, second = starts[::2], starts[1::2]
    assert_array_equal(first[0], first[2])
    assert_array_equal(second[0], second[1])
    cosine = second[0] @ second[2] / np.linalg.norm(second[0]) / np.linalg.norm(second[2])
    assert abs(cosine) < 5 / np.sqrt(N)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("unit", [1e-250, 1e-150, 1.0, 1e150, 1e250])
def test_only_the_lower_triangle_is_read_whatever_its_units(unit, order):
    lam, count = KNOWN["decay"] * unit, 5
    assert very_few_of_all(count, N)
    A = np.array(of_spectrum(lam), order=order)
    A[np.triu_indices(N, 1)] = np.nan if 1e-200 < unit < 1e200 else 7.0
    before = A.copy()
    found, W = eigh_top(A, count)
    assert_array_equal(A, before)
    assert_allclose(found, lam[:count], rtol=N * EPS * count)
    assert_allclose(np.abs(np.sum(W * E[:, :count], axis=0)), 1, rtol=1e-12)
