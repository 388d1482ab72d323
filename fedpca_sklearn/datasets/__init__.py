"""Synthetic streams, and ways to split rows over clients."""

from ._clients import partition_clients
from ._spectra import make_power_law, make_spiked
from ._subspace_stream import make_subspace_stream

__all__ = ["make_power_law", "make_spiked", "make_subspace_stream", "partition_clients"]
