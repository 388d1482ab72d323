"""`FederatedScaler` with a mechanism at sites: sums with noise, each a release of its own."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..communication._channel import exponent_of
from ..communication._federation import Message as Size
from ..federated import FederatedScaler
from ..privacy import ScalerNoise
from ..privacy._scaler_noise import ROUNDS
from ._estimators import know_columns
from ._messages import Answer
from ._private import CLIPPED, DEVIATIONS, announced, shown
from ._questions import RefusedError, Task, check_mean
from ._secure import Bounds, Grid, SecureAggregation
from ._site_policy import Site
from ._sites import SecureSums, Sites


def _kind(kind: str, turn: int) -> str:
    return f"{kind}_{turn + 1}"


def private_scales(
    mechanism: ScalerNoise, secure: SecureAggregation | None = None
) -> dict[str, Task]:
    """What a site adds to the sums of `FederatedScaler` with a mechanism."""
    mechanism.validate()
    n_shares = secure.threshold if secure is not None and mechanism.trust == "sum" else 1

    def size(site: str, X: Any, *, who: Site) -> dict[str, np.ndarray]:
        who.state_spent(mechanism)
        return {"n_rows": np.full(X.shape[1], float(X.shape[0]))}

    def work_of(kind: str, turn: int) -> Callable:
        def released(site: str, X: Any, who: Site, *arguments: np.ndarray) -> dict[str, Any]:
            _check(mechanism, X.shape[1], *arguments)
            mu2 = mechanism._cost_of(kind, turn, X.shape[1], n_shares)

            def make(rng: np.random.Generator) -> np.ndarray:
                return mechanism._message(kind, X, turn, *arguments, n_shares=n_shares, rng=rng)

            new = () if secure is None else (np.frombuffer(os.urandom(32), np.uint8),)
            found = who.release(_kind(kind, turn), mechanism, mu2, make, *arguments, *new)
            return {kind: found}

        if kind == "counts":
            return lambda site, X, point, *, who: released(site, X, who, point)
        return lambda site, X, point, lengths, *, who: released(site, X, who, point, lengths)

    def grids(kind: str, turn: int, bounds: Bounds) -> dict[str, Grid]:
        n = 2.0**bounds.rows
        if kind == "n_rows":
            return {"n_rows": Grid(exponent_of(n), exact=True)}
        noise = DEVIATIONS * mechanism._std(kind, turn, bounds.n_features)
        return {kind: Grid(exponent_of(n + noise), exact=math.isfinite(mechanism.epsilon))}

    def task(kind: str, turn: int) -> Task:
        return Task(work_of(kind, turn), reads=CLIPPED, grids=partial(grids, kind, turn))

    tasks = {"n_rows": Task(size, reads="summary", grids=partial(grids, "n_rows", 0))}
    for turn in range(len(ROUNDS)):
        tasks |= {_kind(kind, turn): task(kind, turn) for kind in ("counts", "sums")}
    if secure is None:
        return tasks
    return {"bounds": Task(announced, reads="summary"), **tasks}


def _check(mechanism: ScalerNoise, d: int, point: np.ndarray, lengths: Any = None) -> None:
    """Raise unless a server's point and lengths are those of some round."""
    check_mean(point, d, True)
    if lengths is None:
        return
    least, largest = mechanism._lengths[[0, -1]]
    if lengths.shape != (mechanism._n_groups(d),):
        raise RefusedError(f"the lengths must have shape ({mechanism._n_groups(d)},)")
    if not ((least <= lengths) & (lengths <= largest)).all():
        raise RefusedError(f"lengths must be from {least:g} to {largest:g}")


def fit_private_scales(scaler: FederatedScaler, sites: Sites) -> FederatedScaler:
    """Fit `FederatedScaler` with a mechanism by sums over sites."""
    mechanism: Any = scaler.mechanism
    mechanism.validate()
    if isinstance(sites, SecureSums):
        d, total = _by_sums(mechanism, sites)
    else:
        d, total = _by_messages(mechanism, sites)
    n_sources: float = len(sites.names)
    if isinstance(sites, SecureSums) and mechanism.trust == "sum":
        n_sources /= sites.secure.threshold
    found = mechanism._found(total, d, n_sources)
    scaler._start()
    know_columns(scaler, sites.columns)
    scaler.n_features_in_ = d
    scaler._show(list(sites.names.values()), [found])
    scaler.communication_ = sites.log
    return shown(scaler, sites, None)


def _by_sums(mechanism: Any, sums: SecureSums) -> tuple[int, Callable]:
    """Number of columns, and secure sums over all sites."""
    sizes = sums.sum("n_rows", {"n_rows": (None,)})["n_rows"]
    d, n = len(sizes), float(sizes[0])
    if not 1 <= n < 2**53:
        raise RuntimeError(f"The sites' numbers of rows add up to {n}, expected a number of rows.")

    def total(kind: str, turn: int, *arguments: np.ndarray) -> tuple[np.ndarray, float]:
        shape = {kind: mechanism._shape(kind, d)}
        return sums.sum(_kind(kind, turn), shape, *arguments)[kind], n

    return d, total


def _by_messages(mechanism: Any, sites: Sites) -> tuple[int, Callable]:
    """Number of columns, and sums of the messages of the sites that are left in each round.

    A fit that began anew would ask sites for more than their budgets hold.
    """

    def size(answer: Answer) -> tuple[float, int]:
        n = answer.array("n_rows", (None,))
        answer.check_count(n[0])
        if (n != np.floor(n[0])).any():
            raise answer.refused("numbers of rows that are not one whole number")
        answer.agree("number of features", len(n))
        return float(n[0]), len(n)

    sizes = sites.ask("n_rows", size, spent=True)
    d = next(iter(sizes.values()))[1]

    def total(kind: str, turn: int, *arguments: np.ndarray) -> tuple[np.ndarray, float]:
        noise = DEVIATIONS * mechanism._std(kind, turn, d)

        def read(answer: Answer) -> np.ndarray:
            found = answer.array(kind, mechanism._shape(kind, d))
            if np.abs(found).max() > sizes[answer.site][0] * (1 + 1e-9) + noise:
                raise answer.refused("more than its rows and their noise add up to")
            return found

        found = sites.ask(_kind(kind, turn), read, *arguments, spent=True)
        sent = sum(map(np.size, arguments))
        up = [Size(part.size, 8 * part.size) for part in found.values()]
        sites.log.record(up, [Size(sent, 8 * sent)] * len(found))
        return np.add.reduce([*found.values()]), sum(sizes[site][0] for site in found)

    return d, total
