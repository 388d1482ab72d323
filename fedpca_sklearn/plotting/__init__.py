"""Displays: matplotlib pictures of fitted estimators and streams. Drawing imports matplotlib."""

from ._control_chart import ControlChartDisplay
from ._displays import CommunicationDisplay, RankDisplay, ScreeDisplay, SubspaceErrorDisplay
from ._refinement import RefinementDisplay
from ._suspects import SuspectsDisplay

__all__ = [
    "CommunicationDisplay",
    "ControlChartDisplay",
    "RankDisplay",
    "RefinementDisplay",
    "ScreeDisplay",
    "SubspaceErrorDisplay",
    "SuspectsDisplay",
]
