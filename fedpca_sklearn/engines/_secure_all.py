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
    _secure_tracking,
)
from ._answering import Seal
from ._secure import SecureAggregation
from ._secure_fits import fit_securely, secure_tasks
from ._secure_site import SiteSums

__all__ = ["fit_securely", "secure_tasks", "steps_of_site"]


def steps_of_site(secure: SecureAggregation, tasks: dict[str, Any]) -> Callable[[str], Seal]:
    """The steps of a secure sum at a site, by the kind of question."""
    return SiteSums(secure, tasks).step
