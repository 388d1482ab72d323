"""Sites that a server reaches: questions to all at once, sums, and removal of failing ones."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from .._base.transformer import SubspaceTransformer
from .._validation.checks import check_at_most_features
from .._validation.containers import check_names, check_same_names, check_text, composed
from ..communication import CommunicationLog
from ..communication._federation import Message as Size
from ..communication._federation import message_of
from ..rounds._queries import Shapes
from ._messages import Answer, Carrier, Message, SiteLostError, numbered, shown
from ._parameters import stated
from ._secure import Bounds, Grid, SecureAggregation, bounds_in, grids_of

# Largest mu^2 that a site can have spent, other than infinity.
_LARGEST = 2.0**40

_LONGEST_NAME = 255
# What sites have alike that share the columns.
_COLUMNS = "number of features"


class Sites:
    """Sites by their names. One that fails is left out from there on."""

    # the parameter that says how many are enough
    limit = "min_sites"
    # what secure sums have been agreed on, if there are such
    secure: Any = None

    def __init__(
        self, nodes: list[int], carrier: Carrier, min_sites: int, timeout: float, estimator: Any
    ):
        self.carrier, self.min_sites, self.timeout = carrier, min_sites, timeout
        self.stated = stated(estimator)  # in each question
        self.private = getattr(estimator, "mechanism", None) is not None
        # components that are asked for, which are no more than columns
        known = isinstance(estimator, SubspaceTransformer)
        self.n_components = estimator.n_components if known else None
        self.log = CommunicationLog()
        self.own_columns = False  # whether each site has columns of its own
        self.common_keys: np.ndarray | None = None  # of rows that all of these have, once known
        self.names: dict[int, str] = {node: carrier.name(node) for node in nodes}
        self.missing: dict[str, str] = {}
        # what sites with a mechanism state: mu^2 of all their releases, and the delta they promise
        self.spent: dict[str, tuple[float, float]] = {}
        # what first answers said, which holds for good: names, dtypes, columns, what all have alike
        self.nodes: dict[str, int] = {}
        self._described: dict[int, tuple[str, Any, Any]] = {}
        self._traits: dict[str, Any] = {}
        self.n_ended = 0  # sites that have no more batches, and are asked no more
        self._check_enough()

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns, if the sites know them; of columns of their own side by side.

        Where two sites have columns of one name, the name of the site stands before all of them.
        """
        if not self.own_columns:
            return self._traits.get("columns")
        of_sites = {site: self._described[node][2] for node, site in self.names.items()}
        if not all(of_sites.values()):
            return None
        pairs = [(site, name) for site, own in of_sites.items() for name in map(composed, own)]
        names = tuple(name for _, name in pairs)
        return names if len(set(names)) == len(names) else tuple(map(": ".join, pairs))

    @property
    def n_features(self) -> Any:
        """Columns of all sites, once they have told."""
        return self._traits.get(_COLUMNS)

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the rows of all sites."""
        return np.result_type(*(self._described[node][1] for node in self.names))

    def ask(
        self,
        kind: str,
        read: Callable[[Answer], Any],
        *arguments: Any,
        batch: int | None = None,
        configs: Mapping[str, dict[str, Any]] | None = None,
        spare: bool = False,
        there: Collection[str] = (),
    ) -> dict[str, Any]:
        """Return what ``read`` makes of the answer of each site, by name, sorted.

        Parameters
        ----------
        kind : str
        read : callable
            ``read(answer)`` raises what `Answer.refused` returns, or another ValueError, to leave
            the site out, and tells by `Answer.agree` what must be the same at all sites.
        *arguments : array-like
            Sent along, arrays of bytes as they are and all others as float64.
        batch : int or None
            Number of the batch that the question is about, which is sent before these. Sites that
            have none have no value, but for those in ``there``.
        configs : dict of str to dict
            What else is sent, by the name of the site.
        spare : bool, default=False
            Sites without an answer are not left out.
        there : collection of str
            Names of sites that took part before.

        Raises
        ------
        RuntimeError
            If fewer than ``min_sites`` are left.
        SiteLostError
            If one of ``there`` is lost.
        """
        arrays = numbered(arguments if batch is None else (batch, *arguments))
        questions, answers, values = dict[int, Message](), {}, {}
        for node, name in self.names.items():
            own = {} if configs is None else configs.get(name, {})
            config = {**self.stated, **own, "nonce": self.carrier.nonce()}
            questions[node] = Message(kind, config, arrays)
        replies = self.carrier.exchange(questions, self.timeout)
        for node, question in questions.items():
            try:
                answer = self._open(node, replies.get(node), question.config["nonce"])
                over = batch is not None and answer.over and answer.site not in there
                value = None if over else read(answer)
                account = {answer.site: _spent_of(answer)} if self.private else {}
                described = answer.config.get("dtype"), answer.config.get("columns")
                if (answer.site, *described) != self._described.get(node):
                    self._pin(node, answer)
                self.spent |= account
                if not over:
                    values[node], answers[node] = value, answer
            except (ValueError, TypeError, OverflowError) as error:
                if not spare:
                    self.leave_out(node, self._claim(node, replies.get(node)) + shown(str(error)))
        self._leave_out_unlike(answers)
        self.names = dict(sorted(self.names.items(), key=itemgetter(1)))
        self._check_enough()
        found = {name: values[node] for node, name in self.names.items() if node in values}
        if not found.keys() >= set(there):
            raise SiteLostError
        return found

    def ask_batch(
        self, kind: str, read: Callable[[Answer], Any], batch: int, *arguments: Any, there: Any = ()
    ) -> dict[str, Any]:
        """Return the same of the sites that have a batch of this number, which may be none.

        Those in ``there`` have it, as they have answered about it before; an error if one is lost.
        """
        return self.ask(kind, read, *arguments, batch=batch, there=there)

    def begin(self, members: Iterable[str] = (), batch: int | None = None) -> None:
        """Begin sums over sites that are known to take part, or over those of the first one.

        They are about all rows, or about those of a batch. A fit that begins anew knows no members.
        """
        self.members, self.batch = set(members), batch

    def begin_batch(self, kind: str, batch: int) -> dict[str, bytes]:
        """Begin sums about a batch of the sites that have one; the bounds that these announce."""
        found = self.ask_batch(kind, bounds_in, batch)
        self.begin(found, batch)
        return found

    def until_nobody_is_lost(self, take: Callable[[], Any]) -> Any:
        """What a fit, or a batch, finds; it begins again without a site that is lost meanwhile."""
        while True:
            with suppress(SiteLostError):
                self.begin()
                return take()

    def sum(self, kind: str, shapes: Shapes, *arguments: Any) -> dict[str, np.ndarray]:
        """Return the sums of the arrays that all sites send, by name.

        Parameters
        ----------
        kind : str
        shapes : dict of str to tuple
            Of the arrays, all float64; (None,) for one whose length is the sites' own, the same at
            all of them.
        *arguments : array-like
            Sent along.

        Raises
        ------
        SiteLostError
            If a site of earlier sums of the fit is lost: the fit begins anew.
        """
        sent = np.hstack([*map(np.ravel, arguments), []])
        return self.added(kind, shapes, arguments, log=self.log, sent=sent)

    def added(
        self,
        kind: str,
        shapes: Shapes,
        arguments: tuple,
        check: Callable[..., None] | None = None,
        log: CommunicationLog | None = None,
        sent: np.ndarray | None = None,
        of_each: dict[str, list[np.ndarray]] | None = None,
    ) -> dict[str, np.ndarray]:
        """The same, logged if there is a log, of which something has to be ``sent`` anew.

        ``check(answer, *arrays)`` raises for those that no rows have, where answers are seen;
        ``of_each`` then takes the arrays of the sites that were not left out.
        """

        def read(answer: Answer) -> list[np.ndarray]:
            parts = [answer.summand(name, shape) for name, shape in shapes.items()]
            if check is not None:
                check(answer, *parts)
            for name, part in zip(shapes, parts, strict=True):
                if None in shapes[name]:
                    answer.agree(f"shape of {name} of {kind}", part.shape)
            return parts

        found = self.ask(kind, read, *arguments, batch=self.batch, there=self.members)
        self.members = set(found)
        if of_each is not None:
            of_each |= found
        totals = list(map(np.add.reduce, zip(*found.values(), strict=True)))
        if log is not None:
            size, n = sum(map(np.size, totals)), len(found)
            down = [] if sent is None else [message_of(sent)] * n
            log.record([Size(size, 8 * size)] * n, down, summed=True)
        return dict(zip(shapes, totals, strict=True))

    def _open(self, node: int, reply: Message | None, nonce: str) -> Answer:
        """Return the answer in a reply, if the node gave one to this question."""
        if reply is None:
            raise ValueError(f"no answer within {self.timeout:g} s")
        if reply.error is not None:
            raise ValueError(reply.error)
        config = dict(reply.config)
        if config.get("nonce") != nonce:
            raise ValueError("sent what is no answer to this question")
        site: Any = config.get("site")
        if site != self.names[node]:
            site = _checked_name(site, node)
        if "error" in config:
            raise ValueError(str(config["error"]))
        if node in self._described and site != self.names[node]:
            raise ValueError("sent another name, dtype or columns than before")
        return Answer(site, config, dict(reply.arrays))

    def _claim(self, node: int, reply: Message | None) -> str:
        """Name that a node without one states in a bad answer, for an error; it proves nothing."""
        if node in self._described or reply is None:
            return ""
        site = reply.config.get("site")
        return f"calls itself {shown(site)!r}: " if isinstance(site, str) else ""

    def _pin(self, node: int, answer: Answer) -> None:
        """Hold a node to the name, dtype and columns of its first answer."""
        columns = answer.config.get("columns")
        described = answer.site, answer.dtype.name, columns  # which says what is wrong with a dtype
        if node in self._described:
            raise answer.refused("another name, dtype or columns than before")
        if not isinstance(columns, list | None):
            raise answer.refused("columns that are not a list of names")
        n_features = answer.traits.get("number of features", len(columns or ()))
        names = check_names(columns, n_features)
        if not self.own_columns:
            answer.agree("columns", names)
        if (first := self.nodes.setdefault(answer.site, node)) != node:
            raise ValueError(f"node {first} has this name")
        self.names[node], self._described[node] = answer.site, described

    def _leave_out_unlike(self, answers: dict[int, Answer]) -> None:
        """Keep the largest group of sites that are alike; of equal ones that of the first name."""
        known, groups = self._traits, Counter[frozenset]()
        for answer in sorted(answers.values(), key=attrgetter("site")):
            if known | answer.traits == answer.traits | known:  # no trait is another one
                groups[frozenset(answer.traits.items())] += 1
        for traits, _ in groups.most_common(1):
            if traits:
                self.know(dict(traits))
        for node, answer in answers.items():
            for trait, value in answer.traits.items():
                if (expected := self._traits.get(trait, value)) != value:
                    self.leave_out(node, shown(_unlike(trait, value, expected)))
                    break

    def know(self, traits: dict[str, Any]) -> None:
        """Note what is the same at all sites, as `Answer.agree` names it, also before any is asked.

        No more components are asked for than there are columns.
        """
        self._traits = self._traits | traits
        if not self.own_columns:
            check_at_most_features(self.n_components, self._traits.get(_COLUMNS, math.inf))

    def leave_out(self, node: int, reason: str) -> None:
        """Leave a site out from here on."""
        self.missing[self.names.pop(node)] = reason

    def left_out(self) -> str:
        """Names of the missing sites, with the reasons."""
        return "; ".join(f"site {name!r} ({reason})" for name, reason in self.missing.items())

    def too_few(self, what: str) -> RuntimeError:
        """Error of a fit that ends because so few sites are left, which says why."""
        left_out = f" Left out: {self.left_out()}." if self.missing else ""
        return RuntimeError(f"Too few sites: {what}.{left_out}")

    def _check_enough(self) -> None:
        if len(self.names) < self.min_sites:
            raise self.too_few(f"{len(self.names)}, but {self.limit}={self.min_sites}")


class SecureSums(Sites):
    """Sites of whose numbers the server sees sums over all of them, and nothing else.

    A site that is lost before its masked numbers arrive is left out of the sum; one that is lost
    later has taken part. All sums of a fit are over the same sites.

    Attributes
    ----------
    announced : dict of str to bytes
        What the sites have announced, by name.
    """

    def __init__(self, secure: SecureAggregation, tasks: Mapping[str, Any], *of_sites: Any):
        super().__init__(*of_sites)
        if secure.threshold > self.min_sites:
            self.limit, self.min_sites = "threshold", secure.threshold
        self.secure, self.tasks = secure, tasks
        self._keys: dict[str, tuple[bytes, bytes]] = {}
        self._grids: dict[str, tuple[Grid, int]] = {}

    def begin(self, members: Iterable[str] = (), batch: int | None = None) -> None:
        """Begin sums, with the bounds that all sites announce if a fit begins with these."""
        super().begin(members, batch)
        if (task := self.tasks.get("bounds")) is not None and not task.batches:
            self.announce("bounds")

    def announce(self, kind: str, *arguments: Any) -> None:
        """Begin sums with the bounds that all sites announce."""
        self.announced = self.ask(kind, bounds_in, *arguments, there=self.members)

    def begin_batch(self, kind: str, batch: int) -> dict[str, bytes]:
        """Begin sums about a batch, of no site where those that have one are too few.

        Sites that have no more rows are asked no more.
        """
        found, wanted = super().begin_batch(kind, batch), f"{self.limit}={self.min_sites}"
        n = len(found)
        if 0 < n < self.min_sites:
            if not batch:
                raise self.too_few(f"{n} have rows for a batch, but {wanted}")
            text = f"Rows from batch {batch} on are left out: {n} sites have them, but {wanted}."
            warnings.warn(text, UserWarning, stacklevel=2)
        if n < self.min_sites:
            return {}
        self.n_ended += len(self.names) - n
        self.names = {node: name for node, name in self.names.items() if name in found}
        self.announced = found
        return found

    def added(self, kind: str, shapes: Shapes, arguments: tuple, *_: Any, **__: Any) -> Any:
        """Sums of what the sites send, whose messages are always logged; see `Sites.added`.

        Raises
        ------
        RuntimeError
            If too few sites are left.
        """
        from ._secure_sum import Session  # whose masks need an optional dependency

        if bounded := self.tasks[kind].bound is not None:  # a task of one's own
            check_open(shapes)
        arguments = arguments if self.batch is None else (self.batch, *arguments)
        session, self._keys = Session(self, self._keys), {}
        bits, n = self.secure.bits, len(session.names)
        announced = Bounds.of_all(map(self.announced.__getitem__, session.names))
        grids = grids_of(self.tasks[kind], announced)
        words = {name: len(grids[name].levels(bits, n)) for name in sorted(shapes)}
        whole: Any = {name: shape for name, shape in shapes.items() if None not in shape}
        sizes = {name: math.prod(shape) * words[name] for name, shape in whole.items()}
        known = sum(sizes.values())
        masked = session.masked(kind, known if len(whole) == len(words) else None, arguments)
        if self.members and self.members != set(masked):
            raise SiteLostError
        self.members = set(masked)
        total = session.unmasked(masked)
        self._keys = session.next_keys
        found, rest = {}, len(total) - known
        session.record(len(total), list(masked))
        for name in words:
            shape: Any = shapes[name] if name in sizes else (rest // words[name],)
            part, total = np.split(total, [sizes.get(name, rest)])
            found[name] = grids[name].decode(part, shape, bits, n)
            self._grids[name] = grids[name], n
            most = n * 2.0 ** np.asarray(grids[name].exponent, dtype=float)
            if bounded and not (np.abs(found[name]) <= most).all():
                what = f"sum of {name!r} must be within {n} times the bound of its task {kind!r}"
                raise ValueError(f"{what}, {most:g}: the bound does not hold, or a number was NaN.")
        return {name: found[name] for name in shapes}

    def most_rounding(self, name: str) -> Any:
        """The most that rounding at the sites adds to the last sum of a name."""
        grid, n = self._grids[name]
        return grid.step(self.secure.bits, n) * len(self.members)


def check_open(shapes: Shapes) -> None:
    """Raise where the length of masked numbers would not tell the shapes that are open."""
    if [shape for shape in shapes.values() if None in shape] not in ([], [(None,)]):
        raise ValueError(f"shapes must be known, but for one of (None,), got {dict(shapes)}.")


def _checked_name(site: Any, node: int) -> str:
    """Name of a site in composed form, or an error if the node may not have it."""
    if not isinstance(site, str) or not 0 < len(site) <= _LONGEST_NAME:
        raise ValueError(f"sent no name of 1 to {_LONGEST_NAME} characters")
    check_text("site", site)
    if site.startswith("node ") and site != f"node {node}":
        raise ValueError(f"is node {node}")
    return composed(site)


def _unlike(trait: str, got: Any, expected: Any) -> str:
    """How a site differs from the others."""
    if trait == "columns" and None not in (got, expected):
        try:
            check_same_names(expected, got, "it")
        except ValueError as error:
            return str(error)
    if trait == "columns":
        return f"its columns have {'no ' if got is None else ''}names, unlike those of the others"
    return f"its {trait} is {got}, that of the others {expected}"


def _spent_of(answer: Answer) -> tuple[float, float]:
    """mu^2 of all releases of a site, and the delta that it promises, as it states them."""
    mu2, delta = answer.config.get("mu2"), answer.config.get("delta")
    if not isinstance(mu2, float) or not (0 <= mu2 <= _LARGEST or mu2 == math.inf):
        raise answer.refused(f"mu2={shown(repr(mu2))}, expected what it has spent")
    if not isinstance(delta, float) or not 0 < delta < 1:
        raise answer.refused(f"delta={shown(repr(delta))}, expected a number in (0, 1)")
    return mu2, delta
