"""Estimators and strategies for data that belongs to several clients."""

from ._channel import Channel, FadingChannel, GaussianChannel, PerfectChannel
from ._distributed_pca import DistributedPCA
from ._federated_pca import FederatedPCA
from ._federated_power_pca import FederatedPowerPCA
from ._federated_subspace_tracker import FederatedSubspaceTracker
from ._federation import CommunicationLog, Federation
from ._left_vector_merge import LeftVectorMerge
from ._merge import MergeStrategy, SubspaceMerge
from ._online_distributed_pca import OnlineDistributedPCA
from ._power_rounds import PowerRounds
from ._projection_average import ProjectionAverage
from ._schedule import load_balanced_schedule
from ._topology import Complete, Graph, Ring, Star, Topology
from ._truncated_distributed_pca import TruncatedDistributedPCA
from ._vertical_federated_pca import VerticalFederatedPCA
from ._vertical_kernel_pca import VerticalFederatedKernelPCA
from ._vertical_method import LeftVectors, VerticalMethod
from ._vfedpca import VFedPCA

__all__ = [
    "Channel",
    "CommunicationLog",
    "Complete",
    "DistributedPCA",
    "FadingChannel",
    "FederatedPCA",
    "FederatedPowerPCA",
    "FederatedSubspaceTracker",
    "Federation",
    "GaussianChannel",
    "Graph",
    "LeftVectorMerge",
    "LeftVectors",
    "MergeStrategy",
    "OnlineDistributedPCA",
    "PerfectChannel",
    "PowerRounds",
    "ProjectionAverage",
    "Ring",
    "Star",
    "SubspaceMerge",
    "Topology",
    "TruncatedDistributedPCA",
    "VFedPCA",
    "VerticalFederatedKernelPCA",
    "VerticalFederatedPCA",
    "VerticalMethod",
    "load_balanced_schedule",
]
