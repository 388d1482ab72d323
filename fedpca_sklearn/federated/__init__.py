"""Estimators and strategies for data that belongs to several clients."""

from ._distributed_pca import DistributedPCA
from ._federated_pca import FederatedPCA
from ._federation import CommunicationLog, Federation
from ._merge import MergeStrategy, SubspaceMerge
from ._online_distributed_pca import OnlineDistributedPCA
from ._projection_average import ProjectionAverage
from ._schedule import load_balanced_schedule
from ._truncated_distributed_pca import TruncatedDistributedPCA

__all__ = [
    "CommunicationLog",
    "DistributedPCA",
    "FederatedPCA",
    "Federation",
    "MergeStrategy",
    "OnlineDistributedPCA",
    "ProjectionAverage",
    "SubspaceMerge",
    "TruncatedDistributedPCA",
    "load_balanced_schedule",
]
