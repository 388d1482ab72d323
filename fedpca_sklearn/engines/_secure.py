"""What sites and server agree on before secure sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from .._validation.checks import check_integer
from ..communication._fixed_point import DEFAULT_BITS, FEWEST_BITS, LARGEST, MOST_BITS
from ._questions import BEGINNINGS


@dataclass(frozen=True)
class SecureAggregation:
    """Secure sums: the server receives masked numbers, and learns their sum over sites only.

    The protocol of Bonawitz et al. [1]_ with all sites as neighbours, in three questions for each
    sum: shares of secrets for the other sites, masked numbers, and the shares that take off the
    masks, with keys for the next sum; before the first, one for keys. It is given to `client_app`,
    where it binds the site, and to `fit_sites`.

    Parameters
    ----------
    threshold : int, default=3
        Sites that a sum has at least, 2 or more. With 2, a site that is told the sum knows the
        numbers of the other one. A sum begun by many sites needs more of them at its end: see
        `needed`. With fewer the fit is an error.
    bits : int, default=50
        Bits of a number beside its sign, from 22 to 60: numbers are rounded at random to multiples
        of 2^-bits of a bound, which follows from powers of two that the sites announce: of the
        number, mean and scatter of their rows. Where few sites leave room they keep more. Less than
        2^(63 - bits) sites can be added up.
    scale : float or None, default=None
        Public bound, if there is one, on the number of rows of a site, on their scatter, and on
        that number times the square of their mean. Then sites announce the power of two of their
        number of rows alone; one with larger sums takes no part.
    restarts : int, default=2
        Times that a site lets a fit, or a batch, begin again where another site was lost, at most
        2. Of two sums with and without a site the server knows what that site sent to them. 0: the
        fit ends with an error instead.
    identity : callable or None, default=None
        Of a site: ``identity(context)`` returns its secret key and the list of the public keys of
        the other sites, PEM as bytes of keys on the curve P-384, which owners have handed over
        without the server. The site signs the keys of each sum, sends no numbers unless all others
        have signed the same, and unmasks no sum over other sites than the fit began with. None: a
        server can pretend to be the other sites, and that they are lost.

    See Also
    --------
    fedpca_sklearn.FixedPointChannel : The same rounding in one process.

    Notes
    -----
    With n sites and m numbers a sum costs a site two key pairs, 2 (n - 1) key agreements, and masks
    of n m 64-bit words; it sends m words and O(n) shares, and loads its rows for each question. The
    server does O(m n) work, and O(m n) more for each site that is lost between its shares and its
    masked numbers.

    Key agreement, shares and encryption of shares are those of Flower (ECDH on P-384 with HKDF,
    Shamir, Fernet). Masks are AES-256 in counter mode by the library cryptography, as Flower's own
    generator of masks reduces every key to 32 bits, which can be tried out. Keys are new for each
    sum, and the masks depend on the question and on the keys of all sites, so that they cancel only
    where all were asked the same.

    References
    ----------
    .. [1] K. Bonawitz, V. Ivanov, B. Kreuter, A. Marcedone, H. B. McMahan, S. Patel, D. Ramage,
       A. Segal, K. Seth, "Practical secure aggregation for privacy-preserving machine learning",
       CCS 2017.

    Examples
    --------
    >>> from fedpca_sklearn.engines.flower import SecureAggregation
    >>> SecureAggregation(threshold=2)
    SecureAggregation(threshold=2, bits=50, scale=None, restarts=2, identity=None)
    """

    threshold: int = 3
    bits: int = DEFAULT_BITS
    scale: float | None = None
    restarts: int = BEGINNINGS - 1
    identity: Callable[[Any], tuple[bytes, Sequence[bytes]]] | None = None

    def __post_init__(self) -> None:
        check_integer("threshold", self.threshold, 2, 2**31 - 1)
        check_integer("bits", self.bits, FEWEST_BITS, MOST_BITS)
        check_integer("restarts", self.restarts, 0, BEGINNINGS - 1)
        if self.identity is not None and not callable(self.identity):
            raise ValueError(f"identity must be callable or None, got {self.identity!r}.")
        if self.scale is None:
            return
        if not isinstance(self.scale, Real) or not 0 < self.scale <= 2.0**LARGEST:
            raise ValueError(f"scale must be None or in (0, 2^{LARGEST}], got {self.scale!r}.")

    def needed(self, n_sites: int) -> int:
        """Return how many of the sites that begin a sum have to come to its end.

        At least ``threshold``, and so many that m, the sites that may be lost, has m (m + 1) <
        n_sites: 1 of 3 to 6, 2 of 7 to 12, 3 of 13 to 20.

        Parameters
        ----------
        n_sites : int
            Sites that begin it.

        Returns
        -------
        needed : int
            With genuine keys, a server that tells each site another set of lost ones learns one
            sum, of at least so many sites: a site gives shares of the keys of at most m, and a key
            takes n - m shares, so that fewer than m + 1 keys are found. The masks that the others
            share stay unknown, and cancel in the sum of all of them only.

        Examples
        --------
        >>> from fedpca_sklearn.engines.flower import SecureAggregation
        >>> [SecureAggregation(threshold=2).needed(n) for n in (2, 3, 6, 10, 100)]
        [2, 2, 5, 8, 91]
        """
        lost = (math.isqrt(4 * n_sites - 3) - 1) // 2
        return max(self.threshold, n_sites - lost)
