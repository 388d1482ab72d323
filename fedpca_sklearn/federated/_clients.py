"""Base classes of estimators whose rows belong to clients, and labels of clients."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from typing import Any

import numpy as np

from .._base.fitted import CallbackSupportMixin, progress, with_callbacks
from .._base.transformer import SubspaceTransformer
from .._dask import RowChunks, is_dask, refuse_dask
from .._kernels.threads import TINY_CALL, threads_for
from .._validation.arrays import in_numpy, namespace_of
from .._validation.checks import Interval, check_at_most_features, check_weight, is_real
from .._validation.containers import composed_names, validate_data
from ..communication import CommunicationLog, Federation
from ..communication._federation import log_fit

logger = logging.getLogger(__name__)


class ClientsTransformer(CallbackSupportMixin, SubspaceTransformer):
    """Base of estimators that take one matrix and the label of the client that owns each row.

    A subclass has parameters ``n_components``, ``n_clients`` and ``n_jobs`` and writes
    ``_step(X, weight, shards, method)``, which takes the rows of one call through the clients and
    the server, sets the fitted attributes by `_set_fitted`, and returns the labels of the clients
    that took part. ``self._map(function, calls, shards)`` calls a function for each client in
    parallel and yields labels and results; ``self.communication_.record(messages)`` notes a round
    of `Message`, of what clients sent.

    It may write ``_reset()``, which forgets the rows seen before, and extend
    ``_check_parameters()``, which raises an error that names a wrong parameter.
    """

    # `clients` travels through pipelines and searches without a request by the user
    __metadata_request__fit = {"clients": True}

    # whether the rows are read once, so that they may be Dask's
    _takes_dask = False
    # column of the labels, as given last; it is ignored in rows to transform
    _label_column: str | None = None
    # rows of a shard that stands in for a client, if there are as many
    _least_rows: Any = 1

    _parameter_constraints: dict = {
        "n_clients": [Interval(Integral, 1, None, closed="left")],
        "n_jobs": [Integral, None],
    }

    @with_callbacks
    def fit(self, X: Any, y: Any = None, clients: Any = None, sample_weight: Any = None) -> Any:
        """Fit all clients from scratch.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.
        clients : array-like of shape (n,) or str, default=None
            Label of the client that owns each row, integers or strings; or the name of the column
            of X, a data frame, that holds them, which is taken out of the rows. None:
            ``n_clients`` contiguous shards, the first ones with one row more where they cannot be
            equal.
        sample_weight : array-like of shape (n,), default=None
            Integer weights equal repeated rows.

        Returns
        -------
        self : object
            The fitted estimator; unchanged if an error is raised, but for what private clients have
            spent by then.
        """
        with self._unchanged_on_error():
            self._start()
            self._process(X, clients, sample_weight, "fit")
        return self

    def _reset(self) -> None:
        """Forget all rows seen before."""

    @abstractmethod
    def _step(self, X: Any, weight: Any, shards: list[tuple[Any, Any]], method: str) -> list[Any]:
        """Take the rows of one call through the clients and the server.

        Parameters
        ----------
        X : ndarray or sparse array of shape (n, d)
            All rows. Not yet known to be finite, so that the work of a client can say whose are
            not.
        weight : ndarray of shape (n,) or None
            Weights of the rows; every shard has a positive one.
        shards : list of (label, positions)
            The clients; ``X[positions]`` are the rows of one.
        method : {"fit", "partial_fit"}
            The method that was called; "fit" after `_reset`.

        Returns
        -------
        labels : list
            Labels of the clients that took part.
        """

    def _check_parameters(self) -> None:
        """Raise an error that names a wrong parameter."""
        self._validate_params()

    def _start(self) -> None:
        self._reset()
        self.__dict__.pop("_label_column", None)
        self.clients_: list[Any] = []
        self.communication_ = CommunicationLog()

    def _process(self, X: Any, clients: Any, sample_weight: Any, method: str) -> None:
        self._check_parameters()
        X, weight, shards = self._shards(X, clients, sample_weight)
        if not shards:
            return
        with _threads(X, shards):
            labels = self._step(X, weight, shards, method)
        self._add_clients(labels)
        log_fit(self, len(labels))
        if isinstance(X, RowChunks):  # whose sizes are counted where they are
            return
        # with a mechanism the number of non-zeros is not public
        private = getattr(self, "mechanism", None) is not None
        self.communication_.floats_pooled += math.prod(X.shape) if private else X.size

    def _shards(self, X: Any, clients: Any, sample_weight: Any) -> tuple[Any, Any, list]:
        """Validated rows and weights, and the clients whose rows have weight."""
        X, clients, self._label_column = split_labels(X, clients, self._label_column)
        if is_dask(X):
            return self._chunks(X, clients, sample_weight)
        X = validate_data(
            self,
            X,
            accept_sparse="csr",
            dtype="numeric",
            ensure_all_finite=False,  # each client checks its own rows, so that errors name it
            reset=not self.clients_,
        )
        check_at_most_features(self.n_components, X.shape[1])
        sizes = X.shape[0], self.n_clients, self._least_rows
        return X, *shards_with_weight(clients, sample_weight, *sizes, needed=not self.clients_)

    def _chunks(self, X: Any, clients: Any, sample_weight: Any) -> tuple[Any, Any, list]:
        """A dask.array, of which every row chunk is a client."""
        if not self._takes_dask:
            refuse_dask(self, X)
        if getattr(self, "mechanism", None) is not None:
            raise ValueError(
                f"mechanism must be None when X is a dask.array, got {self.mechanism!r}."
            )
        if clients is not None:
            raise ValueError(
                "clients cannot be given when X is a dask.array: every row chunk is a client."
            )
        chunks = RowChunks(self, X, sample_weight, reset=not self.clients_)
        check_at_most_features(self.n_components, chunks.shape[1])
        return chunks, chunks.weights, [(i, i) for i in range(len(chunks))]

    def _check_X(self, X: Any) -> Any:
        return super()._check_X(without_column(X, self._label_column))

    def _add_clients(self, labels: list[Any]) -> None:
        self.clients_ = sorted({*self.clients_, *labels}, key=label_order)

    def _map(self, function: Callable, calls: Iterable[tuple], shards: list) -> Iterator[Any]:
        """Call a function for each client, in parallel; an error names the client.

        Parameters
        ----------
        function : callable
            ``function(label, *arguments)``, the work of a client.
        calls : iterable of tuple
            Label and arguments of each call, in the order of ``shards``.
        shards : list of (label, positions)
            As `_step` got them.

        Returns
        -------
        results : iterator of (label, result)
            In the order of ``shards``.
        """
        results = Federation(self.n_jobs, log=self.communication_).map(function, calls)
        clients = progress(self, shards, len(shards), "clients")
        for result, (label, _) in zip(results, clients, strict=False):  # a callback may stop it
            if result is not None:  # of a row chunk without rows
                yield label, result
        next(clients, None)  # the end of the last task


class StreamingClientsTransformer(ClientsTransformer):
    """Base of estimators of rows at clients that can go on with more rows.

    As `ClientsTransformer`, with `partial_fit`. A subclass writes ``_step(X, weight, shards,
    method)``, which goes on from what earlier calls have left, and ``_reset()``, which forgets it.
    What `_step` sets is a new object, not the old one changed, so that an error leaves no trace.
    """

    __metadata_request__partial_fit = {"clients": True}

    @with_callbacks
    def partial_fit(
        self, X: Any, y: Any = None, clients: Any = None, sample_weight: Any = None
    ) -> Any:
        """Update the fit with more rows, of known or new clients.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            The next rows, with the columns of the first call.
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.
        clients : array-like of shape (n,) or str, default=None
            Label of the client that owns each row, as in `fit`.
        sample_weight : array-like of shape (n,), default=None
            Weight of each row; None: 1. Integer weights equal repeated rows.

        Returns
        -------
        self : object
            Unchanged if an error is raised, but for what private clients have spent by then.
        """
        with self._unchanged_on_error():
            if not hasattr(self, "communication_"):
                self._start()
            self.communication_ = self.communication_.copy()
            self._process(X, clients, sample_weight, "partial_fit")
        return self


def rows_of(X: Any, weight: np.ndarray | None, shards: list) -> Iterator[tuple[Any, Any, Any]]:
    """Yield label, rows and weights of each shard."""
    for label, rows in shards:
        yield label, X[rows], None if weight is None else weight[rows]


def _threads(X: Any, shards: list) -> AbstractContextManager[None]:
    """One BLAS thread where the rows of every client are few, and the features of all."""
    if isinstance(X, RowChunks):  # whose threads are those of dask's scheduler
        return nullcontext()
    sizes = [at.stop - at.start if isinstance(at, slice) else len(at) for _, at in shards]
    d = X.shape[1]
    return threads_for(d * max(*sizes, 16 * d), TINY_CALL if len(sizes) == 1 else 0)


def shards_of(n: int, clients: Any, n_clients: int, least_rows: int = 1) -> list[tuple[Any, Any]]:
    """Sorted labels with the positions of their rows; contiguous shards without labels.

    Of n rows in s shards the first n mod s hold one more, as in Bai, Chan and Luk (2005), section
    3, and numpy.array_split.
    """
    if clients is None:
        n_shards = min(int(n_clients), max(1, n // least_rows))
        size, longer = divmod(n, n_shards)
        starts = [i * size + min(i, longer) for i in range(n_shards + 1)]
        return [(i, slice(*starts[i : i + 2])) for i in range(n_shards)]
    labels = labels_of(clients, n)
    if len(labels) and (labels == labels[0]).all():
        return [(labels[0].item(), slice(0, n))]
    values, codes = np.unique(labels, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    parts = np.split(order, np.searchsorted(codes[order], np.arange(1, len(values))))
    found = []
    for value, rows in zip(values.tolist(), parts, strict=True):
        first, last = int(rows[0]), int(rows[-1])
        # contiguous positions as a slice, which copies no rows
        found.append((value, slice(first, last + 1) if last - first == len(rows) - 1 else rows))
    return found


def shards_with_weight(
    clients: Any, sample_weight: Any, n: int, n_clients: int, least_rows: int = 1, *, needed: bool
) -> tuple[np.ndarray | None, list[tuple[Any, Any]]]:
    """Weights of n rows, and the shards whose rows have weight: a client without is as absent.

    An error if some are ``needed`` and there are none.
    """
    weight, shards = check_weight(sample_weight, n), shards_of(n, clients, n_clients, least_rows)
    if weight is None:
        return None, shards
    absent = {label for label, rows in shards if not weight[rows].any()}
    if needed and len(absent) == len(shards):
        raise ValueError("sample_weight must have a positive sum, got only zeros.")
    if absent:
        logger.info("clients %s left out: their sample_weight is zero", sorted(absent))
    return weight, [(label, rows) for label, rows in shards if label not in absent]


def label_order(label: Any) -> tuple[bool, Any]:
    """Sort key of labels: numbers before strings."""
    return isinstance(label, str), label


def labels_of(clients: Any, n: int | None = None) -> np.ndarray:
    """Labels, n of them if that is known, as an array of integers or of composed strings."""
    if not isinstance(clients, np.ndarray) and namespace_of(clients) is not None:
        clients = in_numpy(clients)
    if isinstance(clients, np.ma.MaskedArray) and np.ma.is_masked(clients):
        raise ValueError(
            "clients must be all integers or all strings, without missing values, got a masked one."
        )
    labels = clients if isinstance(clients, np.ndarray) else np.asarray(clients, dtype=object)
    if labels.ndim != 1 or n not in (None, len(labels)):
        expected = "(n,)" if n is None else f"({n},)"
        found = repr(clients) if isinstance(clients, str) else f"shape {labels.shape}"
        raise ValueError(f"clients must have one label per row, shape {expected}, got {found}.")
    if labels.dtype.kind in "iub":
        return labels
    values = labels.tolist()
    if labels.dtype.kind != "U":
        kinds = [str if isinstance(v, str) else np.int64 if _is_whole(v) else None for v in values]
        if len(set(kinds)) > 1 or None in kinds:
            some: list[Any] = [None] if None in kinds else [str, np.int64]
            got = " and ".join(repr(values[kinds.index(kind)]) for kind in some)
            raise ValueError(
                f"clients must be all integers or all strings, without missing values, got {got}."
            )
        labels = np.array(values, kinds[0] if kinds else str)  # numpy's StringDType casts to none
    if labels.dtype.kind == "U" and not all(map(str.isascii, set(values))):
        names, codes = np.unique(labels, return_inverse=True)
        labels = np.array(composed_names(names.tolist()))[codes]
    return labels


def _is_whole(value: Any) -> bool:
    """Whether a label is a number that int64 holds."""
    number = is_real(value) or isinstance(value, np.bool_)
    return number and bool(value == value // 1 and -(2**63) <= value < 2**63)


def split_labels(X: Any, clients: Any, known: str | None) -> tuple[Any, Any, str | None]:
    """Rows, labels, and the column of labels: the one taken out of the rows, or else ``known``."""
    if not isinstance(clients, str):
        return X, clients, known
    names = column_names(X)
    if names is None:
        raise ValueError(
            f"clients={clients!r} names a column, so X must be a data frame, got "
            f"{type(X).__name__}."
        )
    if clients not in names:
        raise ValueError(f"clients={clients!r} must be a column of X, got columns {names}.")
    labels = X[clients]
    labels = labels.to_pylist() if hasattr(labels, "to_pylist") else labels  # of pyarrow
    return without_column(X, clients), labels, clients


def column_names(X: Any) -> list | None:
    """Names of the columns of a frame of pandas, polars or pyarrow; None for anything else."""
    if hasattr(X, "iloc") and X.ndim == 2:
        return list(X.columns)
    names = getattr(getattr(X, "schema", None), "names", None)
    return list(names() if callable(names) else names) if names is not None else None


def without_column(X: Any, name: str | None) -> Any:
    """Return a frame without a column; whatever else as it is."""
    names = None if name is None else column_names(X)
    if names is None or name not in names:
        return X
    rest = [other for other in names if other != name]
    return X[rest] if hasattr(X, "iloc") else X.select(rest)
