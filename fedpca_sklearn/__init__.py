"""Streaming, distributed and federated principal component analysis."""

from . import base as base
from ._base.sources import iter_batches
from ._suspects_display import SuspectsDisplay
from ._version import VERSION
from .communication import (
    Channel,
    CommunicationLog,
    Complete,
    FadingChannel,
    FixedPointChannel,
    GaussianChannel,
    Graph,
    PerfectChannel,
    Ring,
    RobustSum,
    Star,
    Topology,
    load_balanced_schedule,
)
from .datasets import make_power_law, make_spiked, make_subspace_stream, partition_clients
from .evaluation import StreamEvaluation, evaluate_stream
from .federated import (
    DistributedPCA,
    FederatedPCA,
    MergeStrategy,
    NoiseAwareMerge,
    OnlineDistributedPCA,
    ProjectionAverage,
    RobustMerge,
    SiteEvidence,
    SubspaceMerge,
    TruncatedDistributedPCA,
)
from .metrics import excess_error, reconstruction_error, subspace_distance
from .plotting import CommunicationDisplay, RankDisplay, ScreeDisplay, SubspaceErrorDisplay
from .privacy import (
    AnalyzeGauss,
    FedPowerNoise,
    ModSuLQ,
    PrivacyBudgetError,
    PrivacyLeakWarning,
    PrivacyLedger,
    PrivacyNoiseWarning,
    StreamingModSuLQ,
)
from .rank import ContributionBounds, EnergyBounds, RankRule
from .rounds import FederatedPowerPCA, FederatedSubspaceTracker
from .streaming import (
    GROUSE,
    PAST,
    PETRELS,
    SPIRIT,
    FrequentDirections,
    NpyRows,
    OjaPCA,
    StreamingPCA,
    StreamingPowerMethod,
)
from .summary import Subspace, merge_subspaces
from .tracking import (
    AlternatingProjections,
    RobustSubspaceTracker,
    SubspaceTracker,
    projected_sparse_recovery,
)
from .vertical import (
    LeftVectorMerge,
    LeftVectors,
    PowerRounds,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
    VerticalMethod,
    VFedPCA,
)

__version__ = VERSION

__all__ = [
    "GROUSE",
    "PAST",
    "PETRELS",
    "SPIRIT",
    "AlternatingProjections",
    "AnalyzeGauss",
    "Channel",
    "CommunicationDisplay",
    "CommunicationLog",
    "Complete",
    "ContributionBounds",
    "DistributedPCA",
    "EnergyBounds",
    "FadingChannel",
    "FedPowerNoise",
    "FederatedPCA",
    "FederatedPowerPCA",
    "FederatedSubspaceTracker",
    "FixedPointChannel",
    "FrequentDirections",
    "GaussianChannel",
    "Graph",
    "LeftVectorMerge",
    "LeftVectors",
    "MergeStrategy",
    "ModSuLQ",
    "NoiseAwareMerge",
    "NpyRows",
    "OjaPCA",
    "OnlineDistributedPCA",
    "PerfectChannel",
    "PowerRounds",
    "PrivacyBudgetError",
    "PrivacyLeakWarning",
    "PrivacyLedger",
    "PrivacyNoiseWarning",
    "ProjectionAverage",
    "RankDisplay",
    "RankRule",
    "Ring",
    "RobustMerge",
    "RobustSubspaceTracker",
    "RobustSum",
    "ScreeDisplay",
    "SiteEvidence",
    "Star",
    "StreamEvaluation",
    "StreamingModSuLQ",
    "StreamingPCA",
    "StreamingPowerMethod",
    "Subspace",
    "SubspaceErrorDisplay",
    "SubspaceMerge",
    "SubspaceTracker",
    "SuspectsDisplay",
    "Topology",
    "TruncatedDistributedPCA",
    "VFedPCA",
    "VerticalFederatedKernelPCA",
    "VerticalFederatedPCA",
    "VerticalMethod",
    "evaluate_stream",
    "excess_error",
    "iter_batches",
    "load_balanced_schedule",
    "make_power_law",
    "make_spiked",
    "make_subspace_stream",
    "merge_subspaces",
    "partition_clients",
    "projected_sparse_recovery",
    "reconstruction_error",
    "subspace_distance",
]
