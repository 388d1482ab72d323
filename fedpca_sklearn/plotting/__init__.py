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
from ._plane import BiplotDisplay, LoadingsDisplay, PrivateScoresDisplay, ScoresDisplay

__all__ = [
    "BiplotDisplay",
    "CommunicationDisplay",
    "ControlChartDisplay",
    "LoadingsDisplay",
    "PrivateScoresDisplay",
    "RankDisplay",
    "RefinementDisplay",
    "ScoresDisplay",
    "ScreeDisplay",
    "SubspaceErrorDisplay",
    "SuspectsDisplay",
]
