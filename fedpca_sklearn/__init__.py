"""Streaming, distributed and federated principal component analysis."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .summary._provenance import VERSION

if TYPE_CHECKING:
    from ._base.batches import on_device as on_device
    from ._base.sources import iter_batches as iter_batches
    from .communication import *
    from .datasets import *
    from .evaluation import *
    from .federated import *
    from .intervals import *
    from .metrics import *
    from .monitoring import *
    from .plotting import *
    from .privacy import *
    from .rank import *
    from .rounds import *
    from .streaming import *
    from .summary import *
    from .tracking import *
    from .vertical import *

__version__ = VERSION

# Public names by module. A module is imported when a name of its own is first asked for, so that
# somebody who wants `StreamingPCA` does not wait for the others.
_NAMES = {
    "_base.batches": "on_device",
    "_base.sources": "iter_batches",
    "communication": """
        Channel CommunicationLog Complete FadingChannel FixedPointChannel GaussianChannel Graph
        PerfectChannel Ring Star Topology load_balanced_schedule
    """,
    "datasets": "make_power_law make_spiked make_subspace_stream partition_clients",
    "evaluation": "StreamEvaluation evaluate_stream",
    "federated": """
        AvailablePairs ConditionalFill DistributedPCA FederatedPCA FederatedScaler MergeStrategy
        NoiseAwareMerge OnlineDistributedPCA PersonalizedPCA ProjectionAverage RobustMerge
        SiteEvidence SubspaceMerge TruncatedDistributedPCA
    """,
    "intervals": "JackknifeIntervals jackknife_intervals",
    "metrics": "excess_error reconstruction_error subspace_distance",
    "monitoring": "SubspaceMonitor",
    "plotting": """
        BiplotDisplay CommunicationDisplay ControlChartDisplay LoadingsDisplay PrivateScoresDisplay
        RankDisplay RefinementDisplay ScoresDisplay ScreeDisplay SubspaceErrorDisplay
        SuspectsDisplay
    """,
    "privacy": """
        AnalyzeGauss FedPowerNoise ModSuLQ PrivacyBudgetError PrivacyLeakWarning PrivacyLedger
        PrivacyNoiseWarning ScalerNoise StreamingModSuLQ
    """,
    "rank": "ContributionBounds EnergyBounds RankRule",
    "rounds": "FederatedHeteroscedasticPCA FederatedPowerPCA FederatedSubspaceTracker RobustSum",
    "streaming": """
        FrequentDirections GROUSE NpyRows OjaPCA PAST PETRELS SPIRIT StreamingPCA
        StreamingPowerMethod
    """,
    "summary": "PairMoments ParallelAnalysis Subspace merge_subspaces parallel_analysis",
    "tracking": """
        AlternatingProjections ChangeDetection FirstSubspace OutlierSupport RobustSubspaceTracker
        SubspaceTracker projected_sparse_recovery
    """,
    "vertical": """
        LeftVectorMerge LeftVectors PowerRounds VFedPCA VerticalFederatedKernelPCA
        VerticalFederatedPCA VerticalMethod
    """,
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    elif name == "base" or name in _NAMES:
        value = import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
