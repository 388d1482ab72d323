"""Real sites over Flower: each keeps its rows, the server fits one estimator for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

try:
    from flwr.app import Array as FlowerArray
    from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
    from flwr.app import Message as FlowerMessage
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise ImportError(
        "fedpca_sklearn.engines.flower needs Flower: pip install 'fedpca-sklearn[flower]'."
    ) from error

from ._estimators import NoBatchError, fit_estimator, partial_fit_estimator, site_work
from ._messages import Carrier, Message
from ._messages import Context as SiteContext
from ._questions import Given, RefusedError, SiteRows, Task
from ._secure import SecureAggregation
from ._site_policy import SitePolicy
from .protocols import SiteApp, Wanted, fit_over, partial_fit_over

__all__ = [
    "Given",
    "NoBatchError",
    "RefusedError",
    "SecureAggregation",
    "SitePolicy",
    "SiteRows",
    "Task",
    "client_app",
    "fit_estimator",
    "fit_sites",
    "partial_fit_estimator",
    "partial_fit_sites",
    "server_app",
    "site_work",
]


# -------------------------------------------------------------------- the two apps


def client_app(
    load_rows: Callable[[Context], Any],
    estimator: Any,
    *,
    site: Callable[[Context], str] | None = None,
    min_rows: int | None = None,
    policy: SitePolicy | None = None,
    secure: SecureAggregation | None = None,
) -> ClientApp:
    """App of a site: it loads its own rows and answers what the server asks about them.

    Parameters
    ----------
    load_rows : callable
        ``load_rows(context)`` returns the rows of the site, {array-like, sparse matrix} of shape
        (n, d); a data frame's column names are checked to be the same everywhere. With weights or
        keys it returns `SiteRows`. It may return an iterable of batches of either, which
        `partial_fit_sites` and estimators of streams take one by one, others together. Called for
        each message, but for those of keys and shares, and not again in a process that has the
        moments of the run; Flower starts a process for each.
    estimator : object
        Of a class that `site_work` knows, with the parameters that the server's has. Questions for
        another one are refused, and the refusal names what differs.
        `FederatedPCA`'s sub-estimator is fitted here. A mechanism draws its noise here, and needs a
        ledger: that of ``policy``, or its own.
    site : callable or None, default=None
        ``site(context)`` returns the name of the site. None: ``site`` of the node's configuration
        (``flower-supernode --node-config 'site="north"'``), or ``"node ID"``; no other name may
        begin with ``"node "``.
    min_rows : int or None, default=None
        Stands for ``SitePolicy(min_rows=min_rows)``.
    policy : SitePolicy or None, default=None
        The owner's rules. None: ``SitePolicy()``, at least 10 rows.
    secure : SecureAggregation or None, default=None
        The site takes part in secure sums only: the server sees no number of this site, and learns
        sums over at least ``threshold`` sites.

    Returns
    -------
    app : flwr.clientapp.ClientApp
        To be named in the ``pyproject.toml`` of the Flower app, or passed to its simulation.

    Notes
    -----
    Each question states the version of the protocol, and class and parameters of the server's
    estimator. They must be those of the site, but for parameters that the site does not need:
    ``n_jobs``, ``n_clients``, ``random_state``, ``merge``, and others by which the server works.

    The server is not trusted. Before the site works it checks the question: kind and number of
    arguments; means of shape (d,); an orthonormal basis of no more directions than its own
    estimator has; its own parameters; batches in their order; common keys that are its own; at most
    so many questions of a kind as a fit has. A run may begin three times, as it does where the
    server loses another site; the list of common keys, the thresholds of outliers in a batch and
    the models that fill missing entries are the same each time. These counts are in Flower's
    ``context.state``: they do not bind a server that starts another run, as those of a `SitePolicy`
    with a log do. What a server learns within these rules, and what Flower lets it do beyond them,
    is in the promises of the documentation: above all, that Flower sends this app from the server,
    unless the site takes signed ones only.

    With a mechanism each release is charged to the ledger, flushed to the disk, before its noise is
    drawn, from the operating system, whatever ``random_state`` is: a site that is started anew
    knows what it has spent. Summaries cost what they do in one process. In rounds the sum, each
    product and the variances are charged when they are asked for, and asked again with the same
    basis in the same run they are sent again for nothing.

    What goes wrong is written to the site's log, the logger ``"fedpca_sklearn"``. The server gets
    the type of an exception and a reference to that log, not its text, which may hold data.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import FederatedPCA
    >>> def every_second(context):
    ...     return load_digits().data[context.node_config["part"] :: 2]
    >>> app = client_app(every_second, FederatedPCA(5))
    """
    if policy is None:
        policy = SitePolicy() if min_rows is None else SitePolicy(min_rows=min_rows)
    elif min_rows is not None:
        raise ValueError(f"min_rows must be None beside a policy, which has one, got {min_rows!r}.")
    name_of = _configured_site if site is None else site
    site_app, app = SiteApp(load_rows, estimator, name_of, policy, secure), ClientApp()

    def reply(message: FlowerMessage, context: Context) -> FlowerMessage:
        state: dict[str, dict[str, Any]] = {}
        for name, record in context.state.config_records.items():
            if name.startswith(_OWN):  # others are their authors'
                state[name] = dict(record)
        own = SiteContext(context.node_id, context.run_id, context, context.run_config, state)
        config, arrays = _read(message.content, _ASKED)
        found = site_app.reply(Message(str(config.pop(_KIND, "")), config, arrays), own)
        for name, kept in state.items():
            context.state[name] = ConfigRecord(kept)
        return FlowerMessage(_content(found, _SENT), reply_to=message)

    app.query()(reply)
    return app


def server_app(estimator: Any, done: Callable[[Any, Context], None], **options: Any) -> ServerApp:
    """App of the server: it fits an estimator of the rows of all sites, and hands it on.

    Parameters
    ----------
    estimator : object
        With the parameters of the fit; it is not changed. See `fit_sites`.
    done : callable
        ``done(fitted, context)`` is called with the result, for instance to save its ``subspace_``.
    **options
        ``min_sites``, ``n_sites``, ``wait``, ``timeout`` and ``secure`` of `fit_sites`.

    Returns
    -------
    app : flwr.serverapp.ServerApp
        To be named in the ``pyproject.toml`` of the Flower app, or passed to its simulation.

    Examples
    --------
    >>> from fedpca_sklearn import FederatedPCA
    >>> def save(pca, context):
    ...     pca.subspace_.save(context.run_config["output"])
    >>> app = server_app(FederatedPCA(5), save, min_sites=2)
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        done(fit_sites(grid, estimator, **options), context)

    return app


