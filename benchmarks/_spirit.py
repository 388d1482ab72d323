"""SPIRIT as its paper prints it, with numpy alone, to see where its many components come from."""

import numpy as np


def printed_spirit(X, rank, *, power, orthonormal, before, hold_off=0):
    """Number of components after each row, without forgetting, for 95 to 98 % of the energy.

    Algorithms TrackW and SPIRIT of Papadimitriou, Sun and Faloutsos (2005), with a start of each
    component's energy of ``power``. ``orthonormal``: a QR factorisation of the components after
    each row. ``before``: the energy of the components is that of the coordinates y_i with which
    TrackW updates them, as printed; otherwise that of the row's coordinates after the update.
    """
    W, energies = np.eye(X.shape[1]), np.full(X.shape[1], power)
    all_energy = held = 0.0
    ranks, changed = [], 0
    for t, row in enumerate(X):
        rest, kept = row.copy(), 0.0
        for i in range(rank):
            y = W[:, i] @ rest
            kept += y * y
            energies[i] += y * y
            W[:, i] += (y / energies[i]) * (rest - y * W[:, i])
            rest -= y * W[:, i]
        if orthonormal:
            W[:, :rank] = np.linalg.qr(W[:, :rank])[0]
        if not before:
            kept = float(np.sum((row @ W[:, :rank]) ** 2))
        all_energy, held = all_energy + float(row @ row), held + kept
        if t - changed >= hold_off:
            if held < 0.95 * all_energy and rank < X.shape[1]:
                rank, changed = rank + 1, t
            elif held > 0.98 * all_energy and rank > 1:
                rank, changed = rank - 1, t
        ranks.append(rank)
    return np.array(ranks)
