"""Estimators for rows that belong to several clients, by rounds of sums."""

from ._federated_power_pca import FederatedPowerPCA
from ._federated_subspace_tracker import FederatedSubspaceTracker
from ._heteroscedastic_pca import FederatedHeteroscedasticPCA
from ._robust_sum import RobustSum

__all__ = [
    "FederatedHeteroscedasticPCA",
    "FederatedPowerPCA",
    "FederatedSubspaceTracker",
    "RobustSum",
]
