"""What clients have sent, and a client that leaves a fit."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from sklearn.utils.validation import check_is_fitted

from .._validation.arrays import PLACE
from ..communication import CommunicationLog
from ..summary import Subspace
from ._clients import StreamingClientsTransformer
from ._conditional_fill import ConditionalFill
from ._local_fit import Site


class LeavingMixin(StreamingClientsTransformer):
    """Show what clients have sent, and merge again without one of them."""

    _clients: dict[Any, Site]
    _trust: str | None
    missing: Any
    clients_: list[Any]
    communication_: CommunicationLog

    @abstractmethod
    def _merge_all(self) -> None:
        """Merge what every client has sent and set the fitted attributes."""

    @property
    def summaries_(self) -> dict[Any, Subspace]:
        """What each client has sent last, by its label."""
        check_is_fitted(self)
        if self._trust == "sum":
            raise AttributeError("With trust='sum' only the sum of all clients is known.")
        return {label: self._clients[label].summary for label in self.clients_}

    def remove(self, label: Any) -> Any:
        """Take a client out: the fit is then that of the others, as if it had never come.

        Parameters
        ----------
        label : object
            One of ``clients_``.

        Returns
        -------
        self : FederatedPCA
            Unchanged if an error is raised. What a mechanism has charged stays charged.

        Raises
        ------
        ValueError
            For an unknown label, for the last client, and with ``trust="sum"``, where only the sum
            of all is known.

        Notes
        -----
        The others' summaries are merged anew, so that nothing of the client is left, not even a
        rounding error, nor a refinement. In a tree the merges on its path are made again.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from fedpca_sklearn import FederatedPCA
        >>> X, y = load_digits(return_X_y=True)
        >>> pca = FederatedPCA(5).fit(X, clients=y).remove(3)
        >>> others = FederatedPCA(5).fit(X[y != 3], clients=y[y != 3])
        >>> bool((pca.explained_variance_ == others.explained_variance_).all())
        True
        """
        check_is_fitted(self)
        if self._trust == "sum":
            raise ValueError("trust='sum' knows the sum of all clients only; none can be removed.")
        if label not in self._clients:
            raise ValueError(f"label must be one of clients_, {self.clients_}, got {label!r}.")
        if isinstance(self.missing, ConditionalFill):
            raise ValueError(
                f"remove cannot be with missing={self.missing!r}: the rows of the others were "
                "filled in by what the client's told; fit without it."
            )
        others = {known: site for known, site in self._clients.items() if known != label}
        if not any(site.n_rows for site in others.values()):
            raise ValueError(f"label={label!r} is the last client; nothing would be left.")
        place = vars(self).get(PLACE)
        with self._unchanged_on_error():
            self.communication_ = self.communication_.copy()
            self._clients = others
            self._merge_all()
            self.clients_ = [known for known in self.clients_ if known in others]
            if place is not None:
                self.__dict__[PLACE] = place
        if self.missing is None:
            self._warn_of_cut()
        return self
