"""`FederatedPCA` on rows with missing entries: moments of pairs, or rows that are filled in."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import Any

import numpy as np

from .._base.missing_entries import ObservedEntriesMixin
from .._kernels.sizes import SMALL_DIMENSION
from .._validation.checks import check_at_most_features
from .._validation.feature_names import names_known
from ..summary import PairMoments
from ..summary._origin import check_each_site_once
from ._available_pairs import AvailablePairs
from ._clients import label_order
from ._conditional_fill import ConditionalFill
from ._filling import FillingMixin
from ._local_fit import Site, labels_of_sites
from ._missing_rows import MissingRowsMixin, rows_of_summary


class PairsOfClientsMixin(MissingRowsMixin, FillingMixin):
    """Keep the moments of each client, or fill rows in; refuse what needs whole rows."""

    estimator: Any
    merge: Any

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
        if not isinstance(pairs, Iterable):
            kind = type(pairs).__name__
            raise TypeError(f"pairs must be a sequence of PairMoments objects, got one {kind}.")
        pairs = list(pairs)
        kinds = sorted({type(part).__name__ for part in pairs})
        if kinds != [PairMoments.__name__]:
            raise TypeError(f"pairs must be one PairMoments object or more, got {kinds or None}.")
        if "missing" not in signature(cls).parameters:
            raise TypeError(f"{cls.__name__} takes no moments of pairs.")
        missing = AvailablePairs() if missing is None else missing
        if not isinstance(missing, AvailablePairs):
            raise TypeError(f"missing must be AvailablePairs() for moments, got {missing!r}.")
        pca = cls(n_components, missing=missing)
        pca._check_parameters()
        pca.n_features_in_ = d = pairs[0].n_features
        check_at_most_features(n_components, d)
        names = names_known(pairs)
        check_each_site_once(pairs, "pairs")
        pca._start()
        parts: list[Any] = pairs
        pca._take_pairs(
            (label, Site(None, rows_of_summary(part), part))
            for label, part in zip(labels_of_sites(parts), parts, strict=True)
        )
        pca.clients_ = sorted(pca._clients, key=label_order)
        if names is not None:
            pca.feature_names_in_ = np.array(names, dtype=object)
        return pca

    @property
    def _takes_missing(self) -> bool:
        """Whether rows may have missing entries: also where the sites' trackers take such rows."""
        tracker = self.estimator if isinstance(self.estimator, ObservedEntriesMixin) else None
        return self.missing is not None or (tracker is not None and tracker._takes_missing)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.missing is None:
            return
        fills = isinstance(self.missing, ConditionalFill) and self.n_components == "held-out"
        if isinstance(self.n_components, str) and not fills:
            raise ValueError(
                f"n_components must be a number or a share with missing={self.missing!r}, got "
                f"{self.n_components!r}, which counts by the variances of whole rows."
            )
        if self.merge is not None and self.merge.compares_sites:
            raise ValueError(
                f"merge={self.merge!r} compares sites, which missing={self.missing!r} makes alike: "
                "rows are filled in by the means and the components of all."
            )

    def _missing_step(self, X: Any, weight: Any, shards: list[Any], method: str) -> list[Any]:
        if isinstance(self.missing, ConditionalFill):
            return self._filling_step(X, weight, shards)
        _check_features(X.shape[1])
        return super()._missing_step(X, weight, shards, method)

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
                f"missing={self.missing!r} cannot be refined: rows with missing entries have no "
                "products with directions."
            )
        super()._check_merge()


def _check_features(d: int) -> None:
    if d > SMALL_DIMENSION:
        raise ValueError(
            f"X has d={d} features; FederatedPCA with missing=AvailablePairs() takes at most "
            f"{SMALL_DIMENSION}, as clients send 2 d^2 floats. DistributedPCA takes any number, "
            "and missing=ConditionalFill() sends directions only."
        )
