"""Tracking from missing entries: Narayanamurthy, Vaswani, Ramamoorthy."""

from __future__ import annotations

from dataclasses import KW_ONLY

from sklearn.utils._param_validation import StrOptions

from .._validation.checks import allowed, with_parameters
from ._stmiss_tracker import STMissTracker


@with_parameters
class SubspaceTracker(STMissTracker):
    """Track the principal subspace of rows with missing entries, batch by batch (STMiss).

    Take it where rows have missing entries (NaN) and arrive in batches. The components of a table
    that does not change are nearer by ``FederatedPCA(missing=ConditionalFill(), n_clients=1)``. The
    tracker fills the entries of a batch in from the rest of their row and the last subspace. The
    next subspace is that of all filled batches, or of those that still fit, if that has predicted
    the next rows better so far.

    Parameters
    ----------
    n_components : int or None, default=None
        Dimension of the subspace, r of [1]_. None: 10, or all features where there are fewer.
    batch_size : int or "auto", default="auto"
        Rows per update; alpha of [1]_. "auto": ``max(2 n_components, 40)``.
    init : "svd" or array-like of shape (k, n_features), default="svd"
        "svd": the first batch is filled with zeros, or with the mean of each feature if ``center``.
        An array: rows that span the first subspace.
    forgetting_factor : float in [0, 1] or "auto", default="auto"
        "auto": all batches count, unless a model that forgets predicts the next rows better. A
        float: the weight of earlier batches falls by ``forgetting_factor ** batch_size`` with each
        batch. 0: the last batch alone, as in [1]_; 1: all count alike.
    half_life : float or None, default=None
        Number of later rows after which a row has half its weight, in the place of
        ``forgetting_factor``; no time.
    n_iter : int, default=1
        Times that a batch is filled in, each time by the subspace found last.
    fill : {"conditional", "subspace", "zeros"}, default="conditional"
        What stands for a missing entry. "conditional": its mean given the rest of its row and the
        noise of an entry, as in probabilistic PCA. "subspace": by least squares, as in [1]_, which
        amplify noise where few entries are there. "zeros": the baseline of [1]_.
    detect_changes : bool or ChangeDetection, default=False
        After some updates keep the subspace, until rows do not fit it any more, much as NORST [2]_
        does. True: `ChangeDetection` with its defaults.
    center : bool, default=True
        Subtract the mean of the filled rows that count. False: about the origin, as in [1]_.
    store_subspaces : bool, default=False
        Keep the basis after every batch in ``subspaces_``, which grows with the stream.

    Attributes
    ----------
    components_, singular_values_, explained_variance_, explained_variance_ratio_, mean_, \
            noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_
        As in `StreamingPCA`, for the filled rows that count. What is filled in varies less than
        what is missing: variances are smaller than those of whole rows, and the noise is larger,
        the more entries are missing.
    change_points_ : ndarray of int
        First rows of the last 1,000 batches in which a change was detected.
    subspaces_ : list of ndarray of shape (n_components, n_features), float64
        Only with ``store_subspaces``; one for each full batch.

    Warns
    -----
    UserWarning
        By `fit` with ``forgetting_factor="auto"``, if a model of the last rows has predicted the
        next ones much better than one of all: the components are then no longer those of all rows.
        With ``fill="conditional"``, if no row has more entries than there are components.

    See Also
    --------
    RobustSubspaceTracker : For outliers as well.

    Notes
    -----
    With ``forgetting_factor=0, fill="subspace", center=False`` this is Algorithm 1 of [1]_
    (STMiss-NoDet). Its steps, costs, and what counts, are on the page "Missing entries and
    outliers" of the guide. `score` is that of predicting hidden entries.

    References
    ----------
    .. [1] P. Narayanamurthy et al., "Federated over-air subspace tracking from incomplete and
       corrupted data", IEEE Transactions on Signal Processing 2022.
    .. [2] P. Narayanamurthy et al., "Provable subspace tracking from missing data and matrix
       completion", IEEE Transactions on Signal Processing 2019 (NORST).

    Examples
    --------
    >>> from fedpca_sklearn import SubspaceTracker, make_subspace_stream
    >>> stream = make_subspace_stream(2000, 200, 5, model="piecewise", random_state=0)
    >>> SubspaceTracker(5, detect_changes=True).fit(stream.X).change_points_
    array([1000])
    """

    _: KW_ONLY
    fill: str = allowed(StrOptions({"conditional", "subspace", "zeros"}), default="conditional")

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.detect_changes and self.fill == "zeros":
            raise ValueError(
                "detect_changes needs fill='conditional' or fill='subspace', got fill='zeros'."
            )
