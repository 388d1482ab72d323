"""Displays: matplotlib pictures of fitted estimators and streams. Drawing imports matplotlib."""

from ._displays import (
    CommunicationDisplay,
    ControlChartDisplay,
    RankDisplay,
    RefinementDisplay,
    ScreeDisplay,
    SubspaceErrorDisplay,
    SuspectsDisplay,
)
from ._plane import BiplotDisplay, LoadingsDisplay, ScoresDisplay

__all__ = [
    "BiplotDisplay",
    "CommunicationDisplay",
    "ControlChartDisplay",
    "LoadingsDisplay",
    "RankDisplay",
    "RefinementDisplay",
    "ScoresDisplay",
    "ScreeDisplay",
    "SubspaceErrorDisplay",
    "SuspectsDisplay",
]
