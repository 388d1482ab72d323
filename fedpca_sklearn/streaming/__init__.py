"""Estimators for one stream of rows."""

from ._streaming_pca import StreamingPCA

__all__ = ["StreamingPCA"]
