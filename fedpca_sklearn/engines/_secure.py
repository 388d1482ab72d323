"""What sites and server agree on before secure sums."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from .._validation.checks import check_integer
from ..communication import _channel as channel
from ._messages import Answer, too_large
from ._questions import RESTARTS, RefusedError, Task


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
    of n m 64-bit words; it sends m words and O(n) shares, and loads its rows once. The
    server does O(m n) work, and O(m n) more for each site that is lost between its shares and its
    masked numbers.

    Shares of secrets are Shamir's, modulo the prime 2^521 - 1: those of Flower, in a field of 2^128
    elements, are computed bit by bit. Keys are agreed on by ECDH on P-384 with HKDF,
    shares are encrypted by AES-256-GCM, and masks are AES-256 in counter mode, as Flower's own
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
    bits: int = channel.DEFAULT_BITS
    scale: float | None = None
    restarts: int = RESTARTS
    identity: Callable[[Any], tuple[bytes, Sequence[bytes]]] | None = None

    def __post_init__(self) -> None:
        for name, *range_ in (
            ("threshold", 2, 2**31 - 1),
            ("bits", channel.FEWEST_BITS, channel.MOST_BITS),
            ("restarts", 0, RESTARTS),
        ):  # integers of Python, as messages and files take them
            object.__setattr__(self, name, check_integer(name, getattr(self, name), *range_))
        if self.identity is not None and not callable(self.identity):
            raise ValueError(f"identity must be callable or None, got {self.identity!r}.")
        scale = self.scale
        if not (scale is None or (isinstance(scale, Real) and 0 < scale <= 2.0**channel.LARGEST)):
            raise ValueError(f"scale must be None or in (0, 2^{channel.LARGEST}], got {scale!r}.")

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


# Kinds of the questions of a sum, beside the one for the masked numbers.
KEYS, SHARES, UNMASK = "secure_keys", "secure_shares", "secure_unmask"
# Name of the array that announces bounds.
BOUNDS = "bounds"
# Most words of 64 bits for a number whose bound is far above what it is as a rule.
_MOST_WORDS = 3
# Bits by which a scatter between sites may exceed that within them, to which sums are precise.
_WIDEST = 40
_RING = 2.0**64
# Stands for NaN, and what no word holds: a few times this is not small modulo 2^64, and is seen.
_NO_NUMBER = (math.sqrt(5) - 1) / 2 * _RING
# Bits of the random number that hides what the first of several words says.
_HIDING = 12


class Bounds(NamedTuple):
    """Exponents of powers of two that bound number, mean and scatter of rows.

    Parameters
    ----------
    rows : int
        Of the number or weight of the rows.
    n_features : int
        The number of columns itself.
    mean : ndarray of int, shape (1,) or (d,)
        Of the norm of the mean, or of its entries.
    scatter : ndarray of int, shape (1,) or (d,)
        Of the scatter about the mean, or of that of each column.
    """

    rows: int
    n_features: int
    mean: np.ndarray
    scatter: np.ndarray

    @property
    def vector(self) -> np.ndarray:
        """As they are announced."""
        return np.array([self.rows, self.n_features, *self.mean, *self.scatter], "<f8")

    @classmethod
    def read(cls, announced: np.ndarray | bytes) -> Bounds:
        """As a site announced them; a ValueError where these are no bounds."""
        vector = np.frombuffer(announced, "<f8")
        whole, fits = np.rint(vector), len(vector) >= 4 and not len(vector) % 2
        if not fits or (whole != vector).any() or not 1 <= vector[1] < 2**31:
            raise ValueError("bounds must be whole numbers: of rows, columns, mean and scatter")
        exponents = np.delete(vector, 1)
        if exponents.min() < channel.LEAST or exponents.max() > channel.LARGEST:
            raise ValueError(f"bounds must be exponents from {channel.LEAST} to {channel.LARGEST}")
        count, d, *rest = whole.astype(np.int64).tolist()
        mean, scatter = np.split(np.array(rest), 2)
        if len(mean) not in (1, d):
            raise ValueError(f"bounds must be of {d} columns, or of all together")
        return cls(count, d, mean, scatter)

    @classmethod
    def of_all(cls, announced: Iterable[bytes]) -> Bounds:
        """The largest of what all sites announced, which have the same columns."""
        counts, columns, means, scatters = zip(*map(cls.read, set(announced)), strict=True)
        if len(set(zip(columns, map(len, means), strict=True))) > 1:
            raise ValueError("bounds must be of the same columns at all sites")
        largest = map(np.maximum.reduce, (means, scatters))
        return cls(max(counts), columns[0], *largest)

    def within(self, scale: float) -> Bounds:
        """Bounds that a public scale allows, with the number of rows, in their place.

        A site whose own bounds are larger takes no part, whatever it is asked.
        """
        (e,) = channel.exponents_of(scale)
        mean, scatter = np.full_like(self.mean, -((self.rows - e) // 2)), self.scatter * 0 + e
        if self.rows > e or (self.mean > mean).any() or (self.scatter > scatter).any():
            raise RefusedError("out of range: the rows are not within the scale")
        return self._replace(mean=mean, scatter=scatter)

    def check_mean(self, mean: np.ndarray) -> None:
        """Refuse a mean that no rows within the bounds can have."""
        length = np.abs(mean) if len(self.mean) > 1 else np.array([np.linalg.norm(mean)])
        if length.shape != self.mean.shape or (length > 2 * np.ldexp(1.0, self.mean)).any():
            raise RefusedError("the mean must be within the bounds that the sites have announced")

    @property
    def about_mean(self) -> np.ndarray:
        """Exponents of number times squared distance of a site's mean from that of all."""
        return self.rows + 2 * self.mean + 4


