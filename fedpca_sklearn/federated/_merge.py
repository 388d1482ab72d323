"""Merge strategies: how the summaries of clients become one."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import KW_ONLY
from functools import partial
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._base.adjusting import adjusting_of, adjusts, with_confounders
from .._kernels.too_large import largest_named
from .._validation.checks import (
    Interval,
    Strategy,
    allowed,
    check_n_components,
    is_integer,
    number_or_none,
    plain_integer,
    with_parameters,
)
from ..communication._federation import Message
from ..summary import Subspace, _merging
from ..summary._adjusted import scatter_of_columns
from ..summary._directions import MERGE_METHODS
from ..summary._metric import equilibrated, merged
from ..summary._projection_mean import factor_along
from ..summary._updating import was_truncated

# Returns what was made of the same summaries in the same way, or else makes it.
Once: TypeAlias = Callable[[tuple[Subspace, ...], Hashable, Callable[[], Subspace]], Subspace]


class MergeStrategy(Strategy):
    """Base of the merge strategies: a subclass writes ``_merge``.

    ``_merge(parts, n_components, kept)`` returns the merged `Subspace`. ``parts`` is a list of one
    summary or more, which fit together, hold rows and are in float64. ``n_components`` says how
    many directions the result should have: a number, a share, or None for all. ``kept`` says the
    same of what a strategy merges again itself, if it merges in steps.

    The base class checks parameters and summaries, leaves out summaries without rows, records the
    rounds, names the summary whose values are too large, and gives the result the column names and
    the dtype. `FederatedPCA` does not call `merge`, but `_merge` by way of the same rounds. With a
    parameter ``fan_in`` they are those of a tree, with one call of ``_merge`` at each node.

    What ``_merge`` finds of single sites it may keep, as dicts from position in ``parts`` to value,
    in attributes that end in an underscore. `FederatedPCA` lets a clone merge, and shows what the
    clone found by label of the clients, other values as they are, and of a tree nothing.
    """

    _parameter_constraints: dict = {}

    # Summaries merged at each node of a tree; None: all at once.
    fan_in: int | None = None
    # Who takes numbers of components only, and why; None: shares as well.
    _counts: str | None = None
    # Whether the merge is that of all rows alike, and judges none.
    _takes_all = False

    @property
    def compares_sites(self) -> bool:
        """Whether the result may differ from that of all rows with equal weights; here it may."""
        return True

    @property
    def _adds_up(self) -> bool:
        """Whether all summaries are merged at once as the rows they stand for."""
        return False

    def check_trust(self, trust: str) -> None:
        """Raise a ValueError if sites are compared that a mechanism hides in a sum.

        Parameters
        ----------
        trust : str
            That of the mechanism.
        """
        if trust == "sum" and self.compares_sites:
            raise ValueError(
                f"trust={trust!r} hides the summaries of clients, which merge={self!r} compares."
            )

    def directions_needed(self, n_components: Any) -> int | float | None:
        """Return the ``n_components`` of the sub-estimator that `FederatedPCA` gives to a client.

        Parameters
        ----------
        n_components : int, float, "parallel", "held-out", "mle" or None
            That of `FederatedPCA`. A strategy that needs a number raises a ValueError.

        Returns
        -------
        n_components : int, float or None
            That of the sub-estimator; here the same. A rule's name is taken for None.
        """
        return n_components if self._counts is None else check_count(n_components, self._counts)

    def directions_sent(self, n_components: int | float | None) -> int | None:
        """Return how many directions of its summary a client sends at most.

        Parameters
        ----------
        n_components : int, float or None
            As in `merge`.

        Returns
        -------
        n_directions : int or None
            None, as here: all.
        """
        return None

    def directions_kept(
        self, subspaces: Sequence[Subspace], n_components: int | float | None
    ) -> int | float | None:
        """Return how many directions to keep of a merge that may be merged again.

        It holds for the inner nodes of a tree, and for the ``subspace_`` of `FederatedPCA`, of
        which the components shown are the first.

        Parameters
        ----------
        subspaces : sequence of Subspace
            Summaries that are to be merged.
        n_components : int, float or None
            Directions wanted in the end.

        Returns
        -------
        n_components : int, float or None
            Here as many as are wanted in the end.
        """
        return n_components

    def merge(
        self,
        subspaces: Sequence[Subspace],
        n_components: int | float | None = None,
        *,
        between: int | float | None = None,
        record: Callable[..., None] | None = None,
    ) -> Subspace:
        """Merge summaries of disjoint sets of rows.

        Parameters
        ----------
        subspaces : sequence of Subspace
            Summaries with the same number of features, one of each client.
        n_components : int, float or None, default=None
            Directions of the result, as in `merge_subspaces`.
        between : int, float or None, default=None
            Directions that an inner node keeps of summaries that were cut before; of others it
            keeps all. None: as many as `directions_kept` says.
        record : callable, default=None
            Called once per round with the list of the summaries that are sent in it and, unless
            the server takes them all, the list of who takes each.

        Returns
        -------
        subspace : Subspace
            Summary of all rows.
        """
        self.validate()
        subspaces = _merging.check_subspaces(subspaces)
        check_n_components(n_components, fraction=True)
        check_n_components(between, fraction=True, name="between")
        n_components, between = plain_integer(n_components), plain_integer(between)
        if between is None:
            between = self.directions_kept(subspaces, n_components)
        named = largest_named(partial(_merging.names_of_parts, subspaces), subspaces)
        with named, _merging.threads_of_merge(subspaces):
            return merge_in_rounds(self, subspaces, n_components, between, record=record)

    @abstractmethod
    def _merge(
        self, parts: list[Subspace], n_components: int | float | None, kept: int | float | None
    ) -> Subspace:
        """Merge summaries that have been checked.

        Parameters
        ----------
        parts : list of Subspace
            One or more, which fit together, hold rows and are in float64.
        n_components : int, float or None
            Directions of the result: a number, a share of the scatter, or all.
        kept : int, float or None
            Directions of what is merged again by the strategy itself.

        Returns
        -------
        subspace : Subspace
            Summary of all rows.
        """


def check_count(n_components: Any, of: str, or_none: bool = False) -> Any:
    """Return a number of components, or raise where it must be one; ``of`` what, and why."""
    if is_integer(n_components) or (or_none and n_components is None):
        return n_components
    kind = "an integer or None" if or_none else "an integer"
    raise ValueError(f"n_components={n_components!r} must be {kind} with {of}")


def takes_all(merge: MergeStrategy | None) -> bool:
    """Whether a merge is that of all rows alike, and judges none."""
    return merge is None or merge._takes_all


def moments_and_factor(parts: Sequence[Subspace]) -> tuple[Subspace, Callable]:
    """Summary of the rows of all parts without directions; and a function of directions V.

    It returns a factor of the scatter matrix of all rows along V.
    """
    total, corrections = _merging.pooled_moments(parts)
    return total, lambda V: np.concatenate([factor_along(parts, V), corrections @ V.T])


@with_parameters
class SubspaceMerge(MergeStrategy):
    """Merge of subspace summaries, flat or in a tree (Grammenos et al. 2019).

    Parameters
    ----------
    method : {"auto", "svd", "qr", "orthogonal", "gram"}, default="auto"
        See `merge_subspaces`.
    fan_in : int or None, default=None
        Summaries merged at each node of a tree with ceil(log_fan_in(s)) levels, the DASM levels of
        the paper. None: all at the server at once.
    truncate : bool, default=False
        False: summaries from which nothing was cut are not cut within the tree either, of others
        extra directions are kept, and the cut to ``n_components`` comes at the root. True: the
        paper's, clients and every node send ``n_components`` directions, an integer, or None for
        all.
    center : {"all", "site"}, default="all"
        What the scatter of the result is about: the mean of all rows, or for the rows of each site
        the mean of the site. "site" is the PCA within sites: what sites differ by in their means is
        left out, as if each had subtracted its own before a fit. See Notes.
    forgetting_factor : float in (0, 1], default=1.0
        lambda_1 of the paper: at each node the singular values of a summary are multiplied by it
        once for each later one. Then the order of the clients matters: with `FederatedPCA` that of
        the calls in which they first came, and of their labels within a call.

    See Also
    --------
    FederatedPCA : Uses a strategy as its ``merge``.

    Notes
    -----
    Algorithm 1 of the paper, with two summaries at a node, is ``SubspaceMerge(fan_in=2,
    truncate=True)``. With more, the paper folds the summaries of a node two at a time and truncates
    after each; here a node takes one SVD of all, which loses less. The paper's cut loses what the
    rows of several clients have in common beyond the first directions of each.

    With ``center="site"`` each summary counts as one site. Directions, variances and noise are
    those of the rows minus their site's mean, with the divisor n - 1; the unbiased estimate of a
    variance within s sites is (n - 1) / (n - s) times that. The mean is that of all rows, so that
    rows of known and of new sites are mapped alike: scores of two sites may be compared, and differ
    by their means. A site that wants its own scores about 0 subtracts the score of its mean. In a
    tree, or of merges that were made in this way, the result is the same. It cannot be refined, and
    a mechanism with ``trust="sum"`` is refused: sums over sites do not tell their means.

    A level of a tree with fan-in f costs O((f k)^2 d) a node; the server of a flat merge holds all
    s summaries, O(s k d), a node of the tree f of them, which have more directions up the tree
    where nothing has been cut.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import Subspace, SubspaceMerge
    >>> X = np.random.default_rng(0).standard_normal((60, 5))
    >>> sites = [Subspace.from_rows(X[i::7]) for i in range(7)]
    >>> for merge in SubspaceMerge(), SubspaceMerge("orthogonal", fan_in=2):
    ...     print(merge.merge(sites).singular_values.round(4))
    [9.5278 8.2219 7.9661 7.0829 5.4882]
    [9.5278 8.2219 7.9661 7.0829 5.4882]
    """

    method: str = allowed(StrOptions(set(MERGE_METHODS)), default="auto")
    fan_in: int | None = allowed(Interval(Integral, 2, None, closed="left"), None, default=None)
    _: KW_ONLY
    truncate: bool = allowed("boolean", default=False)
    center: str = allowed(StrOptions({"all", "site"}), default="all")
    forgetting_factor: float = allowed(Interval(Real, 0, 1, closed="right"), default=1.0)
    _takes_all = True

    @property
    def compares_sites(self) -> bool:
        """Whether each site has its own mean taken off."""
        return self.center == "site"

    @property
    def _adds_up(self) -> bool:
        flat = type(self) is SubspaceMerge and self.fan_in is None and not self.truncate
        unweighted = self.forgetting_factor == 1 and self.center == "all"
        return flat and unweighted and self.method == "auto"

    def directions_needed(self, n_components: int | float | None) -> int | float | None:
        """Return the same; with ``truncate`` it cannot be a share."""
        return self._cut_to(n_components) if self.truncate else n_components

    def directions_sent(self, n_components: int | float | None) -> int | None:
        """Return None, for all directions, or with ``truncate`` as many as are wanted."""
        return self._cut_to(n_components) if self.truncate else None

    def directions_kept(
        self, subspaces: Sequence[Subspace], n_components: int | float | None
    ) -> int | float | None:
        """Return ``n_components`` and extra ones, so that a later cut loses little.

        With ``truncate`` there are none.
        """
        if self.truncate:
            return self._cut_to(n_components)
        return _merging.directions_between(subspaces, n_components)

    def _cut_to(self, n_components: int | float | None) -> int | None:
        why = "a share of the variance that every node cuts again would not be reached."
        return check_count(n_components, f"truncate=True: {why}", or_none=True)

    def _merge(self, parts, n_components, kept):
        if self.truncate and n_components is None:
            n_components = kept
        if self.forgetting_factor < 1:
            ages = np.arange(len(parts) - 1.0, -1, -1)
            parts = _merging.weighted(parts, self.forgetting_factor**ages)
            parts = [part for part in parts if part.n_samples > 0]
        if self.center == "site":
            if not parts[0].centered:
                raise ValueError(
                    'center="site" needs summaries about their means, got centered=False.'
                )
            # moved to the mean of all: a merge then has nothing between them
            total, _ = _merging.pooled_moments(parts)
            parts = [part._replace(mean=total.mean) for part in parts]
        return _merging.merged_parts(parts, n_components, self.method)


# -------------------------------------------------------------------- rounds


class LastMerge:
    """What clients and nodes of a tree hold of a merge, so that the next one repeats nothing.

    Parameters
    ----------
    before : LastMerge, default=None
        The merge before this one.
    log : CommunicationLog, default=None
        Where what is new in a round is recorded; None: nowhere, as where it has been.
    clients : mapping, default=None
        Clients that have sent their summaries, which need not be computed yet.
    """

    def __init__(self, before: LastMerge | None = None, log: Any = None, clients: Any = None):
        self._sent: list[Subspace] = []
        self._made: dict[tuple, Subspace] = {}
        self._before, self._log, self._clients = before, log, clients or {}

    def _messages(self) -> list[Subspace]:
        """Summaries that have been sent."""
        return self._sent + [client.summary for client in self._clients.values()]

    def once(
        self, sources: tuple[Subspace, ...], how: Hashable, make: Callable[[], Subspace]
    ) -> Subspace:
        """Return what was made of the same summaries in the same way, or else make it."""
        before = {} if self._before is None else self._before._made
        made = before.get((sources, how))
        self._made[sources, how] = made = make() if made is None else made
        return made

    def record(self, messages: Iterable[Subspace], receivers: list | None = None) -> None:
        """Log a round, without what the receiver still holds as it was."""
        if self._log is None:
            return
        messages = list(messages)
        sent_before = set() if self._before is None else set(map(id, self._before._messages()))
        new = [i for i, message in enumerate(messages) if id(message) not in sent_before]
        sizes = [Message(*messages[i]._size()) for i in new]
        self._log.record(sizes, receivers=receivers and [receivers[i] for i in new])
        self._sent.extend(messages)

    # skops keeps no dictionary whose keys are objects
    def __getstate__(self):
        made = [(*key, made) for key, made in self._made.items()]
        return {"sent": self._messages(), "made": made}

    def __setstate__(self, state):
        self._before, self._log, self._clients = None, None, {}
        self._sent = state["sent"]
        self._made = {(tuple(sources), how): made for sources, how, made in state["made"]}

    def done(self) -> LastMerge:
        """The same without the merge before it, to be kept."""
        self._before = self._log = None
        return self


def merge_in_rounds(
    strategy: MergeStrategy,
    subspaces: list[Subspace],
    n_components: int | float | None,
    kept: int | float | None,
    *,
    record: Callable[..., None] | None = None,
    once: Once | None = None,
) -> Subspace:
    """Let clients send their summaries, and merge them with a strategy level by level.

    Parameters
    ----------
    strategy : MergeStrategy
    subspaces : list of Subspace
        Checked; one of each client, of which those without rows take part in the rounds only.
    n_components, record
        As in `MergeStrategy.merge`.
    kept : int, float or None
        Directions that an inner node of a tree keeps of summaries that were cut before; None: all.
    once : callable, default=None
        `LastMerge.once`.

    Returns
    -------
    subspace : Subspace
    """
    once = LastMerge().once if once is None else once
    most, fan_in = strategy.directions_sent(n_components), strategy.fan_in
    nodes = subspaces
    if most is not None:
        nodes = [
            once((s,), most, partial(s.truncate, most)) if most < s.n_components else s
            for s in subspaces
        ]

    def node(group: list[Subspace], n_components: int | float | None) -> Subspace:
        def merged(parts: list[Subspace]) -> Subspace:
            found, d = strategy._merge(parts, n_components, kept), parts[0].n_features
            if getattr(found, "n_features", None) != d:
                name, got = type(strategy).__name__, repr(found)[:80]
                raise TypeError(
                    f"_merge of {name} must return a Subspace of {d} columns, got {got}."
                )
            return found

        return _merging.merged_rows(group, merged)

    def inner_node(group: list[Subspace]) -> Subspace:
        """The merge of a group, from which nothing is cut if nothing was cut from its parts."""
        if len(group) == 1:
            return group[0]
        size = kept if any(map(was_truncated, group)) else None
        return once(tuple(group), how, partial(node, group, size))

    with np.printoptions(threshold=sys.maxsize, floatmode="unique"):  # whole arrays
        parameters = str(strategy.get_params())
    how = (type(strategy).__module__, type(strategy).__qualname__, parameters, kept)
    while fan_in is not None and len(nodes) > fan_in:
        groups = [nodes[i : i + fan_in] for i in range(0, len(nodes), fan_in)]
        # a node alone in its group waits for the next level
        sent = [(node, i) for i, group in enumerate(groups) if len(group) > 1 for node in group]
        if record is not None:
            record(*map(list, zip(*sent, strict=True)))
        nodes = list(map(inner_node, groups))
    if record is not None:
        record(nodes)
    return node(nodes, n_components)


# -------------------------------------------------------------------- the clients of an estimator


def check_merge(pca: Any) -> None:
    """Raise where the summaries of clients are not what the merge takes."""
    counted = isinstance(pca.n_components, str)
    if pca.missing is not None and counted and pca.n_components not in pca.missing._rules:
        raise ValueError(
            f"n_components must be a number or a share with missing={pca.missing!r}, got "
            f"{pca.n_components!r}, which counts by the variances of whole rows."
        )
    if pca.missing is not None and pca.merge is not None and pca.merge.compares_sites:
        raise ValueError(
            f"merge={pca.merge!r} compares sites, which missing={pca.missing!r} makes alike: "
            "rows are filled in by the means and the components of all."
        )
    if pca.partial_out is not None and not takes_all(pca.merge):
        raise ValueError(
            f"merge must be None or SubspaceMerge with partial_out, got {pca.merge!r}: it "
            "would judge rows from which confounders are not taken out."
        )
    if adjusts(pca.estimator) and not adjusts(pca):
        raise ValueError(
            "estimator must have scale=False and partial_out=None, as clients send summaries "
            f"of the rows as they are, got {pca.estimator!r}; FederatedPCA has both."
        )
    if pca.merge is not None:
        pca.merge.validate()
        if isinstance(pca.n_components, str):  # some need a number, and say so
            pca.merge.directions_needed(pca.n_components)
    if pca.mechanism is not None:
        if pca.estimator is not None:
            raise ValueError(
                "estimator must be None with a mechanism, which makes the summaries of "
                f"clients, got {pca.estimator!r}."
            )
        if pca.merge is not None:
            pca.merge.check_trust(pca.mechanism.trust)


def refuse_noise(pca: Any, summaries: Sequence[Subspace], counted: bool) -> None:
    """Raise where variances of rows are asked for, and some summaries have noise in theirs.

    ``counted``: by a rule for ``n_components``.
    """
    noisy = [s for s in summaries if s.privacy is not None]
    if noisy and (counted or adjusts(pca)):
        what = f"n_components={pca.n_components!r} takes"
        what = what if counted else "scale and partial_out take"
        raise ValueError(
            f"{what} variances for those of rows, and a summary has the noise of a privacy "
            "mechanism."
        )


def show_findings(pca: Any, strategy: MergeStrategy) -> None:
    """Show what a strategy found of the sites in this merge, by attribute and label."""
    for name in vars(pca).pop("_findings", ()):
        delattr(pca, name)
    found = {name: of for name, of in vars(strategy).items() if name.endswith("_")}
    if found and strategy.fan_in is None:  # nodes of a tree know no clients
        labels = [label for label, site in pca._clients.items() if site.summary.n_samples > 0]
        for name, of in found.items():
            is_of_sites = isinstance(of, dict)
            setattr(pca, name, {labels[i]: v for i, v in of.items()} if is_of_sites else of)
        pca._findings = tuple(found)


def merged_clients(
    pca: Any, strategy: MergeStrategy, whole: list[Subspace], last: LastMerge
) -> Subspace:
    """The merge of the summaries of all clients, of which ``last`` records the rounds."""
    n_certain = number_or_none(pca.n_components)
    if adjusts(pca):
        return _merged_in_units(pca, strategy, whole, n_certain, last)
    kept = strategy.directions_kept(whole, n_certain)
    return merge_in_rounds(strategy, whole, kept, kept, record=last.record, once=last.once)


def _merged_in_units(
    pca: Any, strategy: MergeStrategy, whole: list[Subspace], n_certain: Any, last: LastMerge
) -> Subspace:
    """The same in units that fit how rows are adjusted; messages are those of rows as they are."""
    adjusting = adjusting_of(pca, whole[0].n_features, whole[0].feature_names)
    known = [  # also of those by other libraries, before the merge cuts
        s if s.column_scatter is not None else s._replace(column_scatter=scatter_of_columns(s))
        for s in whole
    ]
    if strategy._adds_up:
        last.record(whole)
        kept = strategy.directions_kept(whole, with_confounders(pca, n_certain))
        return merged(known, kept, adjusting, n_certain)
    parts, restored = equilibrated(known, adjusting, n_certain, not takes_all(pca.merge), last.once)
    sent = {id(part): of for part, of in zip(parts, whole, strict=True)}

    def record(messages: list[Subspace], receivers: list | None = None) -> None:
        last.record([sent.get(id(message), message) for message in messages], receivers)

    kept = strategy.directions_kept(parts, with_confounders(pca, n_certain))
    return restored(merge_in_rounds(strategy, parts, kept, kept, record=record, once=last.once))
