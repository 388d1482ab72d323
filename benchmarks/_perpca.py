"""PerPCA, shared and unique components by rounds of gradient steps: Shi and Kontar 2024."""

import numpy as np


def polar(M):
    """The nearest orthonormal columns: the paper's generalised retraction by polar projection."""
    left, _, right = np.linalg.svd(M, full_matrices=False)
    return left @ right


def perpca(covariances, n_shared, n_local, n_rounds, step, seed=0):
    """Shared components U and local ones V_i, as columns, after some rounds.

    In each round a client makes its V_i orthogonal to the common U, takes a gradient step for both
    on its covariance S_i, [U, V_i] + step S_i [U, V_i], and projects them; it sends its U, as many
    floats as it has entries, and the server projects the mean of all and sends that back.
    """
    rng, d = np.random.default_rng(seed), len(covariances[0])
    U = polar(rng.standard_normal((d, n_shared)))
    V = [polar(rng.standard_normal((d, n_local))) for _ in covariances]
    for _ in range(n_rounds):
        total = np.zeros_like(U)
        for i, S in enumerate(covariances):
            both = np.concatenate([U, polar(V[i] - U @ (U.T @ V[i]))], axis=1)
            both = polar(both + step * (S @ both))
            total += both[:, :n_shared]
            V[i] = both[:, n_shared:]
        U = polar(total / len(covariances))
    return U, [polar(W - U @ (U.T @ W)) for W in V]
