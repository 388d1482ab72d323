"""Sites over Flower within one process: for tests of estimators and transports of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from .flower import client_app


class InProcessGrid(Grid):
    """Hands messages to the apps of sites in this process, where Flower's grid has a network.

    What an app raises is an error message for the server, as from a supernode. Replies come back in
    the reverse order of the questions, so that nothing relies on theirs.

    Parameters
    ----------
    apps : mapping of str to ClientApp, or sequence of pairs of these
        The app of each site, as `client_app` makes it.
    spoil : callable, default=None
        What happens on the way back: takes the name of a site, the question and the reply, and
        returns a reply, or None where it is lost.

    Attributes
    ----------
    asked : list of (str, str)
        Site and kind of each question so far.
    contexts : dict of int to Context
        What each node keeps between questions.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import FederatedPCA
    >>> from fedpca_sklearn.engines.flower import fit_sites
    >>> from fedpca_sklearn.engines.testing import InProcessGrid
    >>> X = load_digits().data
    >>> grid = InProcessGrid.of_rows(FederatedPCA(3), {"east": X[:900], "west": X[900:]})
    >>> pca = fit_sites(grid, FederatedPCA(3), n_sites=2, wait=0)
    >>> pca.explained_variance_ratio_.round(4)
    array([0.1489, 0.1362, 0.1179])
    """

    def __init__(
        self,
        apps: Mapping[str, Any] | Sequence[tuple[str, Any]],
        spoil: Callable[[str, Message, Message], Message | None] | None = None,
    ):
        pairs = list(apps.items() if isinstance(apps, Mapping) else apps)
        self.apps, self.spoil = {n: app for n, (_, app) in enumerate(pairs, start=1)}, spoil
        self.contexts = {
            n: Context(1, n, {"site": site}, RecordDict(), {})
            for n, (site, _) in enumerate(pairs, start=1)
        }
        self.asked: list[tuple[str, str]] = []
        self._ids = count(1)
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1

    @classmethod
    def of_rows(cls, estimator: Any, parts: Mapping[str, Any], **options: Any) -> InProcessGrid:
        """Return a grid of sites that hold rows.

        Parameters
        ----------
        estimator : estimator
            That of all sites.
        parts : mapping of str to rows
            The rows of each site, or what else `client_app` takes for them.
        **options : dict
            Of `client_app`.

        Returns
        -------
        grid : InProcessGrid
            Of an app for each site.
        """

        def app(rows: Any) -> Any:
            return client_app(lambda context: rows, estimator, **options)

        return cls({site: app(rows) for site, rows in parts.items()})

    run = property(lambda self: None)

    def set_run(self, run: Any) -> Any:
        """Not there, as questions and their replies are all that a fit needs."""
        raise NotImplementedError

    create_message: Any = set_run
    push_messages: Any = set_run
    pull_messages: Any = set_run

    def get_node_ids(self) -> Iterable[int]:
        """Numbers of the sites.

        Returns
        -------
        nodes : list of int
            From 1 on, in the order of ``apps``.
        """
        return list(self.contexts)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Replies of the sites to messages.

        Parameters
        ----------
        messages : iterable of Message
            The questions.
        timeout : float, default=None
            Not needed.

        Returns
        -------
        replies : list of Message
            Those that were not lost.
        """
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(next(self._ids))
            node = message.metadata.dst_node_id
            context = self.contexts[node]
            site = str(context.node_config["site"])
            config: Any = message.content.config_records.get("config", {})
            self.asked.append((site, str(config.get("kind", ""))))
            reply: Message | None
            try:
                reply = self.apps[node](message, context)
            except Exception as error:  # as Flower's client process does
                reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
            if self.spoil is not None:
                reply = self.spoil(site, message, reply)
            replies += [] if reply is None else [reply]
        return replies[::-1]
