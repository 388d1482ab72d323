"""`FederatedPCA` on rows with missing entries: moments of pairs, or rows that are filled in."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import Any

import numpy as np

from .._base.batches import float_dtype
from .._base.missing_entries import ObservedEntriesMixin
from .._dask import RowChunks
from .._kernels.sizes import SMALL_DIMENSION
from .._validation.checks import check_at_most_features
from .._validation.feature_names import names_known
from ..communication._federation import Message
from ..summary import PairMoments
from ..summary._origin import check_each_site_once
from ._available_pairs import AvailablePairs
from ._clients import label_order, rows_of
from ._conditional_fill import (
    ConditionalFill,
    entries_of_client,
    filled_by,
    filled_by_means,
    pooled_means,
    with_unseen_variance,
)
from ._local_fit import Site, labels_of_sites
from ._missing_rows import MissingRowsMixin
from ._refined import RefinesMixin


class PairsOfClientsMixin(MissingRowsMixin, RefinesMixin):
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
            (label, Site(None, _rows_of(part), part))
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
        if isinstance(self.n_components, str):
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

    def _filling_step(self, X: Any, weight: Any, shards: list[Any]) -> list[Any]:
        """Rounds in which clients fill their rows in, and send summaries of them."""
        if isinstance(X, RowChunks):
            raise TypeError(
                f"X is a dask.array, whose chunks missing={self.missing!r} does not fill in; "
                "AvailablePairs() and X.compute() do without."
            )
        if self.n_components is None:
            raise ValueError(
                f"n_components must be a number or a share with missing={self.missing!r}, by which "
                "rows are filled in, got None."
            )
        log, d, s = self.communication_, X.shape[1], len(shards)
        found = dict(self._map(entries_of_client, rows_of(X, weight, shards), shards))
        means, counts = pooled_means(list(found.values()))
        log.record([Message(2 * d, 16 * d)] * s, [Message(d, 8 * d)] * s)
        shares = 1 - counts / (X.shape[0] if weight is None else weight.sum())
        X = X.astype(float_dtype(X), copy=False)
        filled = filled_by_means(X, means)
        for number in range(self.missing.n_rounds + 1):
            if number:
                V = self.components_
                n_floats = V.size + d + len(V) + 1
                log.record(down=[Message(n_floats, n_floats * V.itemsize)] * s)
                filled = filled_by(X, self._filled)
            self._reset()
            labels = self._step(filled, weight, shards, "fit")
            subspace = with_unseen_variance(self.subspace_, shares, self.n_components_)
            self._set_fitted(subspace, self.n_components, self.n_samples_)
        return labels

    def _filled(self, rows: np.ndarray) -> np.ndarray:
        """Dense rows with their missing entries filled in by the components."""
        return self._fill_in(rows, rows, np.isnan(rows))

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


def _rows_of(part: PairMoments) -> int:
    """Rows that moments stand for, as a whole number."""
    return max(1, round(part.n_samples)) if part.n_samples > 0 else 0


def _check_features(d: int) -> None:
    if d > SMALL_DIMENSION:
        raise ValueError(
            f"X has d={d} features; FederatedPCA with missing=AvailablePairs() takes at most "
            f"{SMALL_DIMENSION}, as clients send 2 d^2 floats. DistributedPCA takes any number, "
            "and missing=ConditionalFill() sends directions only."
        )
