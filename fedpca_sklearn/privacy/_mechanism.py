"""Base of the mechanisms: the budget, its split, and the cost of releases."""

from __future__ import annotations

import math
import secrets
import warnings
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from .._validation.checks import (
    InstanceOf,
    Interval,
    Strategy,
    allowed,
    check_rows,
    float_array,
    with_parameters,
)
from ._gaussian import DiscreteGaussian, epsilon_of, mu_of
from ._ledger import PrivacyLedger, PrivacySpent
from ._private_searches import PrivateCenter, PrivateNorm
from ._rows import ClippedRows, row_norms
from ._two_releases import FIRST, Shape, norm_that_turns_little

# Words of 32 bits in the seed of a client.
_WORDS = 4


class PrivacyLeakWarning(UserWarning):
    """Something that a mechanism needs to know in advance was taken from the data."""


class Costs(NamedTuple):
    """Cost, as mu^2, of one second moment or product with it, and of the mean, by Gaussian noise.

    A mechanism that draws other noise of these sizes states the cost of that itself.
    """

    product: float
    mean: float | None  # None: no release, the mean is fixed
    searches: float = 0.0  # of a private norm and centre

    @property
    def product_std(self) -> float:
        """Size of the noise on a second moment of rows of norm 1."""
        return math.sqrt(2 / self.product)

    @property
    def mean_std(self) -> float:
        """Size of the noise on a sum of rows of norm 1, if one is released."""
        assert self.mean is not None
        return 2 / math.sqrt(self.mean)


def gaussian_cost(sensitivity: float, std: float) -> float:
    """Privacy cost of Gaussian noise, as mu^2.

    Parameters
    ----------
    sensitivity : float
        By how much a replaced row moves what the noise is added to, at most, in the Euclidean norm.
    std : float
        Standard deviation of the noise.

    Returns
    -------
    mu2 : float
        Infinite without noise.

    Examples
    --------
    >>> from fedpca_sklearn.privacy import gaussian_cost
    >>> gaussian_cost(2.0, 8.0)
    0.0625
    """
    return (sensitivity / std) ** 2 if std else math.inf


def seeds_of(random_state: Any) -> tuple[int, ...]:
    """Seed that no one can guess by trying, from the operating system if none is given."""
    if random_state is None:
        return (secrets.randbits(32 * _WORDS),)
    rng = check_random_state(random_state)
    return tuple(rng.randint(2**32, size=_WORDS, dtype=np.uint32).tolist())


@dataclass(frozen=True)
class Terms:
    """Bounds of the rows, and the noise that a client adds.

    With y = x - center and |y| <= R, replacing a row changes the second moment sum y y^T by a D =
    y y^T - z z^T of Frobenius norm at most sqrt(2) R^2, for |D|^2 = |y|^4 + |z|^4 - 2 (y.z)^2, and
    the sum of y by at most 2 R.
    """

    row_norm: float
    center: np.ndarray | None
    costs: Costs
    n_shares: int = 1  # clients whose noise adds up to what is needed
    shape: Shape | None = None  # that an earlier release has told

    def clipped(self, X: Any) -> ClippedRows:
        """Rows as a mechanism may use them."""
        shape = None if self.shape is None else self.shape.matrix
        return ClippedRows.of(X, self.center, self.row_norm, shape)

    @cached_property
    def product_std(self) -> float:
        """Scale of the noise of a client on a second moment, or on a product with it."""
        return self.costs.product_std / math.sqrt(self.n_shares) * self.row_norm**2

    @cached_property
    def mean_std(self) -> float:
        """Scale of the noise of a client on each feature of the sum of its rows."""
        return self.costs.mean_std / math.sqrt(self.n_shares) * self.row_norm

    def origin(self, d: int) -> np.ndarray:
        """The public centre."""
        return np.zeros(d) if self.center is None else self.center

    def within(self, mean: np.ndarray) -> np.ndarray:
        """Noisy mean, shortened to within R of the centre, where the mean of clipped rows is."""
        return mean * min(1.0, self.row_norm / (float(np.linalg.norm(mean)) or 1.0))


# What ``noise`` may be, of mechanisms that have it.
NOISE = InstanceOf(DiscreteGaussian, "privacy.DiscreteGaussian"), None


