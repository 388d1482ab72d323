"""Secure sums of real numbers at the server: scales that are agreed on, and decoded sums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..communication._fixed_point import LEAST, decode, exponent_of
from ._flower_estimators import SiteLostError
from ._flower_secure import SecureAggregation
from ._flower_secure_session import Session
from ._flower_secure_site import N_EXPONENTS
from ._flower_sites import Sites

# Shape by name of the arrays that are summed; None for one length that the server does not know.
Shapes = Mapping[str, tuple[int | None, ...]]


class SecureSums:
    """Sums over sites, of which the server sees nothing else.

    A site that is lost before its masked numbers arrive is left out of the sum; one that is lost
    later has taken part. All sums of a fit are over the same sites.

    Attributes
    ----------
    exponents : dict of str to int
        Powers of two that bound what is sent, by its name.
    private : bool
        Whether sites state what they have spent beside their numbers.
    """

    def __init__(self, sites: Sites, secure: SecureAggregation):
        self.sites, self.secure, self.private = sites, secure, False
        if secure.threshold > sites.min_sites:
            sites.limit, sites.min_sites = "threshold", secure.threshold
        self._keys: dict[str, tuple[bytes, bytes]] = {}
        self.begin()

    def begin(self, members: Iterable[str] = ()) -> None:
        """Begin a fit, of the sites that are known to take part, or of those in its first sum."""
        self.exponents: dict[str, int] = {}
        self._members: set[str] = set(members)

    def bound(self, kind: str, names: Iterable[str], *arguments: Any) -> None:
        """Agree on the exponents of numbers, unless the scale is public."""
        names = sorted(names)
        if self.secure.scale is not None:
            self.exponents |= dict.fromkeys(names, exponent_of(self.secure.scale))
            return
        total = self._integers(kind, len(names) * N_EXPONENTS, [], arguments)
        for name, flags in zip(names, np.split(total, len(names)), strict=True):
            self.exponents[name] = LEAST + int(np.flatnonzero(flags)[-1])

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
        exponents = [self.exponents[name] for name in names]
        sizes = {name: math.prod(n or 0 for n in shapes[name]) for name in names}
        known, unknown = sum(sizes.values()), [n for n in names if None in shapes[n]]
        size = None if unknown else known
        total = self._integers(kind, size, exponents, arguments, self.private)
        sizes |= dict.fromkeys(unknown, len(total) - known)
        parts = np.split(total, np.cumsum([sizes[name] for name in names])[:-1])
        return {
            name: decode(part, exponent, self.secure.bits).reshape(
                [-1 if n is None else n for n in shapes[name]]
            )
            for name, part, exponent in zip(names, parts, exponents, strict=True)
        }

    def rounding(self, name: str) -> float:
        """Standard deviation at most of what rounding at the sites adds to a sum."""
        resolution = 2.0 ** (self.exponents[name] - self.secure.bits)
        return resolution * math.sqrt(len(self._members))

    def most_rounding(self, name: str) -> float:
        """The most that it adds."""
        return 2.0 ** (self.exponents[name] - self.secure.bits - 1) * len(self._members)

    def _integers(
        self,
        kind: str,
        size: int | None,
        exponents: list[int],
        arguments: tuple,
        private: bool = False,
    ) -> np.ndarray:
        """One secure sum of integers modulo 2^64."""
        session = Session(self.sites, self.secure, self._keys)
        self._keys = {}
        masked = session.masked(kind, size, exponents, arguments, private)
        if self._members and self._members != set(masked):
            raise SiteLostError
        self._members = set(masked)
        total = session.unmasked(masked)
        self._keys = session.next_keys
        session.record(len(total), arguments, list(masked))
        return total
