"""Displays: matplotlib pictures of fitted estimators and streams. Drawing imports matplotlib."""

from ._displays import ControlChartDisplay, RankDisplay, ScreeDisplay, SubspaceErrorDisplay
from ._plane import BiplotDisplay, LoadingsDisplay, PrivateScoresDisplay, ScoresDisplay
from ._sites import CommunicationDisplay, RefinementDisplay, SuspectsDisplay

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
