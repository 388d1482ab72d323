"""A memory that grows with the stream."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

# Rows over which residuals are averaged, and below which falling residuals forget nothing.
_WINDOW = 20
# Shares of a row's energy up to which a residual is a rounding error.
_ROUNDING = 1e-28


@dataclass(frozen=True)
class Memory:
    """Rows that count, and the residuals of recent rows with holes, now and at their least.

    Coordinates of whole rows are the same in every basis up to a linear map, so that a whole row
    takes no weight from those before. Coordinates of rows with holes are as wrong as the basis of
    their time. With n rows before it, one of which a share s is there multiplies their weights by
    (n / (n + 1))^(1 / s): weights grow with the rows, and noise averages out over about half of
    them.

    Where residuals fall below all before, the rows before came with a worse basis: n falls by as
    much. In noise they do not fall, and the memory grows; without noise they fall with each row,
    and the memory stays short until nothing is left to learn.

    ``patient``: while residuals do not fall, what is missing takes the weight, and the power is
    (1 - s) / s: for least squares of all rows that count, from a basis that some rows have shown.
    One that was drawn may be so far off that residuals stay until it is forgotten.
    """

    rows: float = 0.0
    residual: float = math.nan
    least: float = math.nan
    patient: bool = False

    def after(self, residual: float, share: float = 1.0) -> tuple[float, Memory]:
        """Factor for the weights of the rows before a row, and the memory with it.

        Parameters
        ----------
        residual : float
            Mean square of what the basis leaves of the row, over that of the row.
        share : float, default=1.0
            Of the row's entries that are there.
        """
        if share == 1:
            return 1.0, replace(self, rows=self.rows + 1)
        now, least, n = max(residual, _ROUNDING), self.least, self.rows
        if math.isnan(least):
            least = now
        else:
            now = self.residual + (now - self.residual) / _WINDOW
        counted = 1 - share if self.patient else 1.0
        if now < least:
            n = max(n * now / least, min(n, _WINDOW))
            least, counted = now, 1.0
        factor = (n / (n + 1)) ** (counted / share) if n else 1.0
        return factor, replace(self, rows=n + 1, residual=now, least=least)


EMPTY = Memory()


def relative_residual(residual: float, square: float, n_seen: int, k: int) -> float:
    """Mean square of a residual over that of its row.

    Parameters
    ----------
    residual, square : float
        Sums of squares over the entries that are there, of the residual and of the row; ``square``
        is above 0.
    n_seen, k : int
        Number of these entries, and of the coordinates that were fitted to them.
    """
    return residual / square * n_seen / max(n_seen - k, 1)