def fit_sites(
    grid: Grid,
    estimator: Any,
    *,
    min_sites: int = 2,
    n_sites: int | None = None,
    wait: float = 60.0,
    timeout: float = 600.0,
    secure: SecureAggregation | None = None,
) -> Any:
    """Fit an estimator to the rows of all sites that are connected to a Flower server.

    It runs in the ``ServerApp``. It waits for the sites, asks them for summaries or sums as the
    estimator needs, and goes on without sites that fail. The rows stay at the sites, whose answers
    come from `client_app`. `server_app` makes the whole app of the server with it.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        Flower's connection from the server to the sites.
    estimator : object
        Of a class that `fit_estimator` knows. It is not changed. ``clients``, ``n_clients``,
        ``feature_groups`` and ``n_jobs`` play no part. As the network is a real one, ``channel``
        must be None and ``topology`` "server".
    min_sites : int, default=2
        If fewer sites take part, the fit is an error.
    n_sites : int or None, default=None
        Sites to wait for. None: ``min_sites``, or more if secure sums need them.
    wait : float, default=60.0
        Seconds to wait until ``n_sites`` are connected; then those there are asked.
    timeout : float, default=600.0
        Seconds that a site has for an answer.
    secure : SecureAggregation or None, default=None
        Fit by secure sums, over sites whose apps have the same ``bits`` and ``scale``, and a
        threshold of no more. None: the server sees the message of each site.

    Returns
    -------
    fitted : estimator
        ``clients_`` are the names of the sites that took part, ``missing_sites_`` maps the others
        to the reason. It equals the estimator fitted in one process on the rows of ``clients_``,
        with a mechanism in distribution; ``privacy_spent_`` is then the largest account that a site
        states.
        Where sites own columns, rows are those that all have; ``n_rows_left_out_`` maps sites to
        the number of their other rows, and columns are in the order of the sites' names.

    Raises
    ------
    RuntimeError
        If fewer than ``min_sites`` are left; the message names the others, and why.

    Warns
    -----
    UserWarning
        If a site was left out.

    Notes
    -----
    Where a site is left out between rounds, they begin again without it: those of the fit, or where
    rows come in batches those of the batch, so that what it sent before counts. A site lets a run,
    or a batch, begin three times in all. Common keys, and thresholds and models by which missing
    entries and outliers of a batch are filled, stay as all sites were given them. Batch b of all
    sites is taken together; for `FederatedSubspaceTracker` it is ``batch_size`` rows of each, and
    rows that do not fill one wait.

    All that arrives is untrusted: no pickle, nothing is allocated on an announced size, and shapes,
    dtypes and finiteness are checked. A site is left out if it fails, is late, refuses, or sends
    what is not an answer to its question, not what it should be, or so large that sums overflow:
    mean squares of a row above 2^924 (float32: 2^124), or 2^53 rows. Of sites with different
    columns, numbers of features or centring the largest group stays, of equal ones the one with
    the first name. A site that lies about its rows cannot be told from one that has others. The
    server sees the message of each site, also where the estimator uses their sum only.

    A node keeps the name, dtype and columns of its first answer. Of two nodes with one name the
    first that the grid lists keeps it. Nodes without an answer are named by their id, and an error
    proves no name. Which node may have which name is not checked: that needs Flower's node
    authentication.
    """
    who = Wanted(min_sites, n_sites, wait, timeout)
    return fit_over(_FlowerGrid(grid), estimator, who, secure)


