"""`FederatedPCA` on rows with missing entries: moments of pairs in place of summaries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .._kernels.sizes import SMALL_DIMENSION
from .._validation.checks import check_at_most_features
from ..summary import PairMoments
from ..summary._origin import check_each_site_once
from ._available_pairs import AvailablePairs
from ._clients import label_order
from ._local_fit import Site, labels_of_sites
from ._missing_rows import MissingRowsMixin
from ._refined import RefinesMixin


class PairsOfClientsMixin(MissingRowsMixin, RefinesMixin):
    """Keep the moments of each client, and refuse what needs summaries of directions."""

    @classmethod
    def from_pairs(
        cls,
        pairs: Iterable[PairMoments],
        n_components: int | float | None = None,
        *,
        missing: AvailablePairs | None = None,
    ) -> Any:
        """Build a fitted estimator from moments of rows with missing entries elsewhere.

        Parameters
        ----------
        pairs : iterable of PairMoments
            One per site, for instance read with `PairMoments.load`.
        n_components : int, float or None, default=None
            As in the constructor.
        missing : AvailablePairs or None, default=None
            That of the estimator; None: ``AvailablePairs()``.

        Returns
        -------
        pca : FederatedPCA
            ``clients_`` are the sites, if all moments know theirs, or else the positions in the
            list. The numbers are those of a fit in one process, to the last bit.
        """
        pairs = list(pairs)
        kinds = sorted({type(part).__name__ for part in pairs})
        if kinds != [PairMoments.__name__]:
            raise TypeError(f"pairs must be one PairMoments object or more, got {kinds or None}.")
        pca = cls(n_components, missing=AvailablePairs() if missing is None else missing)
        pca._check_parameters()
        pca.n_features_in_ = d = pairs[0].n_features
        check_at_most_features(n_components, d)
        names = next((part.feature_names for part in pairs if part.feature_names), None)
        check_each_site_once(pairs, "pairs")
        pca._start()
        parts: list[Any] = pairs
        pca._take_pairs(
            (label, Site(None, max(1, round(part.n_samples)), part))
            for label, part in zip(labels_of_sites(parts), parts, strict=True)
        )
        pca.clients_ = sorted(pca._clients, key=label_order)
        if names is not None:
            pca.feature_names_in_ = np.array(names, dtype=object)
        return pca

    def _pairs_step(self, X: Any, weight: Any, shards: list[tuple[Any, Any]]) -> list[Any]:
        _check_features(X.shape[1])
        return super()._pairs_step(X, weight, shards)

    def _merge_pairs(self) -> None:
        _check_features(next(iter(self._clients.values())).summary.n_features)
        super()._merge_pairs()
        self.estimators_: dict[Any, Any] = {}
        self.n_refinements_ = 0

    def _never_exceeds(self) -> bool:
        return self.missing is None and super()._never_exceeds()

    def _check_merge(self) -> None:
        if self.missing is not None:
            raise ValueError(
                f"missing={self.missing!r} cannot be refined: the covariance of pairs is whole, "
                "and rows with missing entries have no products with directions."
            )
        super()._check_merge()


def _check_features(d: int) -> None:
    if d > SMALL_DIMENSION:
        raise ValueError(
            f"X has d={d} features; FederatedPCA with missing=AvailablePairs() takes at most "
            f"{SMALL_DIMENSION}, as clients send 2 d^2 floats. DistributedPCA takes any number, "
            "and FederatedSubspaceTracker sends directions only."
        )