def announced(
    count: float, d: int, mean: Any = 0.0, scatter: Any = 0.0, dtype: Any = None
) -> dict[str, np.ndarray]:
    """The bounds that a site announces: of a number of rows of d columns, a mean and a scatter.

    An error where sums of such rows would overflow in the dtype, if that is given.
    """
    if dtype is not None and too_large(mean, float(np.sum(scatter)) / count, dtype) is not None:
        raise RefusedError("values that are too large")
    n, *found = channel.exponents_of(np.hstack([count, mean, scatter]))
    return {BOUNDS: Bounds(int(n), d, *np.split(np.array(found), 2)).vector}


@dataclass(frozen=True)
class Grid:
    """How numbers become integers.

    Parameters
    ----------
    exponent : int or ndarray of int
        Power of two that bounds the absolute values.
    size : int or ndarray of int or None, default=None
        Power of two of what they are as a rule, to which they are precise; None: their bound.
    exact : bool, default=False
        Whether they are on the grid already, as noise is, and must not be rounded again.
    """

    exponent: Any
    size: Any = None
    exact: bool = False

    def wider(self, more: int) -> Grid:
        """A grid for numbers that may be larger by a power of two, and as a rule are not."""
        return Grid(self.exponent + more, self.exponent if self.size is None else self.size)

    def levels(self, bits: int, n_sites: int) -> list[tuple[Any, int]]:
        """Exponent and bits of each word, for sums over so many sites."""
        room = 62 - (n_sites - 1).bit_length()
        lost = 0 if self.size is None else max(int(np.max(self.exponent - self.size)), 0)
        if not lost or bits + lost <= room:
            return [(self.exponent, min(bits + lost, max(room, bits)))]
        gain = _gain(room - 1)
        n_words = min(1 + -(-(bits + lost - room) // gain), _MOST_WORDS)
        return [(self.exponent - i * gain, room - 1) for i in range(n_words)]

    def encode(self, numbers: Any, bits: int, n_sites: int, question: bytes) -> np.ndarray:
        """Words modulo 2^64, rounded at random by the numbers and the question.

        What exceeds the bound is neither refused nor cut, which would tell that it does: its sum
        with others is right modulo 2^64, as every sum is, while a word holds it.
        """
        values = np.asarray(numbers, dtype=np.float64)
        seed = hashlib.sha256(question + values.tobytes()).digest()
        rng, words = np.random.default_rng(np.frombuffer(seed, np.uint32)), []
        levels = self.levels(bits, n_sites)
        owed = np.uint64(0)  # what the word before has too much
        for i, (exponent, used) in enumerate(levels):
            with np.errstate(over="ignore"):
                scaled = np.ldexp(values, used - exponent)
            scaled = np.where(np.abs(scaled) < _RING, scaled, _NO_NUMBER)
            if i + 1 < len(levels):
                whole = np.rint(scaled)  # the rest is a float
                values = values - np.ldexp(whole, exponent - used)
                hiding = rng.integers(-(2**_HIDING), 2**_HIDING, values.shape).view(np.uint64)
                words.append((_modulo(whole) + hiding - owed).ravel())
                owed = hiding << np.uint64(_gain(used))
            else:
                whole = np.floor(scaled)
                whole += rng.random(values.shape) < scaled - whole
                words.append((_modulo(whole) - owed).ravel())
        return np.concatenate(words)

    def decode(
        self, words: np.ndarray, shape: tuple[int, ...], bits: int, n_sites: int
    ) -> np.ndarray:
        """The sum of numbers whose words add up to these."""
        levels, total, owed = self.levels(bits, n_sites), np.zeros(shape), np.uint64(0)
        parts = zip(np.split(words, len(levels)), levels, strict=True)
        for i, (part, (exponent, used)) in reversed([*enumerate(parts)]):
            part, owed = part + owed, np.uint64(0)
            if i:  # what is whole in the word before goes there, so that floats hold both
                half = np.uint64(1 << _gain(used) - 1)
                over = (part + half).view(np.int64) >> _gain(used)
                part, owed = part - (over << _gain(used)).view(np.uint64), over.view(np.uint64)
            total += channel.decode(part, exponent, used).reshape(shape)
        return total

    def step(self, bits: int, n_sites: int) -> Any:
        """The most by which a number of a site is rounded."""
        exponent, used = self.levels(bits, n_sites)[-1]
        return np.ldexp(1.0, exponent - used)


def _gain(used: int) -> int:
    """Bits by which the next word of a number is finer than one of so many bits."""
    return used - _HIDING - 1


def _modulo(whole: np.ndarray) -> np.ndarray:
    """Whole numbers modulo 2^64."""
    rest = np.fmod(whole, _RING)
    rest = np.where(rest >= _RING / 2, rest - _RING, rest)
    return np.where(rest < -_RING / 2, rest + _RING, rest).astype(np.int64).view(np.uint64)


Grids = Mapping[str, Grid]


def grids_of_sums(bounds: Bounds) -> Grids:
    """Grids of sums over rows and their number, and of products with an orthonormal basis.

    Products are those of the scatter matrix about a mean, for which bounds are scalar; "rest" is a
    sum about it.
    """
    own, between = bounds.scatter, bounds.about_mean
    scatter = Grid(np.maximum(own, between) + 1, np.maximum(own, between - _WIDEST))
    size = (bounds.rows + bounds.scatter) // 2
    return {
        "sum": Grid(bounds.rows + bounds.mean + 1, size),
        "rest": Grid(bounds.rows + bounds.mean + 3, size),
        **dict.fromkeys(("products", "scatter"), scatter),
        **dict.fromkeys(("count", "counts", "together"), Grid(bounds.rows)),
    }


def grids_of_second_moments(bounds: Bounds) -> Grids:
    """Grids of the upper triangle of a scatter matrix about a mean, and of a sum."""
    i, j = np.triu_indices(bounds.n_features)
    if len(bounds.mean) == 1:
        i, j = np.zeros(1, int), np.zeros(1, int)
    own = -(-(bounds.scatter[i] + bounds.scatter[j]) // 2)
    between = (bounds.about_mean[i] + bounds.about_mean[j]) // 2
    return {
        **grids_of_sums(bounds),
        "products": Grid(np.maximum(own, between) + 1, np.maximum(own, between - _WIDEST)),
    }


def grids_of(task: Task, bounds: Bounds) -> Grids:
    """Grids of what a task sends, by name."""
    if task.grids is not None:
        return task.grids(bounds)
    assert task.bound is not None
    largest = 2.0**bounds.rows, 2.0 ** float(bounds.mean[0]), 2.0 ** float(bounds.scatter[0])
    return {name: Grid(channel.exponent_of(float(b))) for name, b in task.bound(*largest).items()}


def bounds_in(answer: Answer) -> bytes:
    """What a site announces beside its answer."""
    vector = answer.array(BOUNDS, (None,))
    bounds = Bounds.read(vector)  # a ValueError leaves the site out
    answer.agree("number of features", bounds.n_features)
    answer.agree("number of bounds", len(vector))
    return vector.tobytes()
