"""Estimators and merge strategies for rows that belong to several clients, in one exchange."""

from ._available_pairs import AvailablePairs
from ._conditional_fill import ConditionalFill
from ._distributed_pca import DistributedPCA, TruncatedDistributedPCA
from ._federated_pca import FederatedPCA
from ._federated_scaler import FederatedScaler
from ._merge import MergeStrategy, SubspaceMerge
from ._online_distributed_pca import OnlineDistributedPCA, ProjectionAverage
from ._personalized_pca import PersonalizedPCA
from ._weighted_merges import NoiseAwareMerge, RobustMerge, SiteEvidence

__all__ = [
    "AvailablePairs",
    "ConditionalFill",
    "DistributedPCA",
    "FederatedPCA",
    "FederatedScaler",
    "MergeStrategy",
    "NoiseAwareMerge",
    "OnlineDistributedPCA",
    "PersonalizedPCA",
    "ProjectionAverage",
    "RobustMerge",
    "SiteEvidence",
    "SubspaceMerge",
    "TruncatedDistributedPCA",
]
