"""Unpredictable seeds for noise."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

# Words of 32 bits in the seed of a client.
_WORDS = 4


def seeds_of(random_state: Any) -> tuple[int, ...]:
    """Seed that no one can guess by trying, from the operating system if none is given."""
    if random_state is None:
        return (secrets.randbits(32 * _WORDS),)
    rng = check_random_state(random_state)
    return tuple(int(word) for word in rng.randint(2**32, size=_WORDS, dtype=np.uint32))
