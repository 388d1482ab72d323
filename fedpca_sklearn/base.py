"""Bases of what others write: estimators, trackers, and the strategies that estimators take."""

from sklearn.utils._param_validation import Interval

from ._base.block_transformer import BlockTransformer
from ._base.missing_entries import MissingEntriesMixin
from ._base.transformer import SubspaceTransformer
from .communication import Channel, Federation, Topology
from .communication._federation import Message
from .federated import MergeStrategy
from .federated._clients import ClientsTransformer, StreamingClientsTransformer
from .privacy import Mechanism, SecondMomentMechanism, gaussian_cost
from .rank import RankRule
from .streaming._affine import AffineTracker, Move
from .streaming._tracker import Tracker
from .summary._projection_mean import ProjectionMean
from .vertical import LeftVectors, VerticalMethod

# the name of a tracker whose rule begins at a basis: one with a parameter ``init``
StartedTracker = Tracker

__all__ = [
    "AffineTracker",
    "BlockTransformer",
    "Channel",
    "ClientsTransformer",
    "Federation",
    "Interval",
    "LeftVectors",
    "Mechanism",
    "MergeStrategy",
    "Message",
    "MissingEntriesMixin",
    "Move",
    "ProjectionMean",
    "RankRule",
    "SecondMomentMechanism",
    "StartedTracker",
    "StreamingClientsTransformer",
    "SubspaceTransformer",
    "Topology",
    "Tracker",
    "VerticalMethod",
    "gaussian_cost",
]
