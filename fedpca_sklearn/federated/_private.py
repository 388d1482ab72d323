"""Private releases of the clients of `FederatedPCA`."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from numbers import Integral
from typing import Any

import numpy as np

from .._base.batches import float_dtype
from .._base.fitted import WARNING
from .._kernels.device_rows import in_memory
from .._kernels.sizes import kept_directions
from .._validation.checks import check_rows
from ..communication import Federation
from ..privacy import PrivacyNoiseWarning, PrivacySpent, SecondMomentMechanism
from ..privacy._above_noise import (
    across_mean,
    beyond_message,
    count_above,
    edge,
    edge_of_sum,
    n_within,
    noise_message,
    noise_of_means,
    spike_of_mean,
    spike_of_means,
)
from ..privacy._ledger import ROUNDING, Accounts
from ..privacy._mechanism import Costs, Terms, seeds_of
from ..privacy._private_searches import N_ROUNDS
from ..privacy._rows import ClippedRows
from ..summary import Subspace, merge_subspaces
from ..summary._provenance import StatedPrivacy
from ._clients import rows_of
from ._local_fit import Site

# In the place of a client where only sums over clients are known.
_SUM = 0
# ``n_components`` for as many as are above the noise of a mechanism.
ABOVE_NOISE = "above_noise"
# Number of the noise of searches, which no message has.
_SEARCHES = 2**31


def charged(
    estimator: Any,
    X: Any,
    weight: Any,
    shards: list[tuple[Any, Any]],
    mu2: float,
    costs: Costs | None = None,
    fresh: bool = True,
) -> tuple[Accounts, Any]:
    """Accounts of the clients of an estimator, charged, and the terms of a release of some costs.

    Nobody is charged where rows, parameters or a budget are wrong. Empty accounts begin a ``fresh``
    fit.
    """
    if weight is not None:
        raise ValueError(
            "sample_weight must be None with a mechanism: a row counts once, so that its part in "
            "the sums is bounded."
        )
    mechanism, labels = estimator.mechanism, [label for label, _ in shards]
    accounts = Accounts() if fresh else vars(estimator).get("_accounts") or Accounts()
    after = accounts.check(labels, mechanism, mu2)
    deque(Federation(estimator.n_jobs).map(_checked, rows_of(X, None, shards)), maxlen=0)
    terms = None if costs is None else mechanism.terms(X, costs, len(shards))
    accounts.charge(after, mechanism, mu2)
    estimator._accounts = accounts
    return accounts, terms


def _checked(label: Any, rows: Any, weight: Any) -> None:
    check_rows(rows)


def privacy_spent(estimator: Any) -> PrivacySpent:
    """(epsilon, delta) of the client that has spent most, of this fit or in the ledger."""
    accounts = vars(estimator).get("_accounts")
    if accounts is None:
        raise AttributeError(f"This {type(estimator).__name__} has spent no budget of privacy.")
    return accounts.spent()


def warn_at_the_end(estimator: Any, message: str | None) -> None:
    """Have a fit warn of noise once it has succeeded."""
    if message is not None:
        vars(estimator)[WARNING] = PrivacyNoiseWarning(message)


@dataclass(frozen=True)
class Release:
    """One release of a client: its rows, and all else that its messages depend on."""

    mechanism: SecondMomentMechanism
    terms: Terms
    rows: Any
    seeds: tuple[int, ...]
    max_rank: int | None

    def searched(self) -> Release:
        """With the norm and the centre that are found privately."""
        rng = np.random.default_rng([*self.seeds, _SEARCHES])
        terms = self.mechanism.searched(check_rows(self.rows), self.terms, rng)
        return replace(self, terms=terms)

    def parts(self) -> list[tuple[str, Any, int]]:
        """Messages in their order: what, which columns, and a number for the noise."""
        blocks = self.mechanism.column_blocks(self.rows.shape[1], self.max_rank)
        parts = [("noisy_columns", (columns,), number) for number, columns in enumerate(blocks, 1)]
        return parts if self.terms.costs.mean is None else [("noisy_sum", (), 0), *parts]

    def message(self, rows: ClippedRows, kind: str, arguments: tuple, number: int) -> np.ndarray:
        """One message: an array with noise of its own."""
        rng = np.random.default_rng([*self.seeds, number])
        return getattr(self.mechanism, kind)(rows, *arguments, self.terms, rng)

    def summary(self, messages: Iterator[np.ndarray], n: int) -> Subspace:
        """What follows from the messages, or from their sums over clients with n rows in all."""
        total = next(messages) if self.terms.costs.mean is not None else None
        dtype = float_dtype(self.rows)
        return self.mechanism.summary(messages, total, n, self.terms, self.max_rank, dtype)


def stated(
    mechanism: SecondMomentMechanism, mu2: float, row_norm: float | None = None
) -> StatedPrivacy:
    """What a client's summary states about its rows after all its releases.

    ``row_norm`` is the norm that the client found privately.
    """
    if row_norm is None and mechanism.row_norm != "data":
        row_norm = float(mechanism.row_norm)
    epsilon, delta = mechanism.spent(mu2)
    if abs(epsilon - mechanism.epsilon) <= ROUNDING * mechanism.epsilon:  # of parts that add up
        epsilon = float(mechanism.epsilon)
    return StatedPrivacy(epsilon, delta, row_norm, type(mechanism).__name__, mechanism.trust)


def private_summary(label: Any, release: Release) -> Subspace:
    """Local work of one client: its private summary, which states the norm of the rows."""
    searches = release.mechanism.searches
    if searches:
        release = release.searched()
    rows = release.terms.clipped(check_rows(release.rows))
    messages = starmap(partial(release.message, rows), release.parts())
    found = release.summary(messages, rows.n_rows)
    if "row_norm" in searches:
        norm = release.mechanism.norm_of_noise(release.terms, *release.rows.shape)
        privacy = stated(release.mechanism, 0.0, norm)
        found = found._replace(privacy=privacy)
    return found


def norm_found(summary: Subspace) -> float | None:
    """The norm that a client has found privately, None if it has not searched for one."""
    return None if summary.privacy is None else StatedPrivacy(*summary.privacy).row_norm


def _clipped(label: Any, release: Release) -> tuple[Any, Release, ClippedRows]:
    return label, release, release.terms.clipped(check_rows(release.rows))


def _message(label: Any, release: Release, rows: ClippedRows, *part: Any) -> np.ndarray:
    return release.message(rows, *part)


def summary_of_sums(federation: Federation, releases: list[tuple[Any, Release]]) -> Subspace:
    """Summary from the sums of the clients' messages, one round for each sum."""
    clients = list(Federation(federation.n_jobs).map(_clipped, releases))
    first = releases[0][1]
    sums = (
        federation.sum(_message, [(*client, *part) for client in clients]) for part in first.parts()
    )
    return first.summary(sums, sum(rows.n_rows for _, _, rows in clients))


