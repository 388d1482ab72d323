"""Clients whose rows have missing entries, for estimators with a parameter ``missing``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from inspect import signature
from operator import attrgetter
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.metaestimators import available_if

from .._base.batches import count_rows
from .._base.missing_entries import ObservedEntriesMixin
from .._kernels.missing import noise_ridge
from .._kernels.too_large import largest_named
from ..communication._federation import Message, clients_named
from ..summary import PairMoments
from ..summary._pair_moments import merged_pairs
from ._clients import StreamingClientsTransformer, rows_of
from ._local_fit import Site, with_label_as_site

# In the place of a client where only the sum over clients is kept.
_SUM = 0


class MissingRowsMixin(ObservedEntriesMixin, StreamingClientsTransformer):
    """What clients send where ``missing`` is `AvailablePairs`, and what the server makes of it.

    `_missing_step` then stands in the place of the subclass's own step.
    """

    # a `MissingStrategy` or None, a parameter of the subclass
    missing: Any = None
    # whether the moments of each client are kept, so that one can leave
    _keeps_clients = True

    # a method of estimators with missing entries only
    impute = available_if(attrgetter("_takes_missing"))(ObservedEntriesMixin.impute)

    negative_variance_: float
    _clients: dict[Any, Site]

    @property
    def _takes_missing(self) -> bool:
        return self.missing is not None

    def _ridge(self) -> np.ndarray | None:
        """As in probabilistic PCA; without a rest the least variance is taken for noise."""
        variances = self.explained_variance_
        rest = len(variances) < self.components_.shape[1]
        return noise_ridge(variances, float(self.noise_variance_ if rest else variances[-1]))

    def _check_parameters(self) -> None:
        """Raise also where another would play no part, or earlier calls had other rows."""
        super()._check_parameters()
        kind = type(self.missing).__name__
        if vars(self).get("clients_") and vars(self).get("_missing_of_fit", kind) != kind:
            raise ValueError(
                f"missing must not change between calls of partial_fit, got {self.missing!r}; "
                "call fit."
            )
        if self.missing is None:
            return
        self.missing.validate()
        for name, parameter in signature(type(self)).parameters.items():
            value, default = getattr(self, name), parameter.default
            kept = name in self.missing._leaves or value is default
            if not kept and not np.array_equal(value, default):
                raise ValueError(
                    f"{name} must be {default!r} with missing={self.missing!r}, got {value!r}."
                )

    def _start(self) -> None:
        self.__dict__.pop("negative_variance_", None)
        self._missing_of_fit = type(self.missing).__name__
        super()._start()

    def _way(self) -> Callable[[Any, Any, list, str], list[Any]]:
        return self._step if self.missing is None else self._missing_step

    def _missing_step(self, X: Any, weight: Any, shards: list[Any], method: str) -> list[Any]:
        """One round, in which clients send the moments of their rows."""
        return self._take_pairs(self._map(_pairs_of_client, rows_of(X, weight, shards), shards))

    def _take_pairs(self, found: Iterable[tuple[Any, Site]]) -> list[Any]:
        """Add what clients send to what they sent before, and set the fitted attributes."""
        clients, sizes = dict(self._clients), {}
        named = any(client.summary.sites for client in clients.values())
        for label, site in found:
            sizes[label] = Message(site.summary.n_floats, site.summary.nbytes)
            key = label if self._keeps_clients else _SUM
            clients[key] = _added(clients[key], site) if key in clients else site
            if named:
                clients[key] = with_label_as_site(key, clients[key])
        self.communication_.record(sizes.values())
        self._clients = clients
        self._merge_pairs()
        return list(sizes)

    def _merge_pairs(self) -> None:
        """Add the moments of all clients up, and set the fitted attributes."""
        parts: list[Any] = [site.summary for site in self._clients.values()]
        names = getattr(self, "feature_names_in_", None)
        with largest_named(partial(clients_named, self._clients), parts):
            pairs = merged_pairs(parts)
            if names is not None:
                pairs = pairs._replace(feature_names=tuple(names))
            subspace, negative = clone(self.missing).summary(pairs)
        n_rows = sum(site.n_rows for site in self._clients.values())
        self._set_fitted(subspace, self.n_components, n_rows)
        self.negative_variance_ = negative
        unknown = int(np.sum(self.explained_variance_ <= negative)) if negative else 0
        if unknown:
            warnings.warn(
                f"The covariance of available pairs has negative eigenvalues, down to "
                f"{-negative:.3g}, which are set to zero: {unknown} of {self.n_components_} "
                "components have no more variance than that, as errors have. Ask for fewer.",
                UserWarning,
                stacklevel=2,
            )


def _pairs_of_client(label: Any, X: Any, weight: Any) -> Site:
    """Local work of one client: the moments of its rows."""
    moments: Any = PairMoments.from_rows(X, sample_weight=weight)
    return Site(None, count_rows(X, weight), moments)


def _added(before: Site, more: Site) -> Site:
    """The moments of all rows of a client, or of all clients."""
    parts: list[Any] = [site.summary._replace(site=None) for site in (before, more)]
    moments: Any = merged_pairs(parts)
    return Site(None, before.n_rows + more.n_rows, moments)


def rows_of_summary(part: Any) -> int:
    """Rows that moments or a summary stand for, as a whole number."""
    return max(1, round(part.n_samples)) if part.n_samples > 0 else 0
