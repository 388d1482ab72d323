"""Displays: matplotlib pictures of fitted estimators and streams. Drawing imports matplotlib."""

from ._control_chart import ControlChartDisplay
from ._displays import CommunicationDisplay, RankDisplay, SubspaceErrorDisplay
from ._plane import BiplotDisplay, LoadingsDisplay, ScoresDisplay
from ._refinement import RefinementDisplay
from ._scree import ScreeDisplay
from ._suspects import SuspectsDisplay

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
