"""Rank rules: strategies that adapt the number of components to a stream's spectrum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from numbers import Integral, Real

from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval

from .summary import Subspace


class RankRule(BaseEstimator, ABC):
    """Base of the rank rules: a step up or down after a block, then a pause.

    A subclass writes ``step(rank, subspace)``, which gets the rank, an integer, and the summary
    after a block, and returns by how much the rank is to grow, an integer. It has a parameter
    ``hold_off``, the number of blocks for which the rank stays after a change.
    """

    hold_off: int

    _parameter_constraints: dict = {
        "hold_off": [Interval(Integral, 0, None, closed="left")],
    }

    @abstractmethod
    def step(self, rank: int, subspace: Subspace) -> int:
        """Return by how much the rank is to grow; negative, to shrink.

        Parameters
        ----------
        rank : int
            Number of components with which the block was absorbed.
        subspace : Subspace
            The summary after the block, with at least ``rank + 1`` directions if there are as many.

        Returns
        -------
        step : int
            Number of components to add; negative: to remove.
        """

    def next_rank(
        self, rank: int, subspace: Subspace, blocks_since_change: int, n_rows: int
    ) -> int:
        """Return the rank after a block.

        Parameters
        ----------
        rank : int
            Number of components with which the block was absorbed.
        subspace : Subspace
            The summary after the block.
        blocks_since_change : int
            Blocks for which ``rank`` has already been kept, this one not included.
        n_rows : int
            Rows seen so far.

        Returns
        -------
        rank : int
            At least 1; grows only into directions that the summary holds, and stays while at most
            ``rank`` rows were seen.

        Raises
        ------
        TypeError
            If the step is not an integer.
        """
        if blocks_since_change < self.hold_off or n_rows <= rank:
            return rank
        step = self.step(rank, subspace)
        if not isinstance(step, Integral):
            raise TypeError(f"{type(self).__name__}.step must return an integer, got {step!r}.")
        wanted = rank + int(step)
        return max(1, min(wanted, max(rank, subspace.n_components)))

    def validate(self) -> None:
        """Raise a ValueError that names a wrong parameter; estimators call it before they start."""
        self._validate_params()


class _Bounds(RankRule):
    """A rule with two bounds on a share."""

    _parameter_constraints: dict = {
        **RankRule._parameter_constraints,
        "lower": [Interval(Real, 0, 1, closed="both")],
        "upper": [Interval(Real, 0, 1, closed="both")],
    }

    def validate(self) -> None:
        """Check each parameter, and that ``lower < upper``; see `RankRule.validate`."""
        super().validate()
        if not self.lower < self.upper:
            raise ValueError(
                f"{type(self).__name__} needs lower < upper, got lower={self.lower!r} and "
                f"upper={self.upper!r}."
            )


class ContributionBounds(_Bounds):
    """Keep the last component's share of the singular values between two bounds (SAPCA).

    With the share ``E_r = sigma_r / (sigma_1 + ... + sigma_r)``, the rank grows by one after a
    block with ``E_r > upper`` and shrinks by one after a block with ``E_r < lower``
    (Grammenos et al. 2020, eq. 6).

    Parameters
    ----------
    lower, upper : float in [0, 1], default=0.01 and 0.1
        Bounds of the last component's share E_r; ``lower`` is less than ``upper``.
    hold_off : int, default=0
        Blocks for which the rank stays after a change.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import ContributionBounds, StreamingPCA
    >>> rule = ContributionBounds(lower=0.03, upper=0.06)
    >>> pca = StreamingPCA(3, rank_rule=rule, block_size=100).fit(load_digits().data)
    >>> pca.n_components_
    11
    >>> print(*pca.rank_history_)
    4 5 6 7 8 9 10 11 11 11 11 11 11 11 11 11 11 11
    """

    def __init__(self, lower: float = 0.01, upper: float = 0.1, hold_off: int = 0):
        self.lower = lower
        self.upper = upper
        self.hold_off = hold_off

    def step(self, rank: int, subspace: Subspace) -> int:
        """Compare the share of the last component with the bounds; see `RankRule.step`."""
        s = subspace.singular_values[:rank]
        total = float(s.sum())
        share = float(s[rank - 1]) / total if len(s) == rank and total > 0 else 0.0
        return int(share > self.upper) - int(share < self.lower)


class EnergyBounds(_Bounds):
    """Keep the energy of the components between two shares of the total (SPIRIT).

    The rank grows by one after a block in which the components explain less than ``lower`` of the
    scatter, and shrinks by one when all but the last explain more than ``upper``
    (Papadimitriou, Sun, Faloutsos 2005, section 4.3, which does not look at "all but the last" and
    so can oscillate between two ranks).

    Parameters
    ----------
    lower, upper : float in [0, 1], default=0.95 and 0.98
        Bounds of the share of the scatter that components explain; ``lower`` is less than
        ``upper``.
    hold_off : int, default=0
        Blocks for which the rank stays after a change.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import EnergyBounds, StreamingPCA
    >>> pca = StreamingPCA(5, rank_rule=EnergyBounds(0.8, 0.9), block_size=50)
    >>> pca.fit(load_digits().data).n_components_
    13
    """

    def __init__(self, lower: float = 0.95, upper: float = 0.98, hold_off: int = 0):
        self.lower = lower
        self.upper = upper
        self.hold_off = hold_off

    def step(self, rank: int, subspace: Subspace) -> int:
        """Compare the explained share with the bounds; see `RankRule.step`."""
        energy = subspace.singular_values[:rank] ** 2
        kept = float(energy.sum())
        without_last = float(energy[: rank - 1].sum())
        return int(kept < self.lower * subspace.scatter) - int(
            rank > 1 and without_last > self.upper * subspace.scatter
        )
