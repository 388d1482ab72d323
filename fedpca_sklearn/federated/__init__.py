"""Estimators and strategies for data that belongs to several clients."""

from ._federated_pca import FederatedPCA
from ._federation import CommunicationLog, Federation
from ._merge import MergeStrategy, SubspaceMerge

__all__ = ["CommunicationLog", "FederatedPCA", "Federation", "MergeStrategy", "SubspaceMerge"]
