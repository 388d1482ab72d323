"""Fitted attributes that say how far a result may be from a decomposition of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._kernels.certificates import Certificate, rounding_of
from ..summary import Subspace
from ..summary._refinement import certificate_of_summary
from .adjusting import taken_off, untruncated_model
from .fitted import shown_like

# Where an estimator keeps the certificate of a refinement, with the summary that it is of.
CERTIFIED = "_certified"


def name_columns(fitted: Any, names: Sequence[str]) -> None:
    """Set the names of the columns in a fitted summary, of which the same stays certain."""
    before = fitted.subspace_
    of, certificate = vars(fitted).get(CERTIFIED, (None, None))
    fitted._set_values({"subspace_": before._named(names)})
    if of is before:
        certify(fitted, certificate)


def certify(fitted: Any, certificate: Certificate) -> None:
    """Keep the certificate of the summary that was set last."""
    vars(fitted)[CERTIFIED] = fitted._values()["subspace_"], certificate


def _with_certificate(estimator: Any) -> tuple[Subspace, Certificate]:
    """The summary that is fitted, and what is certain about its first directions.

    The estimator says by ``_never_exceeds()`` whether the summary never exceeds the scatter matrix
    of the rows.
    """
    fitted = estimator._in_numpy()
    check_is_fitted(fitted)
    subspace: Subspace = fitted._values()["subspace_"]
    of, certificate = vars(fitted).get(CERTIFIED, (None, None))
    if of is subspace:
        return subspace, certificate
    if not fitted._never_exceeds():
        nothing = np.tile([0.0, np.inf], (fitted.n_components_, 1))
        return subspace, Certificate(np.inf, nothing)
    model = untruncated_model(fitted)
    off = rounding_of(taken_off(fitted, model), model.n_samples, model.components.dtype)
    return subspace, certificate_of_summary(model, fitted.n_components_, off)


def subspace_error_bound(estimator: Any) -> float:
    """Bound on the sine of the largest angle to the components of all rows at once."""
    return float(_with_certificate(estimator)[1].sine)


def explained_variance_interval(estimator: Any) -> np.ndarray:
    """Two variances for each component, between which that of all rows at once is."""
    subspace, certificate = _with_certificate(estimator)
    interval = certificate.eigenvalues / (subspace.degrees_of_freedom or 1.0)
    return shown_like(estimator, interval)
