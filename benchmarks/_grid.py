"""A Flower grid in this process, which counts the bytes of what it carries."""

import os
from itertools import count

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class CountingGrid(Grid):
    """Runs the apps of sites where a network would be.

    Attributes
    ----------
    exchanges : int
        Questions to all sites at once.
    bytes_up, bytes_down : int
        Bytes of the arrays and texts that sites and server have sent.
    """

    run = property(lambda self: None)

    def __init__(self, apps):
        self.apps = dict(enumerate(apps, start=1))
        self.contexts = {
            node: Context(1, node, {"site": f"site {node:02d}"}, RecordDict(), {})
            for node in self.apps
        }
        self.exchanges = self.bytes_up = self.bytes_down = 0
        self._ids = count(1)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def set_run(self, run):
        raise NotImplementedError

    create_message = push_messages = pull_messages = set_run

    def get_node_ids(self):
        return list(self.apps)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(next(self._ids))
            node = message.metadata.dst_node_id
            replies.append(self.apps[node](message, self.contexts[node]))
            self.bytes_down += size_of(message.content)
            self.bytes_up += size_of(replies[-1].content)
        self.exchanges += 1
        return replies


def size_of(content):
    """Bytes of the arrays and texts of a message."""
    arrays = [a.data for record in content.array_records.values() for a in record.values()]
    values = [v for record in content.config_records.values() for v in record.values()]
    texts = [t for v in values for t in (v if isinstance(v, list) else [v])]
    return sum(map(len, arrays)) + sum(len(t) for t in texts if isinstance(t, (bytes, str)))
