"""What the clients of a subspace tracker compute, and what the server learns by sums."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from .._base.fitted import computed
from .._kernels import linalg
from .._kernels.too_large import check_squares
from ..communication import CommunicationLog, Federation
from ..summary import Subspace
from ..tracking._decomposition import (
    OutlierSupport,
    decompose,
    known_thresholds,
    outliers_removed,
)
from ..tracking._past import Misfit
from ..tracking._stmiss import Filled, State, residuals
from ..tracking._stmiss_tracker import OUTLIERS, STMissTracker
from ._batch_sums import (
    largest_eigenvalue,
    mean_of_observed,
    misfit_by_sums,
    r_svd_by_sums,
    start_without_outliers,
)
from ._client import Client
from ._outlier_sums import Shard, find_by_sums
from ._owners import shards_of


class TrackerRounds(STMissTracker):
    """Base of the tracker of rows with owners: its steps as rounds of sums over the clients."""

    _parameter_constraints: dict = {**STMissTracker._parameter_constraints, **OUTLIERS}
    outlier_mask_: Any = computed()
    support_threshold_: Any = computed()
    decompose = decompose
    n_rounds: int
    robust: bool
    channel: Any
    n_jobs: int | None
    communication_: CommunicationLog

    def _federation(self, state: State) -> Federation:
        """Rounds that the log counts; noise is fresh in every one, also where rows come again."""
        rng = np.random.RandomState([state.seed, self.communication_.rounds])
        return Federation(self.n_jobs, self.channel, rng, self.communication_)

    def _next_state(self, state: State, Y: np.ndarray) -> State:
        if isinstance(Y, np.ndarray):  # else each site looks at its own rows
            shards = ((label, Y[at]) for label, at in shards_of(state.owners[: len(Y)]))
            deque(Federation(self.n_jobs).map(_with_squares, shards), maxlen=0)
        return self._taken(*self._cleaned(state, Y))

    def _first(self, state: State, Y: np.ndarray) -> State:
        clients = [Client(label, Y[rows]) for label, rows in shards_of(state.owners[: len(Y)])]
        if self.center:
            federation = self._federation(state)
            mean = mean_of_observed(federation, clients, self.robust or self._by_altproj)
            state = replace(state, mean=mean)
        if self._by_altproj:
            clients = [Client(client.label, client.rows - state.mean) for client in clients]
            start = self._start_from(state, state.basis)
            federation = self._federation(state)
            V = start_without_outliers(federation, clients, start, self._first_rounds)
            state = replace(state, basis=V)
        return state

    def _without_outliers(self, state: State, Y: np.ndarray) -> tuple[np.ndarray, State]:
        mask, columns = np.zeros(Y.shape, dtype=bool), np.zeros(Y.shape[1])
        if self.robust and len(state.basis):
            shards = [
                Shard(label, at, Y[at] - state.mean)
                for label, at in shards_of(state.owners[: len(Y)])
            ]
            found, columns = self._find(state, shards, len(Y))
            for shard, hit in zip(shards, found, strict=True):
                mask[shard.at] = hit
            Y = np.where(mask, np.nan, Y)
        return Y, replace(state, outliers=mask, threshold=columns)

    def _find(
        self, state: State, shards: list[Shard], m: int
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Outliers of each shard of m rows, and the thresholds of columns after them."""
        V, columns = state.basis, known_thresholds(state.threshold)
        full = m >= self._block_rows(V.shape[1], not state.summary.n_samples)
        support = self._support
        if support.threshold == "auto" and (full or columns is None):
            rounds = partial(self._federation, state)
            return find_by_sums(rounds, shards, V, support.xi, columns, state.n_rows)
        calls = ((shard.label, shard.Z, support, V, columns) for shard in shards)
        found = list(Federation(self.n_jobs).map(_outliers_of, calls))
        return [mask for mask, _ in found], found[0][1]

    def _rounds_about(
        self, what: str, state: State, filled: Filled, Y: Any = None
    ) -> tuple[Federation, list[Client]]:
        """Rounds, and clients with rows that count: "filled", their "residuals" or "misfits"."""
        rows, counts = filled.rows, filled.counts
        if what == "residuals":
            rows = residuals(state, Y, filled)
        elif what == "misfits":
            rows, counts = self._misfits(state, Y, filled), np.ones(len(rows), dtype=bool)
        return self._federation(state), [
            Client(label, rows[own[counts[own]]])
            for label, own in shards_of(state.owners[: len(rows)])
            if counts[own].any()
        ]

    def _level(self, state: State, Y: np.ndarray, filled: Filled) -> tuple[float, float]:
        rng = np.random.RandomState([state.seed, state.n_rows % 2**32, 1])
        rounds, clients = self._rounds_about("residuals", state, filled, Y)
        return largest_eigenvalue(rounds, clients, rng, self.n_rounds)

    def _r_svd(self, state: State, filled: Filled, V: np.ndarray) -> Subspace:
        """Algorithm 2 by rounds of sums, from the last subspace."""
        rounds, clients = self._rounds_about("filled", state, filled)
        d = V.shape[1]
        started = state.summary.n_samples or len(state.basis) >= self._rank(d)
        m = int(filled.counts.sum())
        before = state.summary.decay(self._weight_left(state, m, d))
        n_rounds = self.n_rounds if started else self._first_rounds
        return r_svd_by_sums(rounds, clients, before, self._start_from(state, V), n_rounds)

    def _misfit(self, state: State, Y: np.ndarray, filled: Filled) -> Misfit:
        """By a round of sums; the server answers with the ridge."""
        rounds, clients = self._rounds_about("misfits", state, filled, Y)
        return misfit_by_sums(rounds, clients, np.empty(len(state.basis)))

    def _start_from(self, state: State, V: np.ndarray) -> np.ndarray:
        """Basis that the rounds of a batch start from: one given, completed at random."""
        rank, d = self._rank(V.shape[1]), V.shape[1]
        random = np.random.RandomState([state.seed, state.n_rows % 2**32])
        return linalg.orthonormalised(np.concatenate([V, random.standard_normal((rank, d))])[:rank])

    @property
    def _first_rounds(self) -> int:
        """Rounds of a start at random."""
        return self._first_subspace.n_rounds

    def _check_parameters(self) -> None:
        super()._check_parameters()
        absorb_after = self._support.absorb_after
        if absorb_after not in (None, OutlierSupport().absorb_after):
            raise ValueError(
                f"absorb_after is not for {type(self).__name__}, whose server does not see where "
                f"outliers are: it must be left out or None, got {absorb_after}."
            )

    def _outliers_removed(self, X: Any) -> np.ndarray:
        return outliers_removed(self, X) if self.robust else X

    _usable = _outliers_removed


def _with_squares(label: Any, rows: np.ndarray) -> None:
    """Raise for rows of one client whose squares overflow."""
    check_squares(rows)


def _outliers_of(
    label: Any, Z: np.ndarray, support: OutlierSupport, *by: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Local work of one client: where its rows have outliers."""
    return support._outliers(Z, *by)
