"""What missing entries must be like, so that sums of a site's rows tell no single one."""

from __future__ import annotations

import numpy as np

from ._site_policy import RefusedError


def check_entries(there: np.ndarray, n_rows: int, min_rows: int) -> None:
    """Raise where a column is there, or is not, in so few rows that sums tell them.

    Parameters
    ----------
    there : ndarray of shape (d,)
        Rows that have an entry in each column.
    n_rows, min_rows : int
    """
    if any(((n > 0) & (n < min_rows)).any() for n in (there, n_rows - there)):
        raise RefusedError(
            f"a column that fewer than min_rows={min_rows} rows have, or have not: what is sent "
            "would tell them"
        )
