"""Imports from Flower, an optional dependency."""

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise ImportError(
        "fedpca_sklearn.engines.flower needs Flower: pip install 'fedpca-sklearn[flower]'."
    ) from error

__all__ = [
    "Array",
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "Grid",
    "Message",
    "RecordDict",
    "ServerApp",
]
