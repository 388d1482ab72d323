"""Estimators for one stream of rows."""

from .._base.sources import NpyRows
from ._frequent_directions import FrequentDirections
from ._grouse import GROUSE
from ._petrels import PETRELS
from ._projection_approximation import PAST, SPIRIT
from ._stochastic_power import OjaPCA, StreamingPowerMethod
from ._streaming_pca import StreamingPCA

__all__ = [
    "GROUSE",
    "PAST",
    "PETRELS",
    "SPIRIT",
    "FrequentDirections",
    "NpyRows",
    "OjaPCA",
    "StreamingPCA",
    "StreamingPowerMethod",
]
