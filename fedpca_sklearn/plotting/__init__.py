"""Displays: matplotlib pictures of fitted estimators and streams. Drawing imports matplotlib."""

from ._plane import BiplotDisplay, LoadingsDisplay, ScoresDisplay
from ._private_scores import PrivateScoresDisplay
from ._rows import ControlChartDisplay, RankDisplay, SubspaceErrorDisplay
from ._scree import ScreeDisplay
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
