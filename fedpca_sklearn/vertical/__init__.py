"""Estimators for columns that belong to several clients."""

from ._left_vector_merge import LeftVectorMerge
from ._power_rounds import PowerRounds
from ._vertical_federated_pca import VerticalFederatedPCA
from ._vertical_kernel_pca import VerticalFederatedKernelPCA
from ._vertical_method import LeftVectors, VerticalMethod
from ._vfedpca import VFedPCA

__all__ = [
    "LeftVectorMerge",
    "LeftVectors",
    "PowerRounds",
    "VFedPCA",
    "VerticalFederatedKernelPCA",
    "VerticalFederatedPCA",
    "VerticalMethod",
]
