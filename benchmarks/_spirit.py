"""SPIRIT with numpy alone, as the authors of Fig. 1 b run it and with an orthonormal basis."""

import numpy as np


def numpy_spirit(X, rank, *, orthonormal, power=0.01):
    """Number of components after each row, without forgetting, for 95 to 98 % of the energy.

    Algorithms TrackW and SPIRIT of Papadimitriou, Sun and Faloutsos (2005), without a pause after a
    change; each component's energy starts at ``power``. ``orthonormal``: the components are made
    orthonormal after each row. Otherwise each has unit length after its update, and they are made
    orthonormal only when one is added, which is what the authors' code does.
    """
    d = X.shape[1]
    W, energies = np.eye(d), np.full(d, power)
    energy = held = 0.0
    ranks = []
    for row in X:
        rest = row.copy()
        for i in range(rank):
            w = W[:, i]
            y = w @ rest
            energies[i] += y * y
            w = w + (y / energies[i]) * (rest - y * w)
            rest -= y * w
            W[:, i] = w / np.linalg.norm(w)
        if orthonormal:
            W[:, :rank] = _orthonormal(W[:, :rank])
        energy += float(row @ row)
        held += float(np.sum((row @ W[:, :rank]) ** 2))
        if held < 0.95 * energy and rank < d:
            W[:, rank] = np.eye(d)[rank]
            rank += 1
            W[:, :rank] = _orthonormal(W[:, :rank])
        elif held > 0.98 * energy and 1 < rank < d:
            rank -= 1
        ranks.append(rank)
    return np.array(ranks)


def _orthonormal(W):
    Q, R = np.linalg.qr(W)
    return Q * np.sign(np.diag(R))
