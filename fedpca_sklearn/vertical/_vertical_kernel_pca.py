"""Kernel PCA of columns that belong to different clients: Cheung, Jiang, Yu and Lou."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from .._base.callbacks import CallbackSupportMixin, rounds_of, with_callbacks
from .._base.published_state import UnchangedOnErrorMixin
from .._dask import refuse_dask
from .._kernels import linalg
from .._validation.containers import validate_data
from ..communication import CommunicationLog
from ..communication._federation import Message, log_fit, message_of
from ..communication._peers import federation_of
from ._feature_groups import split_columns
from ._vertical_kernels import (
    ColumnClient,
    ExactScores,
    Kernel,
    LinearScores,
    PaperScores,
    as_sent,
    client_energies,
    exact_kernel_pca,
    inverse_root,
    leading_pair,
    nonnegligible,
    nystroem_kernel_pca,
    summed_kernel,
)
from ._vfedpca import agree

__all__ = ["VerticalFederatedKernelPCA"]


class VerticalFederatedKernelPCA(
    CallbackSupportMixin,
    UnchangedOnErrorMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseEstimator,
):
    """Kernel principal component analysis where columns belong to clients that share the rows.

    Clients send similarities of rows, never columns: "exact" finds the
    components of the kernel of all columns, "paper" averages the leading eigenvectors of the
    clients' own kernels (VFedKPCA and VFedAKPCA of [1]_).

    Parameters
    ----------
    n_components : int, default=1
        Cut to the number of rows, or of landmarks, as no more exist.
    feature_groups : int or list of array-like, default=2
        Columns of each client: a number of contiguous groups, or positions or names of columns.
        Every column must belong to one client.
    kernel : {"rbf", "sigmoid", "poly", "linear"} or callable, default="rbf"
        As in scikit-learn. A callable ``kernel(X, Y)`` takes (n, f) and (m, f) columns of a client
        and returns (n, m); only with "paper", as parts of an unknown kernel do not add up.
    gamma : float or None, default=None
        None: one over the number of columns, of all with "exact", of the client with "paper".
    degree : float, default=3
        Degree of the kernel "poly".
    coef0 : float, default=1
        Constant term of the kernels "poly" and "sigmoid".
    aggregation : {"exact", "paper"}, default="exact"
        "exact": squared distances (rbf) or inner products add up over clients on their way, and
        the kernel follows from the sum. "paper": one eigenvector and eigenvalue of each client.
    projection : {"samples", "features"}, default="samples"
        "samples": scores in the kernel's space, as `sklearn.decomposition.KernelPCA`. "features":
        rows are projected on the columns' combinations U^T X (AKPCA), of unit length.
    topology : Topology, None, {"server", "complete", "ring", "star"}, array of shape (p, p) or \
            graph, default="server"
        Who exchanges messages, as in `VerticalFederatedPCA`: without a server sums and averages are
        found by gossip between neighbours, in `transform` too.
    local_iterations : int, default=20
        "paper": power iterations at a client for each component; L of [1]_.
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
        "paper" u^T K u for K the average of the clients' centred kernels, weighted by eigenvalues.
    eigenvectors_ : ndarray of shape (n, n_components_)
        U, orthonormal columns. Where the eigenvalue is zero any, or zeros; scores are zero then.
    components_ : ndarray of shape (n_components_, d)
        With "features": rows of unit length (zero if there is no variance), orthogonal for "linear"
        and "exact" only.
    mean_ : ndarray of shape (d,)
        With "features".
    gamma_ : float or ndarray of shape (n_clients,)
        As used: a number with "exact", each client's with "paper".
    n_components_ : int
    feature_groups_ : list of ndarray of int
        Positions of each client's columns.
    landmarks_ : ndarray of int
        Rows that kernels are computed against; all, unless ``n_landmarks`` is less.
    communication_ : CommunicationLog
        Of `fit`, with n rows, m landmarks (n if None), p clients and k components. "exact": p n m
        floats up in one round. "paper": p (n + 1) up and p n down for each component, then p k up
        for the eigenvalues. With "features" p k up once more, and with "exact" p n k down before.
        By gossip in m exchanges over E edges every sum goes 2 E m times, and "paper" 2 E (D (n + 1)
        + m n) for each component, with D the diameter.
    disagreement_ : float
        Without a server, how far apart two clients are at most: of their last sums, as a share of
        the largest, or of their common vectors.

    See Also
    --------
    VerticalFederatedPCA : Linear components for many rows.
    sklearn.decomposition.KernelPCA : The same of columns in one place.

    Notes
    -----
    A client works in O(n m f_i) and the server in O(n^3), or O(n m^2) with landmarks, and both in
    O(n m) memory, with "exact". With "paper" a client takes O(k n^2 (f_i + L)) time and O(n^2)
    memory, as it computes its kernel again for each component, and the server O(p n k) time and
    O(n (p + k)) memory. To transform q rows with "samples" clients send p q m floats with "exact",
    p q k with "paper"; they keep their columns of the training rows or landmarks for it.

    With "exact" the server sees the sum of the messages and nothing else, but that sum is the
    kernel of all rows. With "paper" it sees every client's vector.

    "paper" is VFedKPCA of [1]_, and with "features" VFedAKPCA: power iteration (eq. 5 and 6) of
    the centred local kernel from a common start, weights eta_i / sum of eta (eq. 13), and
    u = sum w_i a_i made a unit vector. Signs of the a_i are first aligned with that of the client
    with the largest eigenvalue. [1]_ treats the leading vector; here the next ones follow by
    deflation, K_i <- (I - u u^T) K_i (I - u u^T). All rows, those of `fit` too, score
    sum_i w_i k_i(x, X) u / sqrt(eigenvalue), centred, so that `fit_transform` is `fit` and
    `transform`; with a single client that is sqrt(eigenvalue) u. Where the kernel is not positive
    semi-definite (sigmoid), a client whose leading eigenvalue is negative has no weight.

    With landmarks the kernel is C W^+ C^T, with C that of all rows and W that of the landmarks
    against the landmarks [2]_, centred over all rows; of an indefinite W the positive part counts.

    Differences from scikit-learn's KernelPCA: ``n_components`` is a number, negative eigenvalues
    count as zero, no sparse rows, no ``inverse_transform``; results are those of its dense solver
    up to signs.

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
    >>> paper = pca.set_params(aggregation="paper", random_state=0).fit(X)
    >>> abs(np.sum(paper.eigenvectors_ * central.eigenvectors_, axis=0)).round(2)
    array([0.98, 0.98])
    >>> paper.communication_.floats_up == 4 * (2 * 179 + 2)
    True
    """

    _parameter_constraints: dict = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "feature_groups": [Interval(Integral, 1, None, closed="left"), list, tuple],
        "kernel": [StrOptions({"rbf", "sigmoid", "poly", "linear"}), callable],
        "gamma": [Interval(Real, 0, None, closed="left"), None],
        "degree": [Interval(Real, 0, None, closed="left")],
        "coef0": [Interval(Real, None, None, closed="neither")],
        "aggregation": [StrOptions({"exact", "paper"})],
        "projection": [StrOptions({"samples", "features"})],
        "topology": "no_validation",
        "local_iterations": [Interval(Integral, 1, None, closed="left")],
        "n_landmarks": [Interval(Integral, 1, None, closed="left"), None],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_components: int = 1,
        *,
        feature_groups: Any = 2,
        kernel: Any = "rbf",
        gamma: float | None = None,
        degree: float = 3,
        coef0: float = 1,
        aggregation: str = "exact",
        projection: str = "samples",
        topology: Any = "server",
        local_iterations: int = 20,
        n_landmarks: int | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
    ):
        self.n_components = n_components
        self.feature_groups = feature_groups
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.aggregation = aggregation
        self.projection = projection
        self.topology = topology
        self.local_iterations = local_iterations
        self.n_landmarks = n_landmarks
        self.n_jobs = n_jobs
        self.random_state = random_state

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
        self._validate_params()
        if self.aggregation == "exact" and callable(self.kernel):
            raise ValueError(f"kernel={self.kernel!r} needs aggregation='paper', got 'exact'.")
        if self.aggregation == "paper" and self.n_landmarks is not None:
            raise ValueError(f"n_landmarks={self.n_landmarks} needs aggregation='exact'.")
        with self._unchanged_on_error(), np.errstate(over="ignore", invalid="ignore"):
            for name in ("components_", "mean_"):  # of a fit with another projection
                self.__dict__.pop(name, None)
            refuse_dask(self, X)
            X, groups = split_columns(self, X)
            n, d = X.shape
            rng = check_random_state(self.random_state)
            self.communication_ = log = CommunicationLog(floats_pooled=X.size)
            federation = federation_of(self.topology, len(groups), self.n_jobs, rng, log)
            m = min(self.n_landmarks or n, n)
            self.landmarks_ = np.sort(rng.choice(n, m, replace=False)) if m < n else np.arange(n)
            exact = self.aggregation == "exact"
            rank = min(self.n_components, m)
            kernels = [self._kernel(d if exact else len(g)) for g in groups]
            clients = [
                ColumnClient.of(X, g, self.landmarks_, kernel)
                for g, kernel in zip(groups, kernels, strict=True)
            ]
            if exact:
                values, U, scorer, apart = self._exact(federation, clients, X, rank)
                self.gamma_: float | np.ndarray = kernels[0].gamma
            else:
                values, U, scorer, apart = self._paper(federation, clients, rank)
                self.gamma_ = np.array([kernel.gamma for kernel in kernels])
            if self.projection == "features":
                scorer = LinearScores.of(federation, clients, X, U * (values > 0), exact)
                self.mean_ = scorer.mean.astype(X.dtype)
                self.components_ = scorer.components.astype(X.dtype)
            self._scorer = scorer
            self.eigenvalues_, self.eigenvectors_ = values.astype(X.dtype), U.astype(X.dtype)
            self.feature_groups_, self.n_components_ = groups, len(values)
            self.disagreement_ = max(apart, federation.disagreement)
        log_fit(self, len(groups))
        return self

    def _kernel(self, n_columns: int) -> Kernel:
        gamma = 1.0 / n_columns if self.gamma is None else self.gamma
        return Kernel(self.kernel, gamma, self.degree, self.coef0)

    def _exact(self, federation, clients, X, rank):
        whole = len(self.landmarks_) == len(X)
        for _ in rounds_of(self, 1):
            C = summed_kernel(federation, clients, None if whole else X)
        found = (
            exact_kernel_pca(C, rank) if whole else nystroem_kernel_pca(C, self.landmarks_, rank)
        )
        values, U, offset, turn = found
        return values, U, ExactScores(clients, offset, turn), 0.0

    def _paper(self, federation, clients, rank):
        n, p = len(clients[0].rows), len(clients)
        U, etas, apart = np.zeros((n, rank)), np.zeros((p, rank)), 0.0
        for j in rounds_of(self, rank):
            start = federation.rng.standard_normal(n)
            calls = [(i, c, start, U[:, :j], self.local_iterations) for i, c in enumerate(clients)]
            local = list(federation.map(leading_pair, calls))
            etas[:, j] = [eta for eta, _ in local]
            common = _common_vectors(federation, etas[:, j], np.array([a for _, a in local]))
            apart = max(apart, float(np.linalg.norm(common - common[0], axis=1).max()))
            U[:, j] = linalg.flip_signs(common[:1])[0]
        U, etas = U[:, : j + 1], etas[:, : j + 1]  # a callback may have asked to stop
        largest = etas.max(axis=0)
        weights = etas / np.where(largest > 0, largest, 1.0)
        last = [(i, c, U, w) for i, (c, w) in enumerate(zip(clients, weights, strict=True))]
        offsets, energies = zip(*federation.map(client_energies, last), strict=True)
        all_known = federation.gossip is None or federation.gossip.complete
        total = weights.sum(axis=0)
        if not all_known:
            total = federation.sum(as_sent, list(enumerate(weights)))
        total = np.maximum(total, 1.0)
        values = nonnegligible(federation.sum(as_sent, list(enumerate(energies))) / total)
        scorer = PaperScores(clients, offsets, weights, U, inverse_root(values) / total)
        return values, U, scorer, apart

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
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        n_clients, log = len(self.feature_groups_), CommunicationLog()
        federation = federation_of(self.topology, n_clients, self.n_jobs, None, log)
        scores = self._scorer.scores(federation, X)
        return scores.astype(np.result_type(X, self.eigenvectors_), copy=False)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _common_vectors(federation, etas: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Average of the clients' vectors by eigenvalues, of unit length, as each has it."""
    p, n = vectors.shape
    gossip, log = federation.gossip, federation.log
    if gossip is not None and not gossip.complete:
        return agree(etas, vectors, False, False, log, gossip)
    signs = np.where(vectors @ vectors[np.argmax(etas)] < 0, -1.0, 1.0)
    u = (signs * (etas / (etas.max() or 1.0))) @ vectors
    u /= float(np.linalg.norm(u)) or 1.0
    if gossip is None:
        log.record([Message(n + 1, 8 * (n + 1))] * p, [message_of(u)] * p)
    else:
        gossip.record(log, n + 1, 1)
    return np.tile(u, (p, 1))
