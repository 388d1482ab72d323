"""All of secure sums: importing this registers the estimators that have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import (  # noqa: F401
    _secure_columns,
    _secure_heteroscedastic,
    _secure_kernels,
    _secure_refinements,
    _secure_scaling,
    _secure_steps,
    _secure_tracking,
)
from ._answering import Seal
from ._estimators import until_nobody_is_lost
from ._questions import Task
from ._secure import SecureAggregation
from ._secure_fits import fit_by_sums, secure_work
from ._secure_missing import fit_missing_by_sums, secure_work_of_missing
from ._secure_private import fit_private_by_sums, private_secure_tasks
from ._secure_site import SiteSums, protocol_tasks
from ._secure_sums import SecureSums
from ._sites import Sites

__all__ = ["fit_securely", "secure_tasks", "steps_of_site"]


def secure_tasks(estimator: Any, secure: SecureAggregation) -> dict[str, Task]:
    """What a site does by kind of question, those of the protocol included."""
    if getattr(estimator, "mechanism", None) is not None:
        tasks = private_secure_tasks(estimator, secure)
    else:
        tasks = secure_work(estimator)
        if getattr(estimator, "missing", None) is not None:
            tasks = secure_work_of_missing(estimator.missing, estimator, secure)
    return tasks | protocol_tasks(tasks)


def fit_securely(estimator: Any, sites: Sites, secure: SecureAggregation) -> Any:
    """Fit an estimator of the rows at sites by secure sums."""
    sums = SecureSums(sites, secure, secure_tasks(estimator, secure))
    if getattr(estimator, "mechanism", None) is not None:
        return fit_private_by_sums(estimator, sums)
    if getattr(estimator, "missing", None) is None:
        return fit_by_sums(estimator, sums)
    return until_nobody_is_lost(lambda: fit_missing_by_sums(estimator.missing, estimator, sums))


def steps_of_site(secure: SecureAggregation, tasks: dict[str, Any]) -> Callable[[str], Seal]:
    """The steps of a secure sum at a site, by the kind of question."""
    return SiteSums(secure, tasks).step
