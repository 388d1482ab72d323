"""Estimators for one stream of rows."""

from .._base.sources import NpyRows
from ._frequent_directions import FrequentDirections
from ._grouse import GROUSE
from ._oja import OjaPCA
from ._past import PAST
from ._petrels import PETRELS
from ._spirit import SPIRIT
from ._streaming_pca import StreamingPCA
from ._streaming_power_method import StreamingPowerMethod

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
