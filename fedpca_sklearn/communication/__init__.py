"""Communication of clients: federations, channels, topologies and schedules; no PCA."""

from ._channel import Channel, FadingChannel, FixedPointChannel, GaussianChannel, PerfectChannel
from ._federation import CommunicationLog, Federation
from ._topology import Complete, Graph, Ring, Star, Topology, load_balanced_schedule

__all__ = [
    "Channel",
    "CommunicationLog",
    "Complete",
    "FadingChannel",
    "Federation",
    "FixedPointChannel",
    "GaussianChannel",
    "Graph",
    "PerfectChannel",
    "Ring",
    "Star",
    "Topology",
    "load_balanced_schedule",
]
