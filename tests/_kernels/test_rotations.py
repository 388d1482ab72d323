"""Rotations without d x d matrices, against those with."""

import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose

from fedpca_sklearn._kernels.rotations import RandomWalk, SteadyRotation, random_rotation


def generator(angles, signs):
    """The skew-symmetric B of a frame (columns), whose exp(-B) turns pairs by the angles."""
    d = signs.shape[-1]
    frame = random_rotation(np.eye(d), signs).T
    J = np.zeros((d, d))
    for j, angle in enumerate(angles):
        J[2 * j, 2 * j + 1], J[2 * j + 1, 2 * j] = angle, -angle
    return frame @ J @ frame.T


@pytest.mark.parametrize("d", [2, 9, 30])
@pytest.mark.parametrize("size", [1e-3, 0.3, 100])
def test_paths_are_those_of_matrix_exponentials(d, size):
    n, k, rng = 50, 2, np.random.default_rng(d)
    start, C = np.linalg.qr(rng.standard_normal((d, k)))[0].T, rng.standard_normal((n, k))
    angles, times = size * rng.random(d // 2), np.sort(rng.random(n))
    signs = rng.choice([-1.0, 1.0], (2, n, d))
    steady, walk = (
        SteadyRotation(start, times, angles, signs[:, 0]),
        RandomWalk(start, angles, signs),
    )
    rows = steady.rows(C), walk.rows(C)
    first = P = random_rotation(start, signs[:, 0]).T
    B = generator(angles, signs[:, 0])
    for t in range(n):
        turned = scipy.linalg.expm(-times[t] * B) @ first
        P = scipy.linalg.expm(-generator(angles, signs[:, t])) @ P if t else P
        for path, made, want in zip((steady, walk), rows, (turned, P), strict=True):
            assert_allclose(path.subspace_at(t).T, want, atol=1e-12 * max(size, 1))
            assert_allclose(made[t], want @ C[t], atol=4e-12 * max(size, 1))