def partial_fit_sites(
    grid: Grid,
    estimator: Any,
    *,
    batch: int | None = None,
    min_sites: int = 2,
    n_sites: int | None = None,
    wait: float = 60.0,
    timeout: float = 600.0,
) -> Any:
    """Update an estimator with the next batch of rows at all sites that a grid reaches.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
        Flower's connection from the server to the sites.
    estimator : object
        Fitted or not, of a class that `partial_fit_estimator` knows. It is not changed.
    batch : int or None, default=None
        Number of the batch, from 0 on. None: the one after the last that the estimator has, which
        `fit_sites` does not know where it took all rows in one message.
    min_sites : int, default=2
        With fewer sites that answer the call is an error.
    n_sites : int or None, default=None
        Sites to wait for. None: ``min_sites``.
    wait : float, default=60.0
        Seconds to wait until ``n_sites`` are connected; then those there are asked.
    timeout : float, default=600.0
        Seconds that a site has for an answer.

    Returns
    -------
    fitted : estimator
        A copy with the rows of the batch, as `partial_fit` in one process would take them:
        ``clients_`` are the names of all sites seen so far, ``n_batches_`` is the number of the
        next batch, ``missing_sites_`` tells who is not in this batch, and why.

    Raises
    ------
    NoBatchError
        If no site has this batch.
    RuntimeError
        If fewer than ``min_sites`` are left; the message names the others, and why.

    Warns
    -----
    UserWarning
        If a site was left out. Its rows of this batch are never asked for again. If the question
        has not reached it, it refuses the later batches of the run, as they come in their order.

    Notes
    -----
    ``load_rows`` of `client_app` returns batches: an iterable of rows, of which number b is what
    all sites are asked for together. Rows that come in one piece are batch 0. In a run of Flower a
    site answers about the last batch, again if it is asked, or the one after it, and no other. With
    ``batch=None`` none is taken twice; the number of one that was taken counts its rows twice.

    A site keeps nothing between batches: the server merges what it sends with what it sent before.
    For `FederatedPCA` the result is that of `partial_fit` at the site where no direction is cut
    off, as up to 256 features.

    Examples
    --------
    >>> from fedpca_sklearn import FederatedPCA
    >>> def fit_of_a_week(grid):
    ...     pca = FederatedPCA(5)
    ...     for day in range(7):
    ...         pca = partial_fit_sites(grid, pca)
    ...     return pca
    """
    who = Wanted(min_sites, n_sites, wait, timeout)
    return partial_fit_over(_FlowerGrid(grid), estimator, batch, who)


def _configured_site(context: Context) -> str:
    return str(context.node_config.get("site", f"node {context.node_id}"))


# -------------------------------------------------------------------- Flower as a carrier

# How the names of a site's own records begin, in the state that Flower keeps.
_OWN = "fedpca_sklearn"
# Where a question says its kind: Flower knows one, and the site refuses others by name.
_KIND = "kind"
# Names of the records of arrays in questions and in replies.
_ASKED, _SENT = "arguments", "arrays"
# What Flower is told of the bytes of an array, which it does not read.
_ROW_BY_ROW = "row by row"


def _content(message: Message, name: str) -> RecordDict:
    """A message as Flower has it, whose arrays have a name."""
    arrays = ArrayRecord()
    for key, a in message.arrays.items():
        arrays[key] = FlowerArray(a.dtype, a.shape, _ROW_BY_ROW, a.data)
    return RecordDict({name: arrays, "config": ConfigRecord(dict(message.config))})


def _read(content: RecordDict, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers and texts, and arrays as Flower has them, of a message of another party."""
    arrays: Any = content.array_records.get(name, {})
    return dict(content.config_records.get("config", {})), dict(arrays)


# -------------------------------------------------------------------- at the server


class _FlowerGrid(Carrier):
    """Flower's connection from the server to its nodes."""

    def __init__(self, grid: Grid):
        self.grid = grid

    def nodes(self) -> list[int]:
        """Numbers of the nodes that are connected."""
        return list(self.grid.get_node_ids())

    def exchange(self, questions: dict[int, Message], timeout: float) -> dict[int, Message]:
        """First reply of each node to the question that this node was asked."""
        messages = {}
        for node, question in questions.items():
            kind = {_KIND: question.kind}
            asked = _content(replace(question, config={**question.config, **kind}), _ASKED)
            messages[node] = FlowerMessage(asked, node, "query", ttl=timeout)
        first: dict[int, Message] = {}
        for reply in self.grid.send_and_receive(list(messages.values()), timeout=timeout):
            node = reply.metadata.src_node_id
            if node not in messages or node in first:
                continue
            if reply.metadata.reply_to_message_id == messages[node].metadata.message_id:
                if reply.has_error():
                    error = f"Flower's error {reply.error.code}: {reply.error.reason}"
                    first[node] = Message(questions[node].kind, error=error)
                else:
                    first[node] = Message(questions[node].kind, *_read(reply.content, _SENT))
        return first
