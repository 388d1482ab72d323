"""Estimators of which a site sends one summary of its rows, or of a batch of them."""

from __future__ import annotations

from numbers import Integral
from typing import Any
from zlib import crc32

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from .._base.adjusting import adjusting_of, with_confounders
from .._kernels.sizes import kept_directions
from .._validation.checks import check_at_most_features
from ..federated import ConditionalFill, FederatedPCA, TruncatedDistributedPCA
from ..federated._distributed_pca import local_message
from ..federated._local_fit import Site, fit_site
from ..federated._private import show_above_noise, shown_first
from ..federated._summaries import work_of_clients
from ..summary import Subspace
from ..summary._metric import merged
from ._estimators import (
    check_count,
    check_squares,
    fit_estimator,
    know_columns,
    partial_fit_estimator,
    refuse_mechanism,
    rows_sent,
    rows_told,
    site_work,
    until_nobody_is_lost,
)
from ._filling import fill_tasks, fit_by_filling
from ._messages import Answer
from ._pairs import fit_by_pairs, pair_tasks, partial_fit_by_pairs
from ._private import private_summaries, show_spent, warn_of_noise, with_spent
from ._questions import Task
from ._refinements import refined, refinement_tasks
from ._sites import Sites


def summary_sent(summary: Subspace) -> dict[str, np.ndarray]:
    """A summary as a site sends it."""
    return {"summary": np.frombuffer(summary.to_bytes(), np.uint8)}


def valid_summary(answer: Answer) -> Subspace:
    """The summary in an answer, without names and without what it states about privacy."""
    return _read_summary(answer)._replace(privacy=None)


def _read_summary(answer: Answer) -> Subspace:
    data = answer.array("summary", (None,), "|u1")
    try:
        summary = Subspace.from_bytes(data)
    except ValueError as error:
        raise answer.refused(f"no valid summary: {error}") from None
    check_count(answer, summary.n_samples)
    squares = summary.scatter / summary.n_samples
    check_squares(answer, summary.mean, squares, summary.components.dtype)
    return summary._replace(site=None, feature_names=None)


def summary_told(answer: Answer) -> Subspace:
    """The summary of a site's rows in an answer, which must fit those of the others."""
    return _like_the_others(answer, valid_summary(answer))


def _like_the_others(answer: Answer, summary: Subspace) -> Subspace:
    answer.agree("number of features", summary.n_features)
    answer.agree("centring", summary.centered)
    return summary


def _summary_and_rows(answer: Answer) -> tuple[Subspace, int]:
    summary = summary_told(answer)
    return summary, rows_told(answer, summary.n_samples)[1]


# -------------------------------------------------------------------- FederatedPCA


@site_work.register
def _(estimator: FederatedPCA) -> dict[str, Task]:
    if estimator.mechanism is not None:
        return private_summaries(estimator)

    def summarised(site, X, weight, columns, of_filled=None):
        local = clone(estimator)
        know_columns(local, columns)
        prototype = work_of_clients(local, X, "fit", weight is not None)
        rng = check_random_state(local.random_state)
        seed = (rng.randint(2**31 - 1) + crc32(site.encode())) % (2**31 - 1)  # sites differ
        found = fit_site(site, None, prototype, seed, X, weight, "fit").summary
        found = found if of_filled is None else of_filled(found)
        return summary_sent(found) | rows_sent(X, weight)

    def summary(site, X, *, weight, columns):
        return summarised(site, X, weight, columns)

    if isinstance(estimator.missing, ConditionalFill):
        return fill_tasks(estimator, summarised)
    if estimator.missing is not None:
        return pair_tasks(estimator.missing)
    own = estimator.estimator is not None
    reads = "rows: an estimator of one's own takes them" if own else "summary"
    return {
        "summary": Task(summary, reads=reads),
        "summary_of_batch": Task(summary, reads=reads, begins=True, batches=True),
        **refinement_tasks(estimator),
    }


@fit_estimator.register
def _(estimator: FederatedPCA, sites: Sites) -> FederatedPCA:
    if isinstance(estimator.missing, ConditionalFill):
        return fit_by_filling(estimator, sites, _summary_and_rows)
    if estimator.missing is not None:
        return fit_by_pairs(estimator, sites)
    if estimator.mechanism is not None:
        return _with_private_summaries(estimator, sites)

    def fit() -> FederatedPCA:
        found = sites.ask("summary", _summary_and_rows)
        fitted = clone(estimator)
        fitted._start()
        know_columns(fitted, sites.columns)
        sent = {site: summary for site, (summary, _) in found.items()}
        return refined(_with_summaries(fitted, found), sites, sent)

    return until_nobody_is_lost(fit)


