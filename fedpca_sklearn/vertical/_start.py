"""How the fits of the vertical estimators begin."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from .._dask import refuse_dask
from ..communication import Channel, CommunicationLog, Federation
from ..communication._peers import federation_of
from ._feature_groups import split_columns


def started(
    estimator: Any, X: Any, channel: Channel | None = None
) -> tuple[np.ndarray, list[np.ndarray], Federation]:
    """Validated rows, each client's columns, and their federation with a new log."""
    refuse_dask(estimator, X)
    X, groups = split_columns(estimator, X)
    log = estimator.communication_ = CommunicationLog(floats_pooled=X.size)
    rng = check_random_state(estimator.random_state)
    topology, n_jobs = estimator.topology, estimator.n_jobs
    return X, groups, federation_of(topology, len(groups), n_jobs, rng, log, channel)
