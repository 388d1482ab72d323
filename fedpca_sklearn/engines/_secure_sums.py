"""Secure sums of real numbers at the server: bounds that sites announce, and decoded sums."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ..communication import CommunicationLog
from ._messages import Answer
from ._secure import Bounds, SecureAggregation, bounds_in
from ._sites import Shapes, SiteLostError, Sites


class SecureSums:
    """Sums over sites, of which the server sees nothing else.

    A site that is lost before its masked numbers arrive is left out of the sum; one that is lost
    later has taken part. All sums of a fit are over the same sites.

    Attributes
    ----------
    announced : dict of str to Bounds
        What the sites have announced, by name.
    private : bool
        Whether sites state what they have spent beside their numbers.
    n_ended : int
        Sites that have no more batches.
    """

    def __init__(self, sites: Sites, secure: SecureAggregation, tasks: Mapping[str, Any]):
        self.sites, self.secure, self.tasks, self.private = sites, secure, tasks, False
        self.n_ended = 0
        from ._secure_session import Session  # whose masks need an optional dependency

        self._session = Session
        if secure.threshold > sites.min_sites:
            sites.limit, sites.min_sites = "threshold", secure.threshold
        self._keys: dict[str, tuple[bytes, bytes]] = {}
        self.begin()

    def begin(self, members: Iterable[str] = ()) -> None:
        """Begin a fit, of the sites that are known to take part, or of those in its first sum."""
        self.announced: dict[str, Bounds] = {}
        self._steps: dict[str, Any] = {}
        self._members: set[str] = set(members)

    def announce(self, kind: str, *arguments: Any) -> None:
        """Begin a fit with the bounds that all sites announce."""
        self.announced = self.sites.ask(kind, bounds_in, *arguments)

    def begin_batch(
        self, kind: str, batch: int, read: Callable[[Answer], tuple[Any, Bounds]]
    ) -> dict[str, Any]:
        """Begin a batch of the sites that have one; none where they are too few.

        ``read(answer)`` returns what a site tells of its batch, which is returned by its name, and
        its bounds. Sites that have no more rows are asked no more.
        """
        found, limit = self.sites.ask_batch(kind, read, batch), self.sites.min_sites
        if len(found) < limit and found:
            if not batch:
                raise RuntimeError(
                    f"Too few sites: {len(found)} have rows for a batch, but "
                    f"{self.sites.limit}={limit}."
                )
            warnings.warn(
                f"Rows from batch {batch} on are left out: {len(found)} sites have them, but "
                f"{self.sites.limit}={limit}.",
                UserWarning,
                stacklevel=2,
            )
        if len(found) < limit:
            return {}
        self.n_ended += len(self.sites.names) - len(found)
        self.sites.keep(found)
        self.begin(found)
        self.announced = {site: bounds for site, (_, bounds) in found.items()}
        return {site: told for site, (told, _) in found.items()}

    def sum(self, kind: str, shapes: Shapes, *arguments: Any) -> dict[str, np.ndarray]:
        """Return the sums of what the sites send, by name.

        Parameters
        ----------
        kind : str
        shapes : dict of str to tuple
            Of the arrays that are summed.
        *arguments : array-like
            Sent along.

        Raises
        ------
        RuntimeError
            If too few sites are left.
        SiteLostError
            If a site of earlier sums is not in this one.
        """
        names = sorted(shapes)
        session = self._session(
            self.sites,
            self.secure,
            self._keys,
            {site: b.vector.astype("<f8").tobytes() for site, b in self.announced.items()},
        )
        how = self.secure.bits, len(session.names)
        grids = self.tasks[kind].grids(Bounds.of_all(self.announced[s] for s in session.names))
        sizes = {name: _size(shapes[name], len(grids[name].levels(*how))) for name in names}
        known = sum(size for size in sizes.values() if size is not None)
        size = None if None in sizes.values() else known
        self._keys = {}
        masked = session.masked(kind, size, arguments, self.private)
        if self._members and self._members != set(masked):
            raise SiteLostError
        self._members = set(masked)
        total = session.unmasked(masked)
        self._keys = session.next_keys
        session.record(len(total), arguments, list(masked))
        found, rest = {}, len(total) - known
        for name in names:
            size, shape = sizes[name], shapes[name]
            if size is None:
                size, shape = rest, (rest // len(grids[name].levels(*how)),)
            part, total = total[:size], total[size:]
            found[name] = grids[name].decode(part, shape, *how)
            self._steps[name] = grids[name].step(*how)
        return found

    @property
    def log(self) -> CommunicationLog:
        """What the sums have sent."""
        return self.sites.log

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the rows of all sites."""
        return self.sites.dtype

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns, if the sites know them."""
        return self.sites.columns

    def most_rounding(self, name: str) -> Any:
        """The most that rounding at the sites adds to the last sum of a name."""
        return self._steps[name] * len(self._members)


def _size(shape: tuple[int | None, ...], n_words: int) -> int | None:
    """Words of an array; None where its length is not known."""
    return None if None in shape else math.prod(shape) * n_words  # type: ignore[arg-type]
