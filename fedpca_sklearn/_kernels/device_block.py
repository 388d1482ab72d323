"""Update of a summary with a block of rows on a device; see `stack` for the routes."""

from __future__ import annotations

import numpy as np

from .device_rows import DeviceStack, sums_and_squares
from .scatter import rounded
from .stack import DenseBlock
from .subspace_passes import DeviceRowsOfPasses


class DeviceBlock(DenseBlock):
    """A dense block on a device, where its products are made; the rest is done at home."""

    _passes = DeviceRowsOfPasses

    def _gram(self, dtype):
        k, centre, rest = self.k, np.zeros(self.d), np.zeros(self.d)
        if self.center:
            centre = rounded(self.shift, dtype)  # what is subtracted first
            sums, _ = sums_and_squares(self.Y, centre, dtype, self.root_w)
            rest = sums / self.n_block
            self.offset = (centre - self.shift) + rest
        correction = self.correction_scale * self.gap if self.has_correction else None
        stack = DeviceStack(self.V, self.Y, centre, rest, self.root_w, correction, dtype)
        self.column_scatter = stack.squares()
        G = np.zeros((self.n_rows, self.n_rows))
        G[k:, k:], G[k:, :k] = stack.gram()
        return G, stack.turned

    def _by_qr(self, max_rank, choose_rank, past_scatter):
        self.Y = self.Y.in_numpy()
        return super()._by_qr(max_rank, choose_rank, past_scatter)