def _with_private_summaries(estimator: FederatedPCA, sites: Sites) -> FederatedPCA:
    summaries = sites.ask("summary", with_spent(sites, _private_summary)).items()
    named = [summary._replace(site=site) for site, summary in summaries]
    fitted = FederatedPCA.from_subspaces(named, shown_first(estimator), merge=estimator.merge)
    fitted.set_params(**estimator.get_params(deep=False))
    show_spent(fitted, sites)
    d, mechanism = fitted.components_.shape[1], estimator.mechanism
    costs = mechanism.costs(d, 1, 1 / mechanism.n_releases)
    terms = mechanism.terms(np.empty((0, d)), costs)
    warn_of_noise(show_above_noise(fitted, terms, n_sources=1))
    return fitted


def _private_summary(answer: Answer) -> Subspace:
    summary = _like_the_others(answer, _read_summary(answer))
    if summary.privacy is None:
        raise answer.refused("a summary that states nothing about its privacy")
    return summary


@partial_fit_estimator.register
def _(estimator: FederatedPCA, sites: Sites, batch: int) -> FederatedPCA | None:
    refuse_mechanism(estimator)
    if isinstance(estimator.missing, ConditionalFill):
        raise ValueError(
            f"missing={estimator.missing!r} takes all rows of a site at once, as each is filled in "
            "anew: fit_sites does."
        )
    if estimator.missing is not None:
        return partial_fit_by_pairs(estimator, sites, batch)
    if hasattr(estimator, "subspace_"):
        sites.expect(centring=estimator.subspace_.centered)
    else:
        estimator._start()
    found = sites.ask_batch("summary_of_batch", _summary_and_rows, batch)
    if not found:
        return None
    estimator._add_clients(list(found))
    know_columns(estimator, sites.columns)
    return _with_summaries(estimator, found)


def _with_summaries(estimator: Any, found: dict[str, tuple[Subspace, int]]) -> FederatedPCA:
    """Estimator that has merged what sites sent, each with what it had sent before."""
    seen, d = estimator._clients, next(iter(found.values()))[0].n_features
    check_at_most_features(estimator.n_components, d)
    wanted = with_confounders(estimator, estimator._directions_needed())
    max_keep = kept_directions(min(int(wanted), d), d) if isinstance(wanted, Integral) else None
    made = {}
    for site, (summary, n_rows) in found.items():
        if site in seen:
            n_rows += seen[site].n_rows
            before = seen[site].summary._replace(site=None)  # the same site, not the same rows
            summary = merged([before, summary], max_keep, adjusting_of(estimator, d))
        made[site] = Site(None, n_rows, summary._replace(site=site))
    estimator._clients = {**seen, **made}
    estimator._merge_all()
    return estimator


# -------------------------------------------------------------------- TruncatedDistributedPCA


@site_work.register
def _(estimator: TruncatedDistributedPCA) -> dict[str, Task]:
    def summary(site, X, *, weight):
        found = local_message(site, X, weight, estimator.local_threshold)
        return summary_sent(found) | rows_sent(X, weight)

    return {"summary": Task(summary, reads="summary")}


@fit_estimator.register
def _(estimator: TruncatedDistributedPCA, sites: Sites) -> TruncatedDistributedPCA:
    found = sites.ask("summary", _cut_summary)
    sent = {site: summary for site, (summary, _) in found.items()}
    check_at_most_features(estimator.n_components, next(iter(sent.values())).n_features)
    estimator._start()
    estimator._show(sent, list(sent), sum(n_rows for _, n_rows in found.values()))
    return estimator


def _cut_summary(answer: Answer) -> tuple[Subspace, int]:
    """A summary that tells of no scatter but that along its directions."""
    summary, n_rows = _summary_and_rows(answer)
    s = summary.singular_values.astype(np.float64)
    if not summary.centered or summary.column_scatter is not None:
        raise answer.refused("another summary than of leading components")
    return summary._replace(scatter=float(s @ s)), n_rows
