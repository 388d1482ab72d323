"""Rank rules: strategies that adapt the number of components to a stream's spectrum."""

from __future__ import annotations

from abc import abstractmethod
from numbers import Integral, Real

import numpy as np
from sklearn.utils._param_validation import StrOptions

from ._kernels import linalg
from ._validation.checks import Interval, Strategy, allowed, is_integer, with_parameters
from .summary import Subspace

# Square of what an axis must have outside a span to be a direction of its own. It is a difference
# from 1, known to 1e-16; of d axes the largest has at least 1 / d for each missing direction.
_OUTSIDE = 1e-8
_SHARE = Interval(Real, 0, 1, closed="both")


class RankRule(Strategy):
    """Base of the rank rules: a step up or down after a block, then a pause.

    A subclass writes ``step(rank, subspace)``, which gets the rank, an integer, and the summary
    after a block, and returns by how much the rank is to grow, an integer. It has a parameter
    ``hold_off``, the number of blocks for which the rank stays after a change, and at the start.
    """

    hold_off: int

    _parameter_constraints: dict = {"hold_off": [Interval(Integral, 0, None, closed="left")]}

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
            Blocks for which ``rank`` has already been kept, since the start or the last change,
            this one not included.
        n_rows : int
            Rows seen so far.

        Returns
        -------
        rank : int
            At least 1, at most as many as `most_directions` says; stays while fewer rows were seen
            than ``rank`` directions need, which is one more where rows are centred.

        Raises
        ------
        TypeError
            If the step is not an integer.
        """
        if blocks_since_change < self.hold_off or n_rows < rank + subspace.centered:
            return rank
        step = self.step(rank, subspace)
        if not is_integer(step):
            raise TypeError(f"{type(self).__name__}.step must return an integer, got {step!r}.")
        return max(1, min(rank + int(step), max(rank, self.most_directions(subspace))))

    def most_directions(self, subspace: Subspace) -> int:
        """Return the largest rank that is possible after a block.

        Parameters
        ----------
        subspace : Subspace
            The summary after the block.

        Returns
        -------
        n_directions : int
            Here those that the summary holds.
        """
        return subspace.n_components

    def grown(self, rank: int, subspace: Subspace) -> Subspace:
        """Return the summary with which the stream goes on where its rank has grown.

        Parameters
        ----------
        rank : int
            The rank before it grew.
        subspace : Subspace
            The summary after the block.

        Returns
        -------
        subspace : Subspace
            Here the same: the new components are the next directions of the block.
        """
        return subspace


class _Bounds(RankRule):
    """A rule with two bounds on a share."""

    lower: float
    upper: float

    def validate(self) -> None:
        """Check each parameter, and that ``lower < upper``; see `RankRule.validate`."""
        super().validate()
        if not self.lower < self.upper:
            raise ValueError(
                f"{type(self).__name__} needs lower < upper, got lower={self.lower!r} and "
                f"upper={self.upper!r}."
            )


@with_parameters
class ContributionBounds(_Bounds):
    """Keep the last component's share of the singular values between two bounds (SAPCA).

    With the share ``E_r = sigma_r / (sigma_1 + ... + sigma_r)``, the rank grows by one after a
    block with ``E_r > upper`` and shrinks by one after a block with ``E_r < lower``
    ([1]_, eq. 6).

    Parameters
    ----------
    lower, upper : float in [0, 1], default=0.01 and 0.1
        Bounds of the last component's share E_r, alpha and beta of [1]_; ``lower`` is less than
        ``upper``.
    hold_off : int, default=0
        Blocks for which the rank stays after a change, and at the start.
    growth : {"next", "canonical"}, default="next"
        The component that a growing rank adds. "next": the next direction of the block, with its
        singular value; where the rows span no further direction the rank stays. "canonical": as in
        Algorithm 3 of [1]_ the coordinate axis of the new rank, with singular value 0, so that
        what the block has along the next direction is lost; the rank can grow up to the number of
        features.

    Notes
    -----
    [1]_ prints the axis e_r as it is, which leaves the basis not orthonormal. Here it is made
    orthogonal to the other components, and the next axis is taken if it lies in their span. As its
    weight is 0, which vector it is makes no difference to later blocks. With ``oversampling=0``,
    ``center=False`` and a first block of at least as many rows as the rank, `StreamingPCA` with
    "canonical" is Algorithm 3. [1]_ does not say whether a hold-off begins at the start.

    References
    ----------
    .. [1] A. Grammenos, R. Mendoza-Smith, C. Mascolo, J. Crowcroft, "Federated PCA with adaptive
       rank estimation", arXiv:1907.08059v1, 2019.

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

    lower: float = allowed(_SHARE, default=0.01)
    upper: float = allowed(_SHARE, default=0.1)
    hold_off: int = 0
    growth: str = allowed(StrOptions({"next", "canonical"}), default="next")

    def most_directions(self, subspace: Subspace) -> int:
        """Return the directions of the summary, or with canonical vectors all that there are."""
        return subspace.n_features if self.growth == "canonical" else subspace.n_components

    def grown(self, rank: int, subspace: Subspace) -> Subspace:
        """Return the summary, or with canonical vectors that of ``rank`` directions and an axis."""
        return subspace if self.growth == "next" else _with_axis(subspace.truncate(rank))

    def step(self, rank: int, subspace: Subspace) -> int:
        """Compare the share of the last component with the bounds; see `RankRule.step`."""
        s = subspace.singular_values[:rank]
        total = float(s.sum())
        share = float(s[rank - 1]) / total if len(s) == rank and total > 0 else 0.0
        return int(share > self.upper) - int(share < self.lower)


@with_parameters
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
        Blocks for which the rank stays after a change, and at the start.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import EnergyBounds, StreamingPCA
    >>> pca = StreamingPCA(5, rank_rule=EnergyBounds(0.8, 0.9), block_size=50)
    >>> pca.fit(load_digits().data).n_components_
    13
    """

    lower: float = allowed(_SHARE, default=0.95)
    upper: float = allowed(_SHARE, default=0.98)
    hold_off: int = 0

    def step(self, rank: int, subspace: Subspace) -> int:
        """Compare the explained share with the bounds; see `RankRule.step`."""
        energy = subspace.singular_values[:rank] ** 2
        kept = float(energy.sum())
        without_last = float(energy[: rank - 1].sum())
        return int(kept < self.lower * subspace.scatter) - int(
            rank > 1 and without_last > self.upper * subspace.scatter
        )


def _with_axis(subspace: Subspace) -> Subspace:
    """The same summary with one direction more, of weight zero: the coordinate axis in its turn."""
    V = subspace.components.astype(np.float64)
    outside = 1 - np.einsum("ij,ij->j", V, V)  # squares of what the axes have outside the span
    turn = np.roll(np.arange(subspace.n_features), -len(V))
    axis = turn[np.argmax(outside[turn] > _OUTSIDE)]
    new = linalg.orthonormalised(np.concatenate([V, np.eye(1, len(turn), axis)]))[-1:]
    components = np.concatenate([V, linalg.flip_signs(new)]).astype(subspace.components.dtype)
    return subspace._replace(
        components=components, singular_values=np.append(subspace.singular_values, 0.0)
    )
