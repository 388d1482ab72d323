"""Kernel PCA of columns that belong to different clients: Cheung, Jiang, Yu and Lou."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from .._base.fitted import CallbackSupportMixin, FittedState, rounds_of, with_callbacks
from .._kernels.threads import TINY_CALL, threads_for
from .._validation.checks import AT_LEAST_ONE, InstanceOf, Interval, allowed, with_parameters
from ..communication import CommunicationLog, Federation
from ..communication._federation import log_fit
from ..communication._topology import federation_of
from ._vertical_kernels import (
    ColumnClient,
    ExactScores,
    Kernel,
    LinearScores,
    agreed_kernel_pca,
    exact_kernel_pca,
    has_negative_trace,
    nystroem_kernel_pca,
    summed_kernel,
)
from ._vfedpca import VFedPCA, finite_rows, started

# What "paper" stands for.
PRINTED = VFedPCA(weighting="eigenvalue", update="cumulative_columns")


@with_parameters
class VerticalFederatedKernelPCA(
    CallbackSupportMixin,
    FittedState,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseEstimator,
):
    """Kernel principal component analysis where columns belong to clients that share the rows.

    Clients send similarities of rows, never columns: "exact" finds the components of the kernel of
    all columns, `VFedPCA` averages the leading eigenvectors of the clients' own kernels (VFedKPCA
    and VFedAKPCA of [1]_).

    Parameters
    ----------
    n_components : int, default=1
        Cut to the number of rows, or of landmarks, as no more exist.
    feature_groups : int or list of array-like, default=2
        Columns of each client: a number of contiguous groups, or positions or names of columns.
        Every column must belong to one client.
    kernel : {"rbf", "sigmoid", "poly", "linear"} or callable, default="rbf"
        As in scikit-learn. A callable ``kernel(X, Y)`` takes (n, f) and (m, f) columns of a client
        and returns (n, m); only with `VFedPCA`, as parts of an unknown kernel do not add up.
    gamma : float or None, default=None
        Below zero for "sigmoid" only (eq. 12 of [1]_). None: one over the number of columns of all
        clients; but for "rbf" with `VFedPCA` of each client, as its distances grow with their
        number. [1]_ has one kernel for all clients, which is what any number given here is.
    degree : float, default=3
        Degree of the kernel "poly".
    coef0 : float, default=1
        Constant term of the kernels "poly" and "sigmoid".
    aggregation : VFedPCA or {"exact", "paper"}, default="exact"
        "exact": squared distances (rbf) or inner products add up over clients on their way, and
        the kernel follows from the sum. `VFedPCA`: one eigenvector and eigenvalue of each client's
        kernel in a period, with its options; "paper" stands for it as printed in [1]_,
        ``VFedPCA(weighting="eigenvalue", update="cumulative_columns")``.
    projection : {"samples", "features"}, default="samples"
        "samples": scores in the kernel's space, as `sklearn.decomposition.KernelPCA`. "features":
        rows are projected on the columns' combinations U^T X (AKPCA), of unit length.
    topology : Topology, None, {"server", "complete", "ring", "star"}, array of shape (p, p) or \
            graph, default="server"
        Who exchanges messages, as in `VerticalFederatedPCA`: without a server sums are found by
        gossip between neighbours, in `transform` too, and vectors passed on.
    center : bool, default=True
        Whether kernels, and with "features" columns, are centred. False: as [1]_ writes them (eq.
        9); the first eigenvector is then often near the constant one.
    n_landmarks : int or None, default=None
        "exact": kernels are computed against so many random rows only (Nystroem). None, or as many
        as there are rows: all.
    n_jobs : int or None, default=None
        Clients at work at the same time; threads, unless ``joblib.parallel_config`` says otherwise.
    random_state : int, RandomState instance or None, default=None
        Seed of the first vectors, common to all clients, and of the landmarks.

    Attributes
    ----------
    eigenvalues_ : ndarray of shape (n_components_,)
        In decreasing order with "exact"; zero where they are rounding errors or negative. With
        `VFedPCA` u^T K u for K the average of the clients' kernels by ``client_weights_``.
    eigenvectors_ : ndarray of shape (n, n_components_)
        U, orthonormal columns. Where the eigenvalue is zero any, or zeros; scores are zero then.
        With ``VFedPCA(exchange="neighbours")`` those of the first client.
    client_vectors_ : list of ndarray of shape (n, n_components_)
        U as each client has it, with ``VFedPCA(exchange="neighbours")`` only.
    client_weights_ : ndarray of shape (n_clients, n_components_)
        With `VFedPCA`, weights of the last period before weight scaling, over the largest of each
        component; zero of a client without a positive leading eigenvalue.
    components_ : ndarray of shape (n_components_, d)
        With "features": rows of unit length (zero if there is no variance), orthogonal for "linear"
        and "exact" only.
    mean_ : ndarray of shape (d,)
        With "features".
    gamma_ : float or ndarray of shape (n_clients,)
        As used: a number with "exact", each client's with `VFedPCA`.
    n_components_ : int
    n_iter_ : int
        Rounds in which kernels or vectors were exchanged, over all components.
    feature_groups_ : list of ndarray of int
        Positions of each client's columns.
    landmarks_ : ndarray of int
        Rows that kernels are computed against; all, unless ``n_landmarks`` is less.
    communication_ : CommunicationLog
        Of `fit`, with n rows, m landmarks (n if None), p clients and k components. "exact": p n m
        floats up in one round. `VFedPCA`: what it says, then p k up for the eigenvalues. With
        "features" p k up once more, and with "exact" p n k down before. By gossip in m exchanges
        over E edges every sum goes 2 E m times.
    disagreement_ : float
        Without a server, how far apart two clients are at most: of their last sums, as a share of
        the largest, or of their common vectors.

    See Also
    --------
    VerticalFederatedPCA : Linear components for many rows.
    VFedPCA : How clients agree on vectors.
    sklearn.decomposition.KernelPCA : The same of columns in one place.

    Notes
    -----
    A client works in O(n m f_i) and the server in O(n^3), or O(n m^2) with landmarks, and both in
    O(n m) memory, with "exact". With `VFedPCA` a client takes O(T k n^2 f_i + k n^2 L) time and
    O(n^2) memory, as it computes its kernel again in each period, and the server O(n p min(n, p)).
    To transform q rows with "samples" clients send p q m floats with "exact", p q k with `VFedPCA`;
    they keep their columns of the training rows or landmarks for it.

    With "exact" the server sees the sum of the messages and nothing else, but that sum is the
    kernel of all rows. With `VFedPCA` it sees every client's vector.

    `VFedPCA` is VFedKPCA of [1]_, and with "features" VFedAKPCA: power iteration (eq. 5 and 6) of
    the client's kernel K_i from a common start, weights, signs and periods as `VFedPCA` has them.
    Eq. 14 updates data; of a kernel's data Phi(X_i) <- Phi(X_i) m m^T makes K_i u u^T K_i /
    u^T K_i u of K_i, which a client knows. (It could also mean the columns, X_i <- X_i m m^T, and
    their kernel again. For the linear kernel both are the same.) All rows, those of `fit` too,
    score sum_i w_i k_i(x, X) u_i / (sum_i w_i sqrt(eigenvalue)), centred if K_i is, so that
    `fit_transform` is `fit` and `transform`; with a single client that is sqrt(eigenvalue) u.

    Where the kernel is not positive semi-definite (sigmoid), a client whose leading eigenvalue by
    size is negative has no weight; a warning says so if that leaves none. As tanh(-z + c) =
    -tanh(z - c), coef0=-c has the same leading vectors by size as a negative gamma, with positive
    eigenvalues.

    With landmarks the kernel is C W^+ C^T, with C that of all rows and W that of the landmarks
    against the landmarks [2]_, centred over all rows; of an indefinite W the positive part counts.

    Differences from scikit-learn's KernelPCA: "rbf" is the default, ``n_components`` is a number,
    negative eigenvalues count as zero, no sparse rows, no ``inverse_transform``; results are those
    of its dense solver up to signs.

    References
    ----------
    .. [1] Y. Cheung, J. Jiang, F. Yu, J. Lou, "Vertical federated principal component analysis and
       its kernel extension on feature-wise distributed data", 2022, arXiv:2203.01752.
    .. [2] C. Williams, M. Seeger, "Using the Nystroem method to speed up kernel machines", NeurIPS
       2000.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.decomposition import KernelPCA
    >>> from sklearn.preprocessing import scale
    >>> from fedpca_sklearn import VerticalFederatedKernelPCA
    >>> X = scale(load_wine().data)
    >>> central = KernelPCA(2, kernel="rbf", eigen_solver="dense").fit(X)
    >>> pca = VerticalFederatedKernelPCA(2, feature_groups=4).fit(X)
    >>> pca.eigenvalues_.round(3)
    array([23.459, 15.836])
    >>> np.allclose(pca.eigenvalues_, central.eigenvalues_, rtol=1e-10)
    True
    >>> pca.communication_.floats_up == 4 * 178**2
    True
    >>> from fedpca_sklearn import VFedPCA
    >>> agreed = pca.set_params(aggregation=VFedPCA(n_rounds=3), random_state=0).fit(X)
    >>> abs(np.sum(agreed.eigenvectors_ * central.eigenvectors_, axis=0)).round(2)
    array([0.99, 0.98])
    >>> agreed.communication_.floats_up == 4 * (2 * 3 * 179 + 2)
    True
    """

    n_components: int = allowed(AT_LEAST_ONE, default=1)
    _: KW_ONLY
    feature_groups: Any = allowed(AT_LEAST_ONE, list, tuple, default=2)
    kernel: Any = allowed(StrOptions({"rbf", "sigmoid", "poly", "linear"}), callable, default="rbf")
    gamma: float | None = allowed(Interval(Real, None, None, closed="neither"), None, default=None)
    degree: float = allowed(Interval(Real, 0, None, closed="left"), default=3)
    coef0: float = allowed(Interval(Real, None, None, closed="neither"), default=1)
    aggregation: Any = allowed(StrOptions({"exact", "paper"}), InstanceOf(VFedPCA), default="exact")
    projection: str = allowed(StrOptions({"samples", "features"}), default="samples")
    topology: Any = "server"
    center: bool = allowed("boolean", default=True)
    n_landmarks: int | None = allowed(AT_LEAST_ONE, None, default=None)
    n_jobs: int | None = allowed(Integral, None, default=None)
    random_state: Any = allowed("random_state", default=None)

    @with_callbacks
    def fit(self, X: Any, y: Any = None) -> VerticalFederatedKernelPCA:
        """Fit all clients.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows, with the columns of all clients side by side.
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.

        Returns
        -------
        self : object
            The fitted estimator; unchanged if an error is raised.
        """
        self._check_parameters()
        with self._unchanged_on_error(), np.errstate(over="ignore", invalid="ignore"):
            for name in ("components_", "mean_", "client_weights_", "client_vectors_"):
                self.__dict__.pop(name, None)  # of a fit with other parameters
            X, groups, federation = started(self, X)
            self._choose_landmarks(len(X), federation)
            clients = [
                ColumnClient.of(
                    X, g, self.landmarks_, self._kernel(len(g), X.shape[1]), self.center
                )
                for g in groups
            ]
            linear = partial(LinearScores.of, federation, clients, X)
            with threads_for(16 * len(X) * len(self.landmarks_), TINY_CALL):
                self._fit_clients(federation, clients, groups, X, linear)
        log_fit(self, len(groups))
        return self

    def _choose_landmarks(self, n: int, federation: Federation) -> None:
        """Rows that kernels are computed against."""
        m = min(self.n_landmarks or n, n)
        every = np.arange(n)
        self.landmarks_ = np.sort(federation.rng.choice(n, m, replace=False)) if m < n else every

    def _kernel(self, n_own: int, n_columns: int) -> Kernel:
        """Kernel of a client that has so many of all columns, with its parameters there."""
        own = self.aggregation != "exact" and self.kernel not in ("poly", "sigmoid")
        gamma = 1.0 / (n_own if own else n_columns) if self.gamma is None else self.gamma
        return Kernel(self.kernel, gamma, self.degree, self.coef0)

    def _fit_clients(
        self,
        federation: Federation,
        clients: list[Any],
        groups: list[np.ndarray],
        X: np.ndarray,
        linear: Callable[..., LinearScores],
    ) -> None:
        """Set the fitted attributes by what clients tell, of rows X that they have.

        ``linear(vectors, known, center, broadcast)`` are the scores by combinations of columns.
        """
        exact = self.aggregation == "exact"
        rank = min(self.n_components, len(self.landmarks_))
        if exact:
            values, vectors, scorer, disagreement = self._exact(federation, clients, X, rank)
            self.gamma_: float | np.ndarray = clients[0].kernel.gamma
        else:
            values, vectors, scorer, disagreement = self._agreed(federation, clients, X, rank)
            self.gamma_ = np.array([client.kernel.gamma for client in clients])
        if self.projection == "features":
            scorer = linear(vectors, values > 0, self.center, exact)
            self.mean_ = scorer.mean.astype(X.dtype)
            self.components_ = scorer.components.astype(X.dtype)
        self._scorer = scorer
        self.eigenvalues_ = values.astype(X.dtype)
        self.eigenvectors_ = vectors[0].astype(X.dtype)
        self.feature_groups_, self.n_components_ = groups, len(values)
        self.disagreement_ = max(disagreement, federation.disagreement)

    def _check_parameters(self) -> None:
        """Raise an error that names a wrong parameter, or two that do not fit each other."""
        self._validate_params()
        exact = self.aggregation == "exact"
        if isinstance(self.aggregation, VFedPCA):
            self.aggregation.validate()
        if exact and callable(self.kernel):
            raise ValueError(f"kernel={self.kernel!r} needs aggregation=VFedPCA(), got 'exact'.")
        if not exact and self.n_landmarks is not None:
            raise ValueError(f"n_landmarks={self.n_landmarks} needs aggregation='exact'.")
        if self.gamma is not None and self.gamma < 0 and self.kernel != "sigmoid":
            raise ValueError(
                f"gamma={self.gamma} below zero needs kernel='sigmoid', got {self.kernel!r}."
            )

    def _method(self) -> VFedPCA:
        """How clients agree on vectors."""
        return PRINTED if self.aggregation == "paper" else self.aggregation

    def _exact(self, federation, clients, X, rank):
        whole = len(self.landmarks_) == len(X)
        for _ in rounds_of(self, 1):
            C = summed_kernel(federation, clients, None if whole else X)
        negative = whole and has_negative_trace(C, self.center)
        pca = exact_kernel_pca if whole else partial(nystroem_kernel_pca, landmarks=self.landmarks_)
        values, U, offset, turn = pca(C, rank=rank, center=self.center)
        if negative and not values[0]:
            self._warn_of_no_component("no eigenvalue")
        self.n_iter_ = 1
        return values, [U] * len(clients), ExactScores(clients, offset, turn), 0.0

    def _agreed(self, federation, clients, X, rank):
        rounds = partial(rounds_of, self)
        values, own_values, scorer, found = agreed_kernel_pca(
            self._method(), federation, clients, self.center, rank, rounds
        )
        if not scorer.weights[:, 0].any() and (own_values[0] < 0).any():
            self._warn_of_no_component("no client's leading eigenvalue")
        self.n_iter_, self.client_weights_ = found.n_iter, scorer.weights
        if found.own:
            self.client_vectors_ = [U.astype(X.dtype) for U in scorer.vectors]
        return values, scorer.vectors, scorer, found.disagreement

    def _warn_of_no_component(self, what: str) -> None:
        warnings.warn(
            f"kernel={self.kernel!r} with gamma={self.gamma}, coef0={self.coef0} and "
            f"center={self.center}: {what} is positive, so all scores are zero.",
            stacklevel=6,
        )

    def fit_transform(self, X: Any, y: Any = None) -> np.ndarray:
        """Fit and return the rows' scores.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows, with the columns of all clients side by side.
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.

        Returns
        -------
        X_new : ndarray of shape (n, n_components_)
            Scores of the rows.
        """
        self.fit(X)
        if isinstance(self._scorer, ExactScores):
            return self.eigenvectors_ * np.sqrt(self.eigenvalues_)
        return self.transform(X)

    def transform(self, X: Any) -> np.ndarray:
        """Return scores of rows.

        Parameters
        ----------
        X : array-like of shape (q, d)
            Rows, with the columns of `fit`.

        Returns
        -------
        X_new : ndarray of shape (q, n_components_)
            Scores of the rows, as ``projection`` defines them.
        """
        check_is_fitted(self)
        X = finite_rows(self, X, reset=False)
        n_clients, log = len(self.feature_groups_), CommunicationLog()
        federation = federation_of(self.topology, n_clients, self.n_jobs, None, log, None)
        scores = self._scorer.scores(federation, X)
        return scores.astype(np.result_type(X, self.eigenvectors_), copy=False)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
