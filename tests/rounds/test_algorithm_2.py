"""FederatedPowerPCA against FedOA-PM as printed: Algorithm 2 of Narayanamurthy et al. (2022).

The oracle has the paper's columns, a loop over the nodes and numpy's QR. A channel adds the same
W_l to the sums of both, so that they are compared number by number and not in law. In the library a
share of 1e-10 of the last basis stays in each round, which the largest eigenvalue over the r-th can
enlarge; 1e-7 is far above that.
"""

import numpy as np
import pytest
from helpers import random_basis, sine
from numpy.testing import assert_allclose

from fedpca_sklearn import FederatedPowerPCA, PerfectChannel


def fedoa_pm(nodes, U, noise):
    """Lines 3 to 13: Z_k is n x d_k, U_0 is n x r, and noise has W_1 to W_L; W_{L+1} is zero.

    The text leaves the signs of a QR decomposition open; here R has a positive diagonal.
    """
    for W in noise:
        Q, R = np.linalg.qr(sum(Z @ (Z.T @ U) for Z in nodes) + W)
        U = Q * np.sign(np.diag(R))
    return U, np.linalg.eigvalsh(sum(U.T @ Z @ Z.T @ U for Z in nodes))[-1]


class GivenNoise(PerfectChannel):
    """Adds the next W_l of a list, which is outside of the estimator, to a sum of its shape."""

    to_come: list = []

    def receive(self, messages, rng):
        total, count = super().receive(messages, rng)
        if self.to_come and total.shape == self.to_come[0].T.shape:
            total = total + self.to_come.pop(0).T
        return total, count


@pytest.mark.parametrize("size", [0.0, 0.3])
@pytest.mark.parametrize(
    ("n", "rows", "r", "n_rounds"),
    [
        (10, [5, 7], 2, 1),
        (20, [30], 3, 10),  # one node
        (8, [1, 1, 1, 40], 4, 3),
        (15, [20, 0, 9], 3, 8),  # a node without rows
        (12, [4, 4], 6, 5),  # nodes with fewer rows than directions
        (6, [9, 2], 6, 2),  # all directions
    ],
)
def test_rounds_are_those_of_algorithm_2(n, rows, r, n_rounds, size):
    rng = np.random.default_rng(n)
    nodes = [rng.standard_normal((n, m)) / np.arange(1, n + 1)[:, None] ** 0.7 for m in rows]
    start = random_basis(rng, r, n)
    noise = [size * rng.standard_normal((n, r)) for _ in range(n_rounds)]
    GivenNoise.to_come = list(noise)
    model = FederatedPowerPCA(
        r,
        n_rounds=n_rounds,
        acceleration=None,
        tol=0,
        center=False,
        channel=GivenNoise(),
        init=start,
    ).fit(np.hstack(nodes).T, clients=np.repeat(np.arange(len(rows)), rows))
    U, largest = fedoa_pm(nodes, start.T, noise)
    assert not GivenNoise.to_come
    assert sine(model.components_, U.T) < 1e-7
    assert_allclose(model.singular_values_[0] ** 2, largest, rtol=1e-9)
    senders = np.count_nonzero(rows)
    assert model.communication_.floats_up == senders * (n_rounds * n * r + r * r + 2)