# -------------------------------------------------------------------- all clients


def check_mechanism(pca: Any) -> None:
    """Raise where noise and a rule for the number of components do not go together."""
    if pca.mechanism is None:
        if pca.n_components == ABOVE_NOISE:
            raise ValueError('n_components="above_noise" needs a mechanism, whose noise it is.')
        return
    pca.mechanism.validate()
    if isinstance(pca.n_components, str) and pca.n_components != ABOVE_NOISE:
        raise ValueError(
            f"n_components={pca.n_components!r} takes variances for those of rows, and a "
            f"mechanism adds noise: give a number, or no mechanism={pca.mechanism!r}."
        )


def check_same_trust(pca: Any) -> None:
    """Raise if earlier calls have sent something else than this one will, and note what it does."""
    trust = None if pca.mechanism is None else pca.mechanism.trust
    if pca._clients and trust != pca._trust:
        raise ValueError(
            f"mechanism must not change between calls of partial_fit from trust="
            f"{pca._trust!r} to {trust!r} (None: no mechanism); call fit."
        )
    pca._trust = trust


def release_of_clients(
    pca: Any, X: Any, weight: Any, shards: list[tuple[Any, Any]], fresh: bool
) -> list[Any]:
    """One release of each client, after its account has been charged; all releases merged."""
    X = in_memory(X)
    mechanism, d = pca.mechanism, X.shape[1]
    costs = mechanism.costs(d, 1, 1 / mechanism.n_releases)
    mu2 = mechanism.cost(costs, d, n_shares=len(shards))
    max_rank = private_directions(pca._directions_needed(), d)
    accounts, terms = charged(pca, X, weight, shards, mu2, costs, fresh)
    seeds, labels = seeds_of(pca.random_state), [label for label, _ in shards]
    releases = [
        (label, Release(mechanism, terms, rows, (*seeds, *own), max_rank))
        for (label, rows, _), own in zip(
            rows_of(X, None, shards), accounts.numbers(labels), strict=True
        )
    ]
    if mechanism.trust == "sum":
        federation = Federation(pca.n_jobs, log=pca.communication_)
        found = {_SUM: summary_of_sums(federation, releases)}
    else:
        found = dict(pca._map(private_summary, releases, shards))
    made: dict[Any, Site] = {}
    privacy: dict[tuple[Any, Any], StatedPrivacy] = {}  # by what is spent, the same for most
    for label, summary in found.items():
        known = accounts.mu2(None if mechanism.trust == "sum" else label), norm_found(summary)
        if known not in privacy:
            privacy[known] = stated(mechanism, *known)
        before, n_rows = pca._clients.get(label), round(summary.n_samples)
        if before is not None:
            summary = merge_subspaces([before.summary, summary], max_rank)
            n_rows += before.n_rows
        made[label] = Site(None, n_rows, summary._replace(privacy=privacy[known]))
    pca._clients = {**pca._clients, **made}
    pca._merge_all()
    message = show_above_noise(pca, terms, terms.n_shares, accounts.n_calls)
    if accounts.n_calls == 1:
        warn_at_the_end(pca, message)
    return labels


