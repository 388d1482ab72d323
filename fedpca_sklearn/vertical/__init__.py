"""Estimators for columns that belong to several clients."""

from ._vertical_federated_pca import VerticalFederatedPCA
from ._vertical_kernel_pca import VerticalFederatedKernelPCA
from ._vfedpca import LeftVectorMerge, LeftVectors, PowerRounds, VerticalMethod, VFedPCA

__all__ = [
    "LeftVectorMerge",
    "LeftVectors",
    "PowerRounds",
    "VFedPCA",
    "VerticalFederatedKernelPCA",
    "VerticalFederatedPCA",
    "VerticalMethod",
]
