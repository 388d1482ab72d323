"""Secure sums of real numbers at the server: bounds that sites announce, and decoded sums."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ._messages import Answer
from ._secure import Bounds, SecureAggregation, bounds_in
from ._sites import Shapes, SiteLostError, Sites


class SecureSums(Sites):
    """Sites of whose numbers the server sees sums over all of them, and nothing else.

    A site that is lost before its masked numbers arrive is left out of the sum; one that is lost
    later has taken part. All sums of a fit are over the same sites.

    Attributes
    ----------
    announced : dict of str to Bounds
        What the sites have announced, by name.
    n_ended : int
        Sites that have no more batches.
    """

    def __init__(self, secure: SecureAggregation, tasks: Mapping[str, Any], *of_sites: Any):
        from ._secure_session import Session  # whose masks need an optional dependency

        super().__init__(*of_sites)
        if secure.threshold > self.min_sites:
            self.limit, self.min_sites = "threshold", secure.threshold
        self.secure, self.tasks, self.n_ended = secure, tasks, 0
        self._session = Session
        self._keys: dict[str, tuple[bytes, bytes]] = {}
        self.begin_sums(())

    def begin(self) -> None:
        """Begin a fit anew, with the bounds that all sites announce if it begins with these."""
        self.begin_sums(())
        if (task := self.tasks.get("bounds")) is not None and not task.batches:
            self.announce("bounds")

    def begin_sums(self, members: Iterable[str]) -> None:
        """Begin sums over sites that are known to take part, or over those of the first one."""
        self.announced: dict[str, Bounds] = {}
        self._steps: dict[str, Any] = {}
        self._summed = set(members)

    def announce(self, kind: str, *arguments: Any) -> None:
        """Begin sums with the bounds that all sites announce."""
        self.announced = self.ask(kind, bounds_in, *arguments)

    def begin_batch(
        self, kind: str, batch: int, read: Callable[[Answer], tuple[Any, Bounds]]
    ) -> dict[str, Any]:
        """Begin a batch of the sites that have one; none where they are too few.

        ``read(answer)`` returns what a site tells of its batch, which is returned by its name, and
        its bounds. Sites that have no more rows are asked no more.
        """
        found, limit = self.ask_batch(kind, read, batch), f"{self.limit}={self.min_sites}"
        if 0 < len(found) < self.min_sites:
            if not batch:
                raise RuntimeError(
                    f"Too few sites: {len(found)} have rows for a batch, but {limit}."
                )
            warnings.warn(
                f"Rows from batch {batch} on are left out: {len(found)} sites have them, but "
                f"{limit}.",
                UserWarning,
                stacklevel=2,
            )
        if len(found) < self.min_sites:
            return {}
        self.n_ended += len(self.names) - len(found)
        self.keep(found)
        self.begin_sums(found)
        self.announced = {site: bounds for site, (_, bounds) in found.items()}
        return {site: told for site, (told, _) in found.items()}

    def sum(self, kind: str, shapes: Shapes, *arguments: Any) -> dict[str, np.ndarray]:
        """Return the sums of what the sites send, by name; see `Sites.sum`.

        Raises
        ------
        RuntimeError
            If too few sites are left.
        """
        session, self._keys = self._session(self, self._keys), {}
        bits, n = self.secure.bits, len(session.names)
        grids = self.tasks[kind].grids(
            Bounds.of_all(map(self.announced.__getitem__, session.names))
        )
        words = {name: len(grids[name].levels(bits, n)) for name in sorted(shapes)}
        sizes = {name: _size(shapes[name], words[name]) for name in words}
        known = sum(size for size in sizes.values() if size is not None)
        masked = session.masked(kind, None if None in sizes.values() else known, arguments)
        if self._summed and self._summed != set(masked):
            raise SiteLostError
        self._summed = set(masked)
        total = session.unmasked(masked)
        self._keys = session.next_keys
        session.record(len(total), arguments, list(masked))
        found, rest = {}, len(total) - known
        for name, size in sizes.items():
            shape = (rest // words[name],) if size is None else shapes[name]
            part, total = np.split(total, [rest if size is None else size])
            found[name] = grids[name].decode(part, shape, bits, n)
            self._steps[name] = grids[name].step(bits, n)
        return found

    def most_rounding(self, name: str) -> Any:
        """The most that rounding at the sites adds to the last sum of a name."""
        return self._steps[name] * len(self._summed)


def _size(shape: tuple[int | None, ...], n_words: int) -> int | None:
    """Words of an array; None where its length is not known."""
    return None if None in shape else math.prod(shape) * n_words  # type: ignore[arg-type]