def private_directions(wanted: int | float | None, d: int) -> int | None:
    """Directions that a client keeps of a private second moment; None: all."""
    return kept_directions(min(int(wanted), d), d) if isinstance(wanted, Integral) else None


def _noise_terms(pca: Any, terms: Terms, n_calls: int) -> Terms:
    """Terms of the client with the most noise, or a little more, where searches are made."""
    mechanism, d = pca.mechanism, len(pca.mean_)
    if not mechanism.searches:
        return terms
    found = []
    for site in pca._clients.values():
        searches = mechanism._searches_of(site.n_rows / n_calls, d)
        costs = mechanism.costs(d, 1, 1 / mechanism.n_releases, searches)
        norm = norm_found(site.summary)
        norm = terms.row_norm if norm is None else norm
        found.append(replace(terms, row_norm=norm, costs=costs))
    return max(found, key=lambda of: of.product_std)


def show_above_noise(pca: Any, terms: Terms, n_sources: int, n_calls: int = 1) -> str | None:
    """Set ``n_components_above_noise_``; text of a warning if components look like noise.

    Each summary has the noise of ``n_sources`` clients in each of ``n_calls`` calls. Also set the
    number of components where that is asked for.
    """
    terms, d, shares = _noise_terms(pca, terms, n_calls), len(pca.mean_), math.sqrt(n_sources)
    sites = [site.summary for site in pca._clients.values() if site.n_rows]
    n_releases = len(sites) * n_calls
    size = pca.mechanism._OFF_DIAGONAL * terms.product_std * shares
    spike = of_means = of_spikes = 0.0
    if terms.costs.mean is not None:  # n m m^T, of which m has noise, is taken off
        t = terms.mean_std * shares
        n_rows = np.array([s.n_samples / n_calls for s in sites])
        if spikes := _spikes_of_means(pca, terms, sites, t, n_calls):
            spike = max(spikes)
            of_spikes = spike_of_means(size, d, float(np.mean(spikes)), n_releases)
        # and the means of clients differ by their noise
        of_means = noise_of_means(t, d, n_rows, terms.row_norm, n_calls)
    found, noise = pca.subspace_, edge(size, d, spike)
    spectra = _spectra(pca, sites, n_calls)
    above = _n_above(found, sites, spectra, noise, of_means, n_calls, of_spikes)
    usual = n_calls == 1 and "center" not in pca.mechanism.searches
    if usual and len(sites) > 1 and spike > size * math.sqrt(d):  # beyond the other noise
        far = [s.mean - terms.origin(d) for s in sites]
        without = [across_mean(s, u) for s, u in zip(sites, far, strict=True)]
        std = np.minimum(t / n_rows, terms.row_norm / math.sqrt(d))
        left = edge(size, d, d * float((n_rows * std**2).max()))  # of n g g^T, of such noise g
        across = merge_subspaces(without)
        n_across = _n_above(across, without, _spectra(pca, without), left, of_means)
        lean = math.sqrt(d) * float(n_rows @ std / (n_rows @ np.linalg.norm(far, axis=1)))
        above = max(above, n_within(found.components, across.components[:n_across], lean))
    pca.n_components_above_noise_ = above
    if pca.n_components == ABOVE_NOISE:
        pca._set_fitted(pca.subspace_, max(1, above), pca.n_samples_)
    of_all = edge_of_sum(noise, spectra[0], d, of_spikes, n_calls) + of_means
    message = noise_message(float(found.singular_values.max(initial=0.0)) ** 2, of_all, d)
    asked = isinstance(pca.n_components, Integral) and above < pca.n_components_
    if message is None and noise and asked and n_releases == 1:  # where the edge is exact
        return beyond_message(above, pca.n_components_)
    return message


