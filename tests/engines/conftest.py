"""What tests of sites do without: waiting for a disk, and arithmetic in constant time."""

import os
from contextlib import suppress
from functools import cache

import pytest

PRIME = 2**128 + 135  # of Shamir's field, as a polynomial


class Inline:
    """An executor that calls at once: Flower starts threads for each secret that is shared."""

    map = staticmethod(map)

    def __init__(self, max_workers):
        assert max_workers >= 1

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def product(a, b):
    """Of two elements of the field, in as much time as they take."""
    large, small, total = max(int(a), int(b)), min(int(a), int(b)), 0
    while small:
        total ^= large if small & 1 else 0
        large, small = large << 1, small >> 1
        large ^= PRIME if large >> 128 else 0
    return type(a)(total)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)
    with suppress(ImportError):  # where there are no secure sums
        from Crypto.Protocol.SecretSharing import _Element
        from flwr.common.secure_aggregation.crypto import shamir

        inverse = cache(lambda value: whole(_Element(value)))
        whole = _Element.inverse
        monkeypatch.setattr(shamir, "ThreadPoolExecutor", Inline)
        monkeypatch.setattr(_Element, "__mul__", product)
        monkeypatch.setattr(_Element, "inverse", lambda own: inverse(int(own)))
