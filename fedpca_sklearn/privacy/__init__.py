"""Mechanisms of differential privacy."""

from ._above_noise import PrivacyNoiseWarning, PrivacyPlan
from ._gaussian import DiscreteGaussian
from ._ledger import PrivacyBudgetError, PrivacyLedger, PrivacySpent
from ._mechanism import Mechanism, PrivacyLeakWarning, gaussian_cost
from ._private_searches import PrivacyBoundWarning, PrivateCenter, PrivateNorm
from ._scaler_noise import ScalerNoise
from ._scores import ScoreCounts, private_scores
from ._second_moment import (
    AnalyzeGauss,
    FedPowerNoise,
    ModSuLQ,
    SecondMomentMechanism,
    StreamingModSuLQ,
)

__all__ = [
    "AnalyzeGauss",
    "DiscreteGaussian",
    "FedPowerNoise",
    "Mechanism",
    "ModSuLQ",
    "PrivacyBoundWarning",
    "PrivacyBudgetError",
    "PrivacyLeakWarning",
    "PrivacyLedger",
    "PrivacyNoiseWarning",
    "PrivacyPlan",
    "PrivacySpent",
    "PrivateCenter",
    "PrivateNorm",
    "ScalerNoise",
    "ScoreCounts",
    "SecondMomentMechanism",
    "StreamingModSuLQ",
    "gaussian_cost",
    "private_scores",
]
