"""The two ends of a protocol, whatever carries its messages: a site that answers, and a fit."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from sklearn.base import clone

from .._validation.checks import check_integer, nonnegative_float
from . import (  # noqa: F401  they register estimators
    _columns,
    _heteroscedastic,
    _kernels,
    _rounds,
    _scaling,
    _steps,
    _summaries,
    _tracking,
    _triangles,
)
from ._answering import answering
from ._estimators import (
    NoBatchError,
    check_parameters,
    fit_estimator,
    note_sites,
    partial_fit_estimator,
    site_work,
    until_nobody_is_lost,
)
from ._parameters import FIRST_KINDS, parameters_of
from ._records import Carrier, Context, Message
from ._rows import KeptMoments
from ._secure import SecureAggregation
from ._site_policy import SitePolicy
from ._site_privacy import check_trust, with_ledger
from ._sites import Sites

# -------------------------------------------------------------------- a site


class SiteApp:
    """A site that answers questions about one estimator; the parameters are of `client_app`.

    Attributes
    ----------
    kinds : list of str
        Kinds of questions that it answers, or refuses by name.
    """

    def __init__(
        self,
        load_rows: Callable,
        estimator: Any,
        name_of: Callable[[Any], str],
        policy: SitePolicy,
        secure: SecureAggregation | None = None,
    ):
        estimator = with_ledger(estimator, policy, secure)
        tasks = site_work(estimator) if secure is None else _sums().secure_tasks(estimator, secure)
        check_parameters(estimator)
        step = None if secure is None else _sums().steps_of_site(secure, tasks)
        kept, parameters = KeptMoments(), parameters_of(estimator)
        self._replies = {
            kind: answering(
                load_rows,
                name_of,
                policy,
                estimator,
                tasks,
                kind,
                kept,
                parameters,
                step(kind) if step is not None and kind in tasks else None,
            )
            for kind in {**tasks, **dict.fromkeys(FIRST_KINDS)}
        }
        self.kinds = list(self._replies)

    def reply(self, message: Message, context: Context) -> Message:
        """What the site replies to a question, of a kind of these."""
        return self._replies[message.kind](message, context)


def _sums() -> Any:
    """Secure sums, whose keys need an optional dependency."""
    from . import _secure_all

    return _secure_all


# -------------------------------------------------------------------- the server


@dataclass(frozen=True)
class Wanted:
    """How many sites are wanted, and how long they are waited for: as in `fit_sites`."""

    min_sites: int = 2
    n_sites: int | None = None
    wait: float = 60.0
    timeout: float = 600.0

    def sites(self, carrier: Carrier, estimator: Any, least: int = 0) -> Sites:
        """Sites to ask, once all parameters are known to be right."""
        check_parameters(estimator)
        n_sites = self.min_sites if self.n_sites is None else self.n_sites
        for name, value in (("min_sites", self.min_sites), ("n_sites", n_sites)):
            check_integer(name, value)
        wait = nonnegative_float("wait", self.wait)
        timeout = nonnegative_float("timeout", self.timeout)
        if not timeout:
            raise ValueError(f"timeout must be positive, got {timeout!r}.")
        nodes = _connected(carrier, max(n_sites, least), wait)
        return Sites(nodes, carrier, self.min_sites, timeout, estimator)


def _connected(carrier: Carrier, n_sites: int, wait: float) -> list[int]:
    """Sites that are there, as soon as they are enough or the wait is over."""
    end = time.monotonic() + wait
    while len(nodes := carrier.nodes()) < n_sites and time.monotonic() < end:
        time.sleep(min(1.0, wait))
    return nodes


def fit_over(
    carrier: Carrier, estimator: Any, wanted: Wanted, secure: SecureAggregation | None = None
) -> Any:
    """Fit an estimator to the rows of all sites that a carrier reaches, as `fit_sites` does."""
    kept = clone(estimator)
    site_work(kept) if secure is None else _sums().secure_tasks(kept, secure)
    if getattr(kept, "mechanism", None) is not None:
        check_trust(kept.mechanism, secure)
    if secure is None:
        sites = wanted.sites(carrier, kept)

        def fit() -> Any:
            sites.begin()
            return fit_estimator(clone(kept), sites)

        fitted = until_nobody_is_lost(fit)
    else:
        sites = wanted.sites(carrier, kept, secure.threshold)
        fitted = _sums().fit_securely(kept, sites, secure)
    if not hasattr(fitted, "n_batches_"):  # those of batches are noted one by one
        fitted.clients_ = list(sites.names.values())
    note_sites(fitted, sites)
    return fitted


def partial_fit_over(carrier: Carrier, estimator: Any, batch: int | None, wanted: Wanted) -> Any:
    """Update an estimator with the next batch of all sites, as `partial_fit_sites` does."""
    kept = deepcopy(estimator)
    site_work(kept)
    fitted_before = hasattr(kept, "n_features_in_")
    number = getattr(kept, "n_batches_", None if fitted_before else 0) if batch is None else batch
    if number is None:
        raise ValueError(
            "batch must be given: the estimator was fitted in another way, and does not know how "
            "many batches of the sites it has."
        )
    check_integer("batch", number, 0)
    sites = wanted.sites(carrier, kept)
    if fitted_before:
        names = getattr(kept, "feature_names_in_", None)
        columns = None if names is None else tuple(names.tolist())
        sites.expect(number_of_features=kept.n_features_in_, columns=columns)
    fitted = partial_fit_estimator(kept, sites, int(number))
    if fitted is None:
        raise NoBatchError(f"No site has batch {number}.")
    fitted.n_batches_ = int(number) + 1
    note_sites(fitted, sites)
    return fitted
