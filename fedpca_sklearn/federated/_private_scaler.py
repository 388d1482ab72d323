"""Means and scales of `FederatedScaler` from sums with noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._kernels.column_moments import ColumnMoments
from ..communication import Federation
from ..privacy._mechanism import seeds_of
from ..privacy._scaler_noise import ROUNDS
from ._clients import rows_of
from ._private import check_all_rows, open_accounts, refuse_weight


def fit_with_noise(
    scaler: Any, X: Any, weight: Any, shards: list[tuple[Any, Any]]
) -> ColumnMoments:
    """Moments of the columns, from sums with noise that clients have been charged for."""
    mechanism, (n, d), K = scaler.mechanism, X.shape, len(shards)
    mechanism.validate()
    refuse_weight(weight)
    turns = range(len(ROUNDS))
    mu2 = sum(mechanism._cost_of(kind, turn, d, K) for kind in ("counts", "sums") for turn in turns)
    labels = [label for label, _ in shards]
    accounts = open_accounts(scaler, fresh=True)
    accounts.check(labels, mechanism, mu2)
    check_all_rows(X, shards, scaler.n_jobs)
    seeds = seeds_of(scaler.random_state)
    accounts.charge(labels, mechanism, mu2)
    scaler._accounts = accounts
    federation = Federation(scaler.n_jobs, log=scaler.communication_)
    clients = [
        (label, mechanism, rows, K, (*seeds, *accounts.numbers(label)))
        for label, rows, _ in rows_of(X, None, shards)
    ]

    def total(kind: str, turn: int, *arguments: np.ndarray) -> tuple[np.ndarray, int]:
        sent = [(*client, kind, turn, arguments) for client in clients]
        return federation.sum(_message, sent, np.concatenate(arguments)), n

    return mechanism._found(total, d, 1 if mechanism.trust == "sum" else K)


def _message(
    label: Any,
    mechanism: Any,
    rows: Any,
    n_shares: int,
    seeds: Sequence[int],
    kind: str,
    turn: int,
    arguments: tuple,
) -> np.ndarray:
    rng = np.random.default_rng([*seeds, 2 * turn + (kind == "sums")])
    return mechanism._message(kind, rows, turn, *arguments, n_shares=n_shares, rng=rng)
