"""Update of a subspace summary with a block of rows on a device."""

from __future__ import annotations

import numpy as np

from .device_rows import DeviceStack, sums_and_squares
from .stack import DenseBlock
from .subspace_passes import DeviceRowsOfPasses


class DeviceBlock(DenseBlock):
    """A dense block on a device, where its products are made; the rest is done at home."""

    _passes = DeviceRowsOfPasses

    def _gram(self, dtype):
        k, none = self.k, np.zeros(self.d)
        if self.center:
            sums, _ = sums_and_squares(self.Y, self.shift, dtype, self.root_w)
            self.offset = sums / self.n_block
        correction = self.correction_scale * self.offset if self.has_correction else None
        centre = self.shift + self.offset if self.center else none
        stack = DeviceStack(self.V, self.Y, centre, self.root_w, correction, dtype)
        self.column_scatter = stack.squares()
        G = np.zeros((self.n_rows, self.n_rows))
        G[k:, k:], G[k:, :k] = stack.gram()
        return G, stack.turned

    def _by_qr(self, max_keep, keep, past_scatter):
        self.Y = self.Y.in_numpy()
        return super()._by_qr(max_keep, keep, past_scatter)
