"""Fitted attributes that say how far a result may be from a decomposition of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._kernels.certificates import Certificate, rounding_of
from ..summary import Subspace
from ..summary._refinement import certificate_of_summary
from .fitted import FittedState, shown_like

# Where an estimator keeps the certificate of a refinement, with the summary that it is of.
CERTIFIED = "_certified"


def name_columns(fitted: Any, names: Sequence[str]) -> None:
    """Set the names of the columns in a fitted summary, of which the same stays certain."""
    before = fitted.subspace_
    of, certificate = vars(fitted).get(CERTIFIED, (None, None))
    fitted._set_values({"subspace_": before._named(names)})
    if of is before:
        fitted._certify(certificate)


class CertifiedMixin(FittedState):
    """Estimators that know a bound on the error of their directions."""

    def _never_exceeds(self) -> bool:
        """Whether the summary never exceeds the scatter matrix of the rows."""
        return True

    def _certify(self, certificate: Certificate) -> None:
        """Keep the certificate of the summary that was set last."""
        self.__dict__[CERTIFIED] = self._values()["subspace_"], certificate

    def _with_certificate(self) -> tuple[Subspace, Certificate]:
        """The summary that is fitted, and what is certain about its first directions."""
        view: Any = self._in_numpy()
        check_is_fitted(view)
        subspace: Subspace = view._values()["subspace_"]
        of, certificate = vars(view).get(CERTIFIED, (None, None))
        if of is subspace:
            return subspace, certificate
        if not view._never_exceeds():
            nothing = np.tile([0.0, np.inf], (view.n_components_, 1))
            return subspace, Certificate(np.inf, nothing)
        model: Subspace = view._whole_model()
        off = rounding_of(view._taken_off(model), model.n_samples, model.components.dtype)
        return subspace, certificate_of_summary(model, view.n_components_, off)

    @property
    def subspace_error_bound_(self) -> float:
        """Bound on the sine of the largest angle to the components of all rows at once."""
        return float(self._with_certificate()[1].sine)

    @property
    def explained_variance_interval_(self) -> np.ndarray:
        """Two variances for each component, between which that of all rows at once is."""
        subspace, certificate = self._with_certificate()
        interval = certificate.eigenvalues / (subspace.degrees_of_freedom or 1.0)
        return shown_like(self, interval)
