"""HePPCAT, maximum likelihood for groups of rows with unlike noise: Hong et al. 2021."""

import numpy as np


def leading(S, k):
    """Leading eigenvectors of a symmetric matrix, as rows, and their eigenvalues."""
    values, vectors = np.linalg.eigh(S)
    return vectors[:, ::-1][:, :k].T, values[::-1][:k]


def heppcat(scatters, sizes, k, n_iter=2000, tol=1e-10):
    """Factors and noise variances by expectation maximisation, on scatter matrices.

    Rows y of group l are F z + noise with z ~ N(0, I) and noise ~ N(0, v_l I). One step for F with
    all v_l, one for the v_l with F; both need sum_i y_i E(z_i)^T and sum_i E(z_i z_i^T) only. The
    start is the homoscedastic solution.

    Returns the leading directions of F and the noise variances.
    """
    d, n = len(scatters[0]), sum(sizes)
    directions, values = leading(sum(scatters) / n, k)
    rest = (np.trace(sum(scatters)) / n - values.sum()) / (d - k)
    F = directions.T * np.sqrt(np.maximum(values - rest, 1e-3 * rest))
    v = np.array([np.trace(S) / m / d for S, m in zip(scatters, sizes, strict=True)])
    for _ in range(n_iter):
        left, right = np.zeros((d, k)), np.zeros((k, k))
        for S, m, noise in zip(scatters, sizes, v, strict=True):
            yz, zz = expected(S, m, noise, F)
            left, right = left + yz / noise, right + zz / noise
        old, F = F, np.linalg.solve(right, left.T).T
        for i, (S, m) in enumerate(zip(scatters, sizes, strict=True)):
            yz, zz = expected(S, m, v[i], F)
            v[i] = (np.trace(S) - 2 * np.sum(F * yz) + np.sum((F.T @ F) * zz)) / (d * m)
        if np.linalg.norm(F - old) < tol * np.linalg.norm(F):
            break
    return leading(F @ F.T, k)[0], v


def expected(S, m, noise, F):
    """Sums over the rows of a group of y E(z)^T and of E(z z^T)."""
    M = np.linalg.inv(F.T @ F + noise * np.eye(F.shape[1]))
    yz = S @ F @ M
    return yz, M @ F.T @ yz + m * noise * M
