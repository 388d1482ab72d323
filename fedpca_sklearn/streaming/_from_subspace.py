"""A stream that goes on from a summary."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .._base.adjusting import (
    warn_of_another_cut,
)
from .._base.fitted import show_in
from .._validation.checks import check_at_most_features, check_integer
from ..summary import Subspace
from ..summary._merging import checked_with_place
from ._blocks import (
    State,
)
from ._half_life import times_of


def from_subspace(
    cls: Any,
    subspace: Subspace,
    n_components: int | float | str | None = None,
    *,
    n_samples_seen: int | None = None,
    last_time: Any = None,
    **parameters: Any,
) -> Any:
    """Build a fitted estimator that continues the stream of a summary.

    With the parameters of the estimator that the whole `subspace_` is from, `partial_fit` gives
    the numbers that this estimator would have given, up to rounding; of a pickled estimator
    they are the same bit by bit.

    Parameters
    ----------
    subspace : Subspace
        Of at least one row. Directions that were cut from it are lost: a warning tells if fewer
        are left than ``n_components``.
    n_components : int, float, "parallel", "mle" or None, default=None
        With a ``rank_rule`` the rank to go on from: ``n_components_`` then.
    n_samples_seen : int, default=None
        Rows that the summary stands for. None: its ``n_samples``, rounded up, which is their
        number unless they were weighted or forgotten.
    last_time : numpy.datetime64, default=None
        ``last_time_`` of the stream, for a ``half_life`` that is a time.
    **parameters
        Of the estimator. Without ``center``, that of the summary.

    Returns
    -------
    pca : StreamingPCA

    Notes
    -----
    A summary knows neither ``rank_history_``, which starts anew, nor how many blocks ago a
    ``rank_rule`` changed the rank: its ``hold_off`` starts anew as well. Rows that wait for
    others are in it, so that it goes on as from the end of a batch. "auto" as ``block_size``
    depends on the first rank, so above 256 features give it as a number.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import StreamingPCA, Subspace
    >>> X = np.random.default_rng(0).standard_normal((100, 5))
    >>> pca = StreamingPCA(2).fit(X[:60])
    >>> message = pca.subspace_.to_bytes()
    >>> elsewhere = StreamingPCA.from_subspace(Subspace.from_bytes(message), 2)
    >>> goes_on, stays = elsewhere.partial_fit(X[60:]), pca.partial_fit(X[60:])
    >>> np.allclose(goes_on.components_, stays.components_, rtol=0, atol=1e-13)
    True
    """
    (subspace,), place = checked_with_place([subspace])
    pca = cls(n_components, **{"center": subspace.centered, **parameters})
    pca._check_parameters()
    state = _state_of(pca, subspace, n_samples_seen, last_time)
    pca.n_features_in_ = subspace.n_features
    if subspace.feature_names is not None:
        pca.feature_names_in_ = np.array(subspace.feature_names, dtype=object)
    pca._keep(state)
    pca._warn_of_cut()
    warn_of_another_cut(pca)
    show_in(place, pca)
    return pca


def _state_of(pca: Any, subspace: Subspace, n_samples_seen: int | None, last_time: Any) -> State:
    """State of a stream that goes on from a summary."""
    if pca.center != subspace.centered:
        raise ValueError(
            f"center={pca.center!r} differs from the summary, which is about the "
            f"{'mean' if subspace.centered else 'origin'}."
        )
    check_at_most_features(pca.n_components, subspace.n_features)
    if not subspace.n_samples > 0:
        raise ValueError("subspace must hold at least one row, it has n_samples=0.")
    if n_samples_seen is None:
        n_samples_seen = max(math.ceil(subspace.n_samples), subspace.n_components)
    else:
        check_integer("n_samples_seen", n_samples_seen)
    rank = pca._sizes.start_rank
    ranks = None if rank is None else np.zeros(0, dtype=int)
    last_time = None if last_time is None else times_of([last_time], 1)[0]
    return State(subspace, int(n_samples_seen), rank, ranks=ranks, last_time=last_time)
