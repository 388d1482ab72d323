"""Mechanisms of differential privacy."""

from ._accounts import PrivacyBudgetError, PrivacySpent
from ._analyze_gauss import AnalyzeGauss
from ._discrete_gaussian import DiscreteGaussian
from ._fed_power_noise import FedPowerNoise
from ._ledger import PrivacyLedger
from ._mechanism import Mechanism, PrivacyLeakWarning, gaussian_cost
from ._mod_sulq import ModSuLQ
from ._noise_warning import PrivacyNoiseWarning
from ._plan import PrivacyPlan
from ._private_center import PrivateCenter
from ._private_norm import PrivacyBoundWarning, PrivateNorm
from ._second_moment import SecondMomentMechanism
from ._streaming_mod_sulq import StreamingModSuLQ

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
    "SecondMomentMechanism",
    "StreamingModSuLQ",
    "gaussian_cost",
]
