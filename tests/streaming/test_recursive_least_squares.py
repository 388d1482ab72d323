"""Inverse covariances of recursive least squares, beside what they are the inverse of."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import ortho_group

from fedpca_sklearn import PAST, PETRELS
from fedpca_sklearn.streaming._recursive_least_squares import bound


def matrices(sizes, seed):
    """Symmetric matrices with these eigenvalues, (n, k, k), and their eigenvectors."""
    rng = np.random.default_rng(seed)
    E = np.stack([ortho_group.rvs(len(s), random_state=rng) for s in sizes])
    return (E * np.asarray(sizes)[:, None, :]) @ E.swapaxes(1, 2), E


@given(
    st.lists(st.lists(st.floats(-6, 4), min_size=3, max_size=3), min_size=1, max_size=4),
    st.sampled_from([1.0, 1e-170, 1e150]),
    st.integers(0, 9),
)
def test_what_is_added_to_the_covariance_bounds_its_inverse(powers, most, seed):
    sizes = most * 10.0 ** np.array(powers)
    P, E = matrices(sizes, seed)
    entries = np.abs(P / most).max(axis=(1, 2))
    assume(np.all(np.abs(entries - 1) > 1e-9))
    bound(P, most)
    covariance = 1 / sizes + np.where(entries > 1, 1 / most, 0)[:, None]
    expected = (E / covariance[:, None, :]) @ E.swapaxes(1, 2)
    np.testing.assert_allclose(P / most, expected / most, atol=1e-11)


@given(st.floats(0, 200), st.integers(0, 9))
def test_rounding_errors_of_either_sign_stay_positive_and_bounded(power, seed):
    (P,), _ = matrices([10.0**power * np.array([-2.0, -0.9, 3.0])], seed)
    bound(P, 1.0)
    P = np.linalg.eigvalsh(P)
    assert P.min() >= -1e-15
    assert P.max() <= 1 + 1e-12


@pytest.mark.parametrize("model", [PAST, PETRELS])
def test_a_row_of_any_size_is_forgotten(model):
    rng = np.random.default_rng(0)
    B = ortho_group.rvs(20, random_state=rng)[:3]
    X = rng.standard_normal((3_000, 3)) * [3, 2, 1.5] @ B + 0.1 * rng.standard_normal((3_000, 20))
    X[500] = 1e12 * rng.standard_normal(20)
    X[501] *= 1e-3
    model = model(3, forgetting_factor=0.95, center=False, random_state=0)
    far = [
        np.linalg.norm(V - V @ B.T @ B, 2)
        for V in (model.partial_fit(X[at]).components_ for at in (np.s_[:502], np.s_[502:]))
    ]
    assert far[0] > 0.5
    # 1e24 times the variance, times .95 for each of 2,500 rows, is nothing
    assert far[1] < 3 * 0.1 / 1.5 * np.sqrt(20 * 0.05)