@with_parameters
class Mechanism(Strategy):
    """Base of the mechanisms: parameters that all have, and the split of the budget.

    `FederatedPCA` takes a subclass of `SecondMomentMechanism`, `FederatedPowerPCA` one of
    `FedPowerNoise`; this is what the two have in common. A class that draws noise writes what that
    noise costs, ``_noise_cost(std, n_features, n_shares)`` for second moments and products and
    ``_sum_cost(std, n_features, n_shares)`` for sums of rows: sizes and numbers in, mu^2, a float,
    out. A class that overrides a method that draws noise, and not the one that states its cost, is
    refused when it is defined.

    Parameters
    ----------
    epsilon : float
        Above 0; budget of each client.
    delta : float
        Between 0 and 1.
    row_norm : float, "private", PrivateNorm or "data"
        Bound on the norms of the rows about ``center``.
    center : float, array-like of shape (n_features,), "private", PrivateCenter or None, \
            default=None
        Point about which rows are clipped.
    mean : {"private", "fixed"}, default="private"
        Whether the mean is released, or is ``center``.
    mean_share : float or None, default=None
        Share of the budget for the mean.
    trust : {"client", "sum"}, default="client"
        Whether each client's message is private, or their sum.
    ledger : PrivacyLedger or None, default=None
        Where all releases are counted.
    """

    # size of the noise off the diagonal of a second moment, over that on it
    _OFF_DIAGONAL = 1.0

    # whether the noise is symmetric, so that eigenvalues are about zero and no singular values
    _SYMMETRIC = True

    # whether a release with a private norm is made twice, see `Shape`
    _TWICE = False

    # releases that the budget is split over
    n_releases = 1

    epsilon: float = allowed(Interval(Real, 1e-6, None, closed="both"))
    delta: float = allowed(Interval(Real, 0, 1, closed="neither"))
    row_norm: float | str = allowed(
        Interval(Real, 1e-60, 1e60, closed="both"),
        StrOptions({"data", "private"}),
        InstanceOf(PrivateNorm, "privacy.PrivateNorm"),
    )
    _: KW_ONLY
    center: Any = allowed(
        StrOptions({"private"}),
        InstanceOf(PrivateCenter, "privacy.PrivateCenter"),
        "array-like",
        Real,
        None,
        default=None,
    )
    mean: str = allowed(StrOptions({"private", "fixed"}), default="private")
    mean_share: float | None = allowed(Interval(Real, 0, 1, closed="neither"), None, default=None)
    trust: str = allowed(StrOptions({"client", "sum"}), default="client")
    ledger: Any = allowed(InstanceOf(PrivacyLedger), None, default=None)
    noise: DiscreteGaussian | None = field(default=None, init=False)  # or a parameter

    # methods that draw noise, with those that say what it costs
    _STATED_BY = {
        "noisy_sum": "_sum_cost",
        "_noisy": "_sum_cost",
        "noisy_columns": "_noise_cost",
        "noisy_product": "_noise_cost",
        "noisy_variances": "_noise_cost",
        "_noise": "_noise_cost",
    }

    def __init_subclass__(cls, **options: Any):
        """Refuse a class that draws noise and inherits the statement of its cost."""
        super().__init_subclass__(**options)
        if "_noise_cost" in vars(cls) and "_TWICE" not in vars(cls):
            cls._TWICE = False  # nothing is known of what two releases cost
        for drawn, stated in cls._STATED_BY.items():
            owners = [kind for kind in cls.__mro__ if {drawn, stated} & set(vars(kind))]
            if owners and stated not in vars(owners[0]):
                raise TypeError(
                    f"{owners[0].__name__} must define {stated}, because it defines {drawn}: a "
                    "class that draws noise says what that noise costs."
                )

    def validate(self) -> None:
        """Raise a ValueError that names a wrong parameter; estimators call it before they start."""
        self._validate_params()
        if self.trust == "sum":
            self.refuse_searches("trust='sum' has one norm and centre for all")

    @property
    def searches(self) -> dict[str, PrivateCenter | PrivateNorm]:
        """What is found privately before the release, by the name of its parameter, in order."""
        found: dict[str, PrivateCenter | PrivateNorm] = {}
        for name, kind in (("center", PrivateCenter), ("row_norm", PrivateNorm)):
            value = getattr(self, name)
            if isinstance(value, kind):
                found[name] = value
            elif isinstance(value, str) and value == "private":
                found[name] = kind()
        return found

    def refuse_searches(self, why: str) -> None:
        """Raise if a norm or a centre is to be found privately.

        Parameters
        ----------
        why : str
            Begin of the sentence that says why it cannot be.
        """
        for name in self.searches:
            raise ValueError(
                f"{why}: {name} must be known in advance, got {name}={getattr(self, name)!r}."
            )

    def _searches_of(self, n: float, d: int) -> float:
        """What the searches of one release of n rows cost at most, as mu^2."""
        budget = self.budget() / self.n_releases
        return sum((search.cost(n, d, budget) for search in self.searches.values()), 0.0)

    @property
    def _share_of_mean(self) -> float:
        """Share of what searches leave for the mean; about a centre that was found it is small."""
        if self.mean != "private":
            return 0.0
        if self.mean_share is None:
            return 0.08 if "center" in self.searches else 0.2
        return self.mean_share

    def budget(self) -> float:
        """mu^2 of the whole budget.

        Returns
        -------
        mu2 : float
            The square of ``mu_of(epsilon, delta)``; infinite for an infinite epsilon.
        """
        return mu_of(float(self.epsilon), float(self.delta)) ** 2

    def _product_budget(self, n_features: int) -> float:
        """mu^2 that the noise would cost if the second moment had the whole budget."""
        return self.budget()

    def costs(
        self, n_features: int, n_products: int, fraction: float = 1.0, searches: float | None = None
    ) -> Costs:
        """What the releases of a fraction of the budget cost, one mean and some products.

        Parameters
        ----------
        n_features : int
            Number of columns of the rows.
        n_products : int
            Releases of the second moment or of a product with it, which share their part evenly.
        fraction : float, default=1.0
            Part of the budget, of mu^2, that all these releases may cost together.
        searches : float, default=None
            mu^2 of the private searches. None: their whole shares.

        Returns
        -------
        costs : Costs
            mu^2 of one product and, unless the mean is fixed, of the mean.
        """
        share, budget = self._share_of_mean, self.budget() * fraction
        if searches is None:
            searches = sum((search.share * budget for search in self.searches.values()), 0.0)
        if math.isfinite(budget):
            fraction *= 1 - searches / budget
        product = self._product_budget(n_features) * fraction * (1 - share) / n_products
        mean = self.budget() * fraction * share if share else None
        if self.noise is not None:
            product = self.noise.gaussian_part(product, n_features**2 + 1)
            mean = mean and self.noise.gaussian_part(mean, n_features)
        return Costs(product, mean, searches)

    def _sum_std(self, mu2: float, n_features: int) -> float:
        """Noise on a sum of rows of norm 1 that costs some mu^2."""
        if self.noise is not None:
            mu2 = self.noise.gaussian_part(mu2, n_features)
        return Costs(math.inf, mu2).mean_std

    def cost(self, costs: Costs, n_features: int, n_products: int = 1, n_shares: int = 1) -> float:
        """mu^2 of a mean and some products with noise; infinite for a bound from the data.

        ``n_shares`` clients add shares of the noise, if ``trust`` is "sum".

        Parameters
        ----------
        costs : Costs
            mu^2 of one product and of the mean, as `costs` returns them.
        n_features : int
            Number of columns of the rows.
        n_products : int, default=1
            Releases of the second moment or of a product with it.
        n_shares : int, default=1
            Clients whose noise adds up; used with ``trust="sum"`` only.

        Returns
        -------
        mu2 : float
            What the client's account is charged; infinite with ``row_norm="data"``.
        """
        if self.row_norm == "data":
            return math.inf
        n_shares = n_shares if self.trust == "sum" else 1
        mu2 = 0.0
        if n_products:
            mu2 = n_products * self._noise_cost(costs.product_std, n_features, n_shares)
        if costs.mean is not None:
            mu2 += self._sum_cost(costs.mean_std, n_features, n_shares)
        if not mu2 >= 0:  # NaN would spend nothing
            raise ValueError(f"{type(self).__name__}: noise must cost 0 or more, got {mu2!r}.")
        return mu2 + costs.searches

    def itemised(self, mu2: float) -> list[tuple[str | None, float]]:
        """Lines of a ledger for one release: its searches by name, and None for the others.

        A search has a line of its share; the others spend what it leaves, and the sum holds.

        Parameters
        ----------
        mu2 : float
            What the release costs, searches included.

        Returns
        -------
        lines : list of tuple (name, mu2)
            Their costs add up to ``mu2``.
        """
        budget, searches = self.budget() / self.n_releases, self.searches.items()
        lines = [(name, one.share * budget) for name, one in searches if math.isfinite(mu2)]
        return [*lines, (None, mu2 - sum(cost for _, cost in lines))]

    def _noisy(self, values: np.ndarray, std: float, rng: np.random.Generator) -> np.ndarray:
        """Values with independent noise of a standard deviation."""
        if self.noise is not None:
            return self.noise.noisy(values, std, rng)
        return values + std * rng.standard_normal(values.shape)

    def _gaussian_cost(
        self, sensitivity: float, std: float, n_entries: int, n_shares: int
    ) -> float:
        """What the noise on a message of some numbers costs, as mu^2."""
        if self.noise is not None:
            return self.noise.cost(sensitivity, std, n_entries, n_shares)
        return gaussian_cost(sensitivity, std)

    @abstractmethod
    def _noise_cost(self, std: float, n_features: int, n_shares: int) -> float:
        """What the noise on a second moment costs, or on a product of a basis with it.

        Parameters
        ----------
        std : float
            Size of the noise where rows have norm 1, which is the sum of ``n_shares`` of size ``std
            / sqrt(n_shares)``.
        n_features : int
            Number of features.
        n_shares : int
            Clients whose noise adds up.

        Returns
        -------
        mu2 : float
            mu^2 of the Gaussian that is no easier to see through, see `gaussian_cost`, where one
            row is replaced; ``math.inf`` where nothing is proven.
        """

    def noisy_sum(self, rows: ClippedRows, terms: Terms, rng: np.random.Generator) -> np.ndarray:
        """A client's sum of y, with its noise.

        Parameters
        ----------
        rows : ClippedRows
            Rows of the client, less the public centre and clipped.
        terms : Terms
            Bound of the rows, and the scale of the noise.
        rng : Generator
            Random numbers of the noise.

        Returns
        -------
        noisy : ndarray of shape (d,)
            The sum with noise of the scale ``terms.mean_std`` on each feature.
        """
        return self._noisy(rows.sum(), terms.mean_std, rng)

    def _sum_cost(self, std: float, n_features: int, n_shares: int) -> float:
        """What the noise on a sum of rows costs.

        Parameters
        ----------
        std : float
            Size of the noise where rows have norm 1, in ``n_shares`` as in `_noise_cost`.
        n_features : int
            Number of features.
        n_shares : int
            Clients whose noise adds up.

        Returns
        -------
        mu2 : float
            As `_noise_cost` returns it.
        """
        return self._gaussian_cost(2, std, n_features, n_shares)

    def terms(self, X: Any, costs: Costs, n_shares: int = 1) -> Terms:
        """Bounds and noise for rows; looks at them only with ``row_norm="data"``.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows of the client.
        costs : Costs
            mu^2 of one product and of the mean, as `costs` returns them.
        n_shares : int, default=1
            Clients whose noise adds up; used with ``trust="sum"`` only.

        Returns
        -------
        terms : Terms
            Bound of the rows, public centre, and the scale of the noise.
        """
        d, searches = X.shape[1], self.searches
        center = None if "center" in searches else self._center_of(d)
        row_norm = math.nan if "row_norm" in searches else self.row_norm
        if self.row_norm == "data":
            warnings.warn(
                "row_norm='data' takes the largest norm of the rows, which depends on one of them: "
                "the result is not differentially private. Give a number known in advance.",
                PrivacyLeakWarning,
                stacklevel=2,
            )
            row_norm = row_norms(check_rows(X), center).max() or 1.0
        return Terms(float(row_norm), center, costs, n_shares if self.trust == "sum" else 1)

    def searched(self, X: Any, terms: Terms, rng: np.random.Generator) -> Terms:
        """Terms with the norm and the centre that are found privately, and what is left for noise.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Finite rows of the client, whose account has been charged.
        terms : Terms
            As `terms` returns them.
        rng : Generator
            Random bits of the searches.

        Returns
        -------
        terms : Terms
            With both.
        """
        fraction, spent = 1 / self.n_releases, 0.0
        budget = self.budget() * fraction
        of_center, search = (self.searches.get(name) for name in ("center", "row_norm"))
        if isinstance(of_center, PrivateCenter):
            center, spent = of_center.found(X, self, budget, rng)
            terms = replace(terms, center=center)
        if isinstance(search, PrivateNorm):
            norms = row_norms(X, terms.center)
            row_norm, of_norm = search.found(norms, X.shape[1], budget, rng, not self._shaped)
            terms, spent = replace(terms, row_norm=row_norm), spent + of_norm
        terms = replace(terms, costs=self.costs(X.shape[1], 1, fraction, spent))
        if not self._shaped:
            return terms
        terms = self._second_look(terms.clipped(X), terms, rng)
        row_norm, cost = norm_that_turns_little(terms.clipped(X), terms, self, rng)
        assert terms.shape is not None
        shape = replace(terms.shape, counts=row_norm == terms.row_norm)
        costs = terms.costs._replace(product=terms.costs.product - cost)
        return replace(terms, row_norm=row_norm, costs=costs, shape=shape)

    @property
    def _shaped(self) -> bool:
        """Whether the second moment is released twice, then in the shape of the first release."""
        return self._TWICE and "row_norm" in self.searches and math.isfinite(self.budget())

    def _second_look(self, rows: Any, terms: Terms, rng: np.random.Generator) -> Terms:
        """Terms with what a first release of clipped rows tells, and what it leaves to spend."""
        d = rows.n_features
        first, second = self._two_products(terms.costs, d)
        terms = replace(terms, costs=first)
        M = self.noisy_columns(rows, slice(0, d), terms, rng)
        shape = Shape.of(M, self._OFF_DIAGONAL * terms.product_std)
        return replace(terms, costs=second, shape=shape)

    def norm_of_noise(self, terms: Terms, n: int, d: int) -> float:
        """Norm of rows of which one release in no shape would have noise of the same edge.

        Parameters
        ----------
        terms : Terms
            As `searched` returns them.
        n : int
            Number of rows.
        d : int
            Number of columns.

        Returns
        -------
        row_norm : float
            The norm that was found, if the rows were released in no shape.
        """
        if terms.shape is None:
            return terms.row_norm
        costs = self.costs(d, 1, 1 / self.n_releases, self._searches_of(n, d))
        noise = terms.shape.noise(self._OFF_DIAGONAL * terms.product_std)
        return math.sqrt(noise / (self._OFF_DIAGONAL * costs.product_std))

    def _two_products(self, costs: Costs, n_features: int) -> tuple[Costs, Costs]:
        """Costs of the first and the second of two releases that share the cost of one."""
        parts = [FIRST * costs.product, (1 - FIRST) * costs.product]
        if self.noise is not None:  # as much for rounding once more
            parts = [self.noise.gaussian_part(part, n_features**2 + 1) for part in parts]
        first, second = (costs._replace(product=part) for part in parts)
        return first, second

    def _center_of(self, d: int) -> np.ndarray | None:
        """The public point as an array; a number stands for all features."""
        if self.center is None:
            return None
        center = np.full(d, self.center) if isinstance(self.center, Real) else self.center
        center = float_array("center", center, 1, np.float64)
        if len(center) != d:
            raise ValueError(f"center must have shape ({d},), got {center.shape}.")
        return center

    def spent(self, mu2: float) -> PrivacySpent:
        """(epsilon, delta) of releases with a total mu^2.

        Parameters
        ----------
        mu2 : float
            Sum of mu^2 over releases.

        Returns
        -------
        spent : PrivacySpent
            The least epsilon at the mechanism's delta, and this delta.
        """
        return PrivacySpent(epsilon_of(math.sqrt(mu2), float(self.delta)), float(self.delta))
