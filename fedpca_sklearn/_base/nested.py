"""Parameters of parameters, as ``merge__fan_in``, where there is no object that has them."""

from __future__ import annotations

from typing import Any


class NestedParametersMixin:
    """`set_params` that names what is None, or a name, in place of an object with parameters."""

    def set_params(self, **params: Any) -> Any:
        """Set parameters, those of strategies and estimators within by ``merge__fan_in``.

        Parameters
        ----------
        **params : dict
            Values by name.

        Returns
        -------
        self : object
            The estimator.

        Raises
        ------
        ValueError
            For a name that is none, and for a parameter of what is no object with parameters.
        """
        for name in params:
            owner, nested, _ = name.partition("__")
            value = params.get(owner, getattr(self, owner, self))
            if nested and not hasattr(value, "set_params"):
                raise ValueError(
                    f"{name} needs an object as {owner}, which is {value!r}; set {owner} to one "
                    "that has this parameter."
                )
        return super().set_params(**params)  # type: ignore[misc]
