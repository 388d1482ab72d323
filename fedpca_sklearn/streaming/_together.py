"""Batches of a stream on a device, taken together: one update of the summary with all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._kernels.device_rows import DeviceRows
from .._kernels.device_sums import DeviceSums
from ..summary import Subspace
from ..summary._updating import updated_by_block, updated_to


class Together:
    """Update a summary with batches, of which some wait as a sum on their device.

    Within one call, so that whether somebody reads between two calls changes nothing.

    Parameters
    ----------
    wanted : int or None
        Directions that must be certain with each batch; None: no batch waits.
    """

    def __init__(self, wanted: int | None):
        self.wanted = wanted
        self._sums: DeviceSums | None = None

    def updated(
        self, subspace: Subspace, rows: Any, w: np.ndarray | None, **options: Any
    ) -> Subspace:
        """The summary with rows, or without those that wait, see `whole`; as `updated_by_block`."""
        if self._sums is not None and self._may_wait(rows, w) and self._sums.take(rows):
            return subspace
        subspace = self.whole(subspace)
        if self._may_wait(rows, w):
            sums = DeviceSums(
                subspace.components,
                subspace.singular_values,
                subspace.mean,
                subspace.n_samples,
                rows,
                subspace.centered,
                self.wanted,
            )
            if sums.take(rows):
                self._sums = sums
                return subspace
        return updated_by_block(subspace, rows, w, **options)

    def whole(self, subspace: Subspace) -> Subspace:
        """The summary with the batches that wait as well, for an eigenproblem if there are any."""
        sums, self._sums = self._sums, None
        if sums is None:
            return subspace
        return updated_to(subspace, sums, sums.directions())

    def _may_wait(self, rows: Any, w: np.ndarray | None) -> bool:
        if self.wanted is None or w is not None or not isinstance(rows, DeviceRows):
            return False
        return rows.place.widest == rows.place.xp.float64