def _spectra(
    pca: Any, sites: list[Subspace], n_calls: int = 1
) -> tuple[list[np.ndarray], list[float] | None]:
    """Eigenvalues of a release of each site and traces, None where these tell nothing."""
    spectra = [s.singular_values.astype(np.float64) ** 2 / n_calls for s in sites]
    traces = [s.scatter / n_calls for s in sites]
    return spectra, traces if pca.mechanism._SYMMETRIC else None


def _n_above(
    found: Subspace,
    sites: list[Subspace],
    spectra: tuple[list[np.ndarray], list[float] | None],
    noise: float,
    of_means: float,
    n_calls: int = 1,
    of_spikes: float = 0.0,
) -> int:
    """Components of a merge above an edge of noise, and above that between the means."""
    merged = found.singular_values.astype(np.float64) ** 2
    if not noise:
        return len(merged)
    between = np.zeros(len(merged))  # the part of each that is in the spread of means
    for s in sites:
        between += s.n_samples * (found.components @ (s.mean - found.mean)) ** 2
    within = between < merged / 2
    # of the calls of a client the spread is not known
    merged -= of_means if n_calls > 1 else np.minimum(between, of_means)
    return count_above(merged, *spectra, noise, found.n_features, of_spikes, within, n_calls)


def _spikes_of_means(
    pca: Any, terms: Terms, summaries: list[Subspace], t: float, n_calls: int
) -> list[float]:
    """What the noise of means adds to the largest eigenvalue of releases that it is not taken off.

    By their distances to the centre that rows were clipped about, or by the sizes of these. ``t``
    is the deviation of the noise on sums of rows. See `SecondMomentMechanism.summary`.
    """
    d, mechanism = len(pca.mean_), pca.mechanism
    search, R = mechanism.searches.get("center"), terms.row_norm
    found = []
    for summary in summaries:
        mean, n = summary.mean, summary.n_samples / n_calls
        if search is None:
            far = float(np.linalg.norm(mean - terms.origin(d)))
            if mechanism._noise_taken_off(far, t, n, R, d):
                continue
            if far < R * (1 - 1e-9):  # otherwise shortened to R
                far = math.sqrt(max(0.0, far**2 - d * (t / summary.n_samples) ** 2 * n_calls))
            found.append(spike_of_mean(far, t, d))
            continue
        cost = search._cost_of_mean(n, d, mechanism.budget() / mechanism.n_releases)
        std, far = mechanism._sum_std(cost, d) / n, float(np.linalg.norm(mean))
        for _ in range(N_ROUNDS):  # whose norms are larger than R, and hold what is still to go
            far = min(far, math.sqrt(d) * std * 2 * math.hypot(R, far))
        found.append(spike_of_mean(far, t, d))
    return found
