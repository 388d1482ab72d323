"""Leading eigenpairs of an operator that only multiplies, beside those that were put into it."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import ortho_group

from fedpca_sklearn._kernels.linalg import block_krylov

N = 300
SPECTRA = {
    "decay": 1 / np.arange(1.0, N + 1),
    "steep": 2.0 ** -np.arange(N),
    "repeated": np.repeat([9.0, 4.0, 1.0], [20, 30, N - 50]),
    "rank 3": np.concatenate([[3.0, 2.0, 1.0], np.zeros(N - 3)]),
    "rank 11": np.concatenate([np.linspace(2, 1, 11), np.zeros(N - 11)]),
    "tiny": 1e-250 / np.arange(1.0, N + 1),
    "zero": np.zeros(N),
}


@pytest.mark.parametrize("kept", [1, 5, 30])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_the_leading_pairs_are_those_of_the_operator(spectrum, kept):
    lam = SPECTRA[spectrum]
    E = ortho_group.rvs(N, random_state=0)
    A = (E * lam) @ E.T
    tol = 1e-9
    found, V = block_krylov(lambda B: A @ B, N, kept, kept, tol)
    rounding = N * np.finfo(float).eps * lam[0]
    assert len(found) >= min(kept, np.sum(lam > 2 * rounding))
    assert_allclose(V.T @ V, np.eye(len(found)), atol=1e-13)
    # a residual of tol lam is an error of tol^2 lam^2 over the gap, which is at least lam / N here
    assert_allclose(found, lam[: len(found)], rtol=N * tol**2, atol=2 * rounding)
    assert np.all(
        np.linalg.norm(A @ V - V * found, axis=0) <= 2 * np.maximum(tol * found, rounding)
    )


@pytest.mark.parametrize("n", [1, 2, 7, 9])
def test_a_small_operator_is_solved_whole(n):
    E = ortho_group.rvs(n, random_state=1) if n > 1 else np.ones((1, 1))
    lam = np.arange(n, 0.0, -1)
    A = (E * lam) @ E.T
    found, V = block_krylov(lambda B: A @ B, n, n, n, 1e-12)
    assert_allclose(found, lam, rtol=1e-13)
    assert_allclose(np.abs(np.sum(V * E, axis=0)), 1, rtol=1e-12)


def test_an_operator_that_returns_its_argument_keeps_it():
    given = []

    def identity(B):
        given.append((B, B.copy()))
        return B

    found, V = block_krylov(identity, 40, 3, 3, 1e-9)
    assert_allclose(found, 1, rtol=1e-13)
    assert_allclose(V.T @ V, np.eye(3), atol=1e-13)
    for B, before in given:
        assert_array_equal(B, before)
