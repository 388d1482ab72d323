"""Flower, an optional dependency, as a carrier of messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    from flwr.app import Array as FlowerArray
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict
    from flwr.app import Context as FlowerContext
    from flwr.app import Message as FlowerMessage
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise ImportError(
        "fedpca_sklearn.engines.flower needs Flower: pip install 'fedpca-sklearn[flower]'."
    ) from error

from ._records import Array, Carrier, Context, Message

__all__ = [
    "ClientApp",
    "FlowerContext",
    "FlowerGrid",
    "FlowerMessage",
    "Grid",
    "ServerApp",
    "over_flower",
]

# How the names of a site's own records begin, in the state that Flower keeps.
_OWN = "fedpca_sklearn"
# Names of the records of arrays in questions and in replies.
_ASKED, _SENT = "arguments", "arrays"


def _record(arrays: Any) -> ArrayRecord:
    return ArrayRecord(
        {name: FlowerArray(a.dtype, a.shape, a.stype, a.data) for name, a in arrays.items()}
    )


def _array(found: FlowerArray) -> Array:
    return Array(found.data, found.shape, found.dtype, found.stype)


def _read(content: RecordDict, name: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """Numbers and texts, and arrays, of a message that another party has made."""
    arrays = {key: _array(a) for key, a in content.array_records.get(name, {}).items()}
    return dict(content.config_records.get("config", {})), arrays


def _content(message: Message, name: str) -> RecordDict:
    config = ConfigRecord(dict(message.config))
    return RecordDict({name: _record(message.arrays), "config": config})


# -------------------------------------------------------------------- at a site


def over_flower(
    kind: str, answer: Callable[[Message, Context], Message]
) -> Callable[[FlowerMessage, FlowerContext], FlowerMessage]:
    """Handler of Flower's messages of a kind, from one of messages of any carrier."""

    def reply(message: FlowerMessage, context: FlowerContext) -> FlowerMessage:
        own = Context(
            context.node_id, context.run_id, context, context.run_config, _state_of(context)
        )
        found = answer(Message(kind, *_read(message.content, _ASKED)), own)
        for name, record in own.state.items():
            arrays = record and all(isinstance(value, Array) for value in record.values())
            context.state[name] = _record(record) if arrays else ConfigRecord(record)
        return FlowerMessage(_content(found, _SENT), reply_to=message)

    return reply


def _state_of(context: FlowerContext) -> dict[str, dict[str, Any]]:
    state: dict[str, dict[str, Any]] = {}
    for name, record in context.state.array_records.items():
        state[name] = {key: _array(a) for key, a in record.items()}
    state |= {name: dict(record) for name, record in context.state.config_records.items()}
    return {name: record for name, record in state.items() if name.startswith(_OWN)}


# -------------------------------------------------------------------- at the server


class FlowerGrid(Carrier):
    """Flower's connection from the server to its nodes."""

    def __init__(self, grid: Grid):
        self.grid = grid

    def nodes(self) -> list[int]:
        """Numbers of the nodes that are connected."""
        return list(self.grid.get_node_ids())

    def exchange(self, questions: dict[int, Message], timeout: float) -> dict[int, Message]:
        """First reply of each node to the question that this node was asked."""
        messages = [
            FlowerMessage(_content(asked, _ASKED), node, f"query.{asked.kind}", ttl=timeout)
            for node, asked in questions.items()
        ]
        replies = list(self.grid.send_and_receive(messages, timeout=timeout))
        asked_of = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
        first: dict[int, Message] = {}
        for reply in replies:
            node = asked_of.get(reply.metadata.reply_to_message_id)
            if node is not None and reply.metadata.src_node_id == node and node not in first:
                first[node] = _reply(reply, questions[node].kind)
        return first


def _reply(reply: FlowerMessage, kind: str) -> Message:
    if reply.has_error():
        return Message(kind, error=f"Flower's error {reply.error.code}: {reply.error.reason}")
    return Message(kind, *_read(reply.content, _SENT))
