"""Standardisation of columns whose rows belong to clients, also by sums with noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY
from numbers import Integral
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from .._base.fitted import FittedState, progress, with_callbacks
from .._dask import refuse_dask
from .._kernels.row_moments import ColumnMoments, is_rounding, pooled_columns, with_weight
from .._kernels.rows import entries_once
from .._validation.checks import AT_LEAST_ONE, InstanceOf, allowed, with_parameters
from .._validation.containers import as_rows, checked_array, names_known, validate_data
from ..communication import CommunicationLog, Federation
from ..communication._federation import Message, log_fit
from ..privacy import ScalerNoise
from ..privacy._mechanism import seeds_of
from ..privacy._scaler_noise import ROUNDS
from ..summary import Subspace
from ..summary._merging import check_subspaces, names_of_parts
from ._clients import label_order, labels_of, rows_of, shards_with_weight
from ._local_fit import check_any_rows, labels_of_sites
from ._private import charged, privacy_spent


def fit_with_noise(
    scaler: Any, X: Any, weight: Any, shards: list[tuple[Any, Any]]
) -> ColumnMoments:
    """Moments of the columns, from sums with noise that clients have been charged for."""
    mechanism, (n, d), K = scaler.mechanism, X.shape, len(shards)
    mechanism.validate()
    turns = range(len(ROUNDS))
    mu2 = sum(mechanism._cost_of(kind, turn, d, K) for kind in ("counts", "sums") for turn in turns)
    accounts, _ = charged(scaler, X, weight, shards, mu2, fresh=False)
    seeds = seeds_of(scaler.random_state)
    federation = Federation(scaler.n_jobs, log=scaler.communication_)
    numbers = accounts.numbers([label for label, _ in shards])
    clients = [
        (label, rows, (*seeds, *own))
        for (label, rows, _), own in zip(rows_of(X, None, shards), numbers, strict=True)
    ]

    def total(kind: str, turn: int, *arguments: np.ndarray) -> tuple[np.ndarray, int]:
        def message(label: Any, rows: Any, seeds: Sequence[int]) -> np.ndarray:
            rng = np.random.default_rng([*seeds, 2 * turn + (kind == "sums")])
            return mechanism._message(kind, rows, turn, *arguments, n_shares=K, rng=rng)

        return federation.sum(message, clients, np.concatenate(arguments)), n

    return mechanism._found(total, d, 1 if mechanism.trust == "sum" else K)


def moments_of(scaler: StandardScaler, rest: Any = 0.0) -> ColumnMoments:
    """Moments of the rows that a scaler has seen."""
    shape = (scaler.n_features_in_,)
    n_entries = np.broadcast_to(scaler.n_samples_seen_, shape)
    mean, var = [
        np.zeros(shape) if values is None else np.where(n_entries > 0, values, 0.0)
        for values in (scaler.mean_, scaler.var_)
    ]
    squares = np.maximum(var, 0.0) * n_entries  # rounding may leave less than nothing
    return ColumnMoments(n_entries, mean, np.broadcast_to(rest, shape), squares)


def local_moments(label: Any, X: Any, weight: np.ndarray | None) -> ColumnMoments:
    """What a client sends: moments of its columns, without missing entries."""
    if weight is not None:
        X, weight = with_weight(X, weight)
    X = X.astype(np.float64, copy=False)
    dense = not sp.issparse(X)
    X = X if dense else entries_once(X)
    local = StandardScaler(with_mean=dense)
    unit, given = 1.0, weight
    if weight is not None:  # which scikit-learn squares; a power of two changes no digit
        unit = np.ldexp(1.0, np.frexp(weight.max(initial=0.0))[1] - 1)
        weight = weight / unit
    with np.errstate(all="ignore"):  # of what overflows, and of columns without entries
        moments = moments_of(local.fit(X, sample_weight=weight))
        if dense:  # where columns of zeros and large entries vary as much as their means
            deviations = X - moments.mean
            deviations[np.isnan(deviations)] = 0.0
            total = deviations.sum(axis=0) if weight is None else weight @ deviations
            rest = total / np.where(moments.n_entries > 0, moments.n_entries, 1)
            moments = moments._replace(rest=rest)
        n_entries, squares = moments.n_entries * unit, moments.squares * unit
    return moments._replace(n_entries=n_entries, squares=squares).checked(given)


def moments_of_summaries(subspaces: list[Subspace]) -> list[ColumnMoments]:
    """Moments in each summary, or an error where the scatter of the columns is not known."""
    parts = []
    for who, s in zip(names_of_parts(subspaces), subspaces, strict=True):
        if s.column_scatter is None or not s.centered:
            raise ValueError(
                f"{who} must be about its mean and know its column_scatter, got "
                f"centered={s.centered} and column_scatter={s.column_scatter}."
            )
        n_entries, rest = np.full(s.n_features, s.n_samples), np.zeros(s.n_features)
        parts.append(ColumnMoments(n_entries, s.mean, rest, s.column_scatter))
    return parts


@with_parameters
class FederatedScaler(FittedState, StandardScaler):
    """Scale columns to mean 0 and variance 1 where the rows belong to several clients.

    Every client sends the number, the mean and the sum of squares of the entries of each of its
    columns, and the server adds them up: the fit is that of scikit-learn's StandardScaler on the
    pooled rows, and no row leaves its client. In front of `FederatedPCA` it gives the PCA of the
    correlation matrix; a StandardScaler there would pool the rows.

    Parameters
    ----------
    copy : bool, default=True
        False: `transform` may write into its argument.
    with_mean : bool, default=True
        Subtract the mean. False for sparse rows.
    with_std : bool, default=True
        Divide by the standard deviation; by 1 in constant columns.
    n_clients : int, default=2
        Contiguous shards that stand in for clients where ``clients`` is not given.
    n_jobs : int or None, default=None
        Clients at work at the same time, on threads unless ``joblib.parallel_config`` says
        otherwise.
    mechanism : ScalerNoise or None, default=None
        Differential privacy: means and scales are found from sums with noise, by a search that
        needs no knowledge of the rows. Entries are there, and rows have no weights, then.
    random_state : int, RandomState instance or None, default=None
        Seeds the noise of a mechanism: it protects from who does not know it.

    Attributes
    ----------
    mean_, var_, scale_ : ndarray of shape (n_features,) or None
        Of all rows of all clients. As in StandardScaler: the variance has the divisor n, and what
        no parameter asks for is None.
    n_samples_seen_ : int, float or ndarray of shape (n_features,)
        Rows, or the sum of their weights; an array where columns have missing entries.
    clients_ : list
        Labels of the clients seen so far, sorted.
    communication_ : CommunicationLog
        What was sent: of each client 3 d + 1 floats, or 4 d where entries are missing, once.
    privacy_spent_ : PrivacySpent
        With a mechanism: (epsilon, delta) of the client that has spent most.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)

    See Also
    --------
    sklearn.preprocessing.StandardScaler : The same for rows in one place.
    FederatedPCA : The next step of a Pipeline.

    Notes
    -----
    Missing entries (NaN) are passed over, and stay missing. Sums are merged pairwise, as in Chan,
    Golub and LeVeque (1983), Algorithms for computing the sample variance, eq. 1.5, with means in
    two floats: nothing cancels, whatever the means. A `Subspace` has one: of summaries whose means
    are m times the deviation, the variance is within 4 m eps. Clients work in time and memory
    O(n_i d), the server in O(s d) for s of them.

    The labels ``clients`` are metadata of the rows: with metadata routing enabled they reach this
    step of a Pipeline, and `FederatedPCA`, without a request. The name of a column, which
    `FederatedPCA` takes as well, is refused: the next step would not have the column.

    Differences from StandardScaler: sums of float32 rows are taken in float64, weights are not
    negative.

    Examples
    --------
    >>> import sklearn
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.decomposition import PCA
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import scale
    >>> from fedpca_sklearn import FederatedPCA, FederatedScaler
    >>> X, y = load_wine(return_X_y=True)
    >>> pipe = make_pipeline(FederatedScaler(), FederatedPCA(3))
    >>> with sklearn.config_context(enable_metadata_routing=True):
    ...     pipe = pipe.fit(X, clients=y)  # three clients with one cultivar each
    >>> pipe[-1].explained_variance_.round(3)
    array([4.732, 2.511, 1.454])
    >>> PCA(3).fit(scale(X)).explained_variance_.round(3)
    array([4.732, 2.511, 1.454])
    """

    __metadata_request__fit = {"clients": True}
    __metadata_request__partial_fit = {"clients": True}

    privacy_spent_ = property(privacy_spent)

    _: KW_ONLY
    copy: bool = True
    with_mean: bool = True
    with_std: bool = True
    n_clients: int = allowed(AT_LEAST_ONE, default=2)
    n_jobs: int | None = allowed(Integral, None, default=None)
    mechanism: ScalerNoise | None = allowed(None, InstanceOf(ScalerNoise), default=None)
    random_state: Any = allowed("random_state", default=None)

    @with_callbacks
    def fit(
        self, X: Any, y: Any = None, clients: Any = None, sample_weight: Any = None
    ) -> FederatedScaler:
        """Compute means and variances from scratch.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows of all clients; sparse ones with ``with_mean=False`` only.
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.
        clients : array-like of shape (n,), default=None
            Label of the client that owns each row, integers or strings. None: ``n_clients``
            contiguous shards.
        sample_weight : array-like of shape (n,), default=None
            Integer weights equal repeated rows.

        Returns
        -------
        self : FederatedScaler
            The fitted scaler; unchanged if an error is raised.
        """
        with self._unchanged_on_error():
            self._start()
            self.__dict__.pop("_accounts", None)  # those of a fit that has failed go on
            self._take(X, clients, sample_weight)
        return self

    @with_callbacks
    def partial_fit(
        self, X: Any, y: Any = None, clients: Any = None, sample_weight: Any = None
    ) -> FederatedScaler:
        """Update means and variances with more rows, of known or new clients.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            The next rows, with the columns of the first call.
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.
        clients : array-like of shape (n,), default=None
            As in `fit`.
        sample_weight : array-like of shape (n,), default=None
            As in `fit`.

        Returns
        -------
        self : FederatedScaler
            Unchanged if an error is raised.
        """
        with self._unchanged_on_error():
            if not hasattr(self, "communication_"):
                self._start()
            self.communication_ = vars(self)["communication_"].copy()
            self._take(X, clients, sample_weight)
        return self

    @classmethod
    def from_subspaces(cls, subspaces: Sequence[Subspace], **parameters: Any) -> FederatedScaler:
        """Build a fitted scaler from summaries that sites have sent as files.

        Parameters
        ----------
        subspaces : sequence of Subspace
            One of each site, about its mean and with its ``column_scatter``; how many directions it
            has does not matter, ``Subspace.from_rows(X, 0)`` has none.
        **parameters
            Of the scaler.

        Returns
        -------
        scaler : FederatedScaler
            That of the rows of all sites. ``clients_`` are the sites, if all summaries know theirs,
            or else the positions in the list.

        Raises
        ------
        ValueError
            If the summaries do not fit together or hold no row, a site is in two of them, or the
            scatter of the columns is not known.
        """
        subspaces = check_subspaces(subspaces)
        check_any_rows(subspaces)
        parts = moments_of_summaries(subspaces)
        scaler = cls(**parameters)
        scaler._validate_params()
        if scaler.mechanism is not None:
            raise ValueError(
                f"mechanism must be None for summaries, which tell the moments of their rows, got "
                f"{scaler.mechanism!r}."
            )
        scaler._start()
        scaler.n_features_in_ = subspaces[0].n_features
        names = names_known(subspaces)
        if names is not None:
            scaler.feature_names_in_ = np.array(names, dtype=object)
        scaler._show(labels_of_sites(subspaces), parts)
        scaler.communication_.record(subspaces)
        return scaler

    def transform(self, X: Any, copy: bool | None = None) -> Any:
        """Scale rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows with the columns of `fit`.
        copy : bool or None, default=None
            False: may write into X. None: as the parameter of the scaler says.

        Returns
        -------
        X_scaled : {ndarray, sparse matrix} of shape (n, d)
            In units of the standard deviation of each column.
        """
        refuse_dask(self, X)
        return super().transform(as_rows(X), copy)

    def inverse_transform(self, X: Any, copy: bool | None = None) -> Any:
        """Bring scaled rows back to the units of the columns.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Scaled rows.
        copy : bool or None, default=None
            As in `transform`.

        Returns
        -------
        X_original : {ndarray, sparse matrix} of shape (n, d)
            The rows in the units of `fit`.
        """
        refuse_dask(self, X)
        check_is_fitted(self)
        X, d = checked_array(X, accept_sparse="csr"), self.n_features_in_
        if X.shape[1] != d:
            raise ValueError(
                f"X has {X.shape[1]} features, but {type(self).__name__} is expecting {d} features "
                "as input."
            )
        return super().inverse_transform(X, copy)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.array_api_support = False
        return tags

    def _start(self) -> None:
        self.clients_: list[Any] = []
        self.communication_ = CommunicationLog()

    def _take(self, X: Any, clients: Any, sample_weight: Any) -> None:
        """Let the clients of a call send their sums, and show those of all rows."""
        self._validate_params()
        if self.clients_ and (self.mechanism or "_accounts" in vars(self)):
            raise ValueError(
                f"mechanism={self.mechanism!r} does not go on from the call before: what was "
                "released is for all rows of one call. Call fit."
            )
        refuse_dask(self, X)
        if isinstance(clients, str):  # before its column is taken for numbers
            labels_of(clients)
        checks = {"accept_sparse": "csr", "dtype": "numeric", "ensure_all_finite": False}
        X = validate_data(self, X, reset=not self.clients_, **checks)
        if sp.issparse(X) and self.with_mean:
            raise ValueError("Cannot center sparse matrices: pass `with_mean=False` instead.")
        weight, shards = shards_with_weight(
            clients, sample_weight, X.shape[0], self.n_clients, needed=not self.clients_
        )
        if not shards:
            return
        if self.mechanism is not None:
            self._show(dict(shards), [fit_with_noise(self, X, weight, shards)])
        else:
            federation = Federation(self.n_jobs, log=self.communication_)
            found = federation.map(local_moments, rows_of(X, weight, shards))
            sent = list(progress(self, found, len(shards), "clients"))
            self._show(dict(shards[: len(sent)]), sent)  # a callback may stop it
            sizes = [moments.n_floats for moments in sent]
            self.communication_.record([Message(n, 8 * n) for n in sizes])
            self.communication_.floats_pooled += X.size
        log_fit(self, len(shards))

    def _show(self, labels: Iterable[Any], parts: Iterable[ColumnMoments]) -> None:
        """Merge what clients have sent with what is known, and set the fitted attributes."""
        for name, kept in (("with_mean", "mean_"), ("with_std", "var_")):
            if self.clients_ and getattr(self, name) and getattr(self, kept) is None:
                raise ValueError(f"{name} was False in the calls before, got True; call fit.")
        before = [moments_of(self, self._mean_rest)] if self.clients_ else []
        with np.errstate(over="ignore", invalid="ignore"):
            moments = pooled_columns([*before, *parts]).checked()
        there, var = moments.n_entries > 0, moments.variance
        asked = self.with_mean or self.with_std
        scale = np.where(is_rounding(np.sqrt(var), moments.mean) & there, 1.0, np.sqrt(var))
        self.__dict__.update(
            n_samples_seen_=moments.n_entries[0] if moments.has_one_number else moments.n_entries,
            _mean_rest=moments.rest,
            mean_=np.where(there, moments.mean, np.nan) if asked else None,
            var_=var if self.with_std else None,
            scale_=scale if self.with_std else None,
            clients_=sorted({*self.clients_, *labels}, key=label_order),
        )
