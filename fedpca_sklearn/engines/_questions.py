"""Questions that a site answers, counted and checked before it works."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .._kernels import linalg
from .._kernels.observed import rows_of_patterns
from .._kernels.tolerances import GIVEN_BASIS_TOL
from ._messages import BadMessageError, Context, Message, digest_of_arrays, read_array
from ._site_policy import RefusedError

# Times that a run may begin: once, and again where the server lost another site.
BEGINNINGS = 3
# What a task reads that is handed moments of the rows, not the rows.
MOMENTS = "moments"
# Records of the site's own state, kept between the messages of a run.
RUN, ASKED = "fedpca_sklearn", "fedpca_sklearn.asked"


class Given(NamedTuple):
    """What a server gives a site, and keeps to where it begins anew.

    Parameters
    ----------
    name : str
        As a refusal has it.
    of : callable
        ``of(*arguments)`` returns the arrays of a question that make it, none if it has none.
    most : int
        Different ones that a site takes in a run, or about a batch if the question is about one.
    """

    name: str
    of: Callable[..., Sequence[np.ndarray]]
    most: int = 1


_KEYS = Given("list of keys", lambda keys: [keys])


@dataclass(frozen=True)
class Task:
    """What a site does about one kind of question.

    Attributes
    ----------
    work : callable
        ``work(site, X, *arguments)`` returns arrays by name. Arguments are finite arrays; it raises
        `RefusedError` for those it should not be asked. Where it has a parameter ``weight``, given
        by name only, it gets the weights of the rows or None; where it has ``keys``, their
        `HashedKeys`; where it has ``min_rows`` or ``min_rows_of_pattern``, those of the owner's
        `SitePolicy`; where it has ``who``, the site with what it keeps in a run. Rows with weights
        or keys that nobody asks for are refused.
    reads : str
        Which numbers of its rows the site needs for an answer. Given by name only. "moments": their
        number, mean and scatter matrix; the work is handed the `SiteMoments` of the rows, weights
        included, in their place, which were computed once, before the server asked. "summary": the
        rows, to be summed up as the site's own estimator says; the question has no argument.
        "rows: " and why single rows are needed, to which the server's numbers come.
    times : int
        Questions of this kind before the server has to begin again.
    fixed : int, tuple of int or None
        Position of an argument that stays the same until then, or of several.
    given : tuple of Given
        What stays the same beyond that, in all beginnings of a run or of a batch.
    begins : bool
        Whether a question of this kind begins a fit or a batch, as one of the first kind always
        does.
    batches : bool
        Whether the first argument is the number of a batch of the site's rows, which X then is. The
        next batch is asked for after the last one; ``times`` is for each.
    batch_rows : callable or None
        ``batch_rows(d)``: rows of a batch with d columns; None: batches are those of ``load_rows``.
        A question about no batch then has the first.
    missing : bool
        Whether entries of the rows may be missing.
    matched : bool
        Whether the first argument is hashed keys that all sites have, the same in the whole run; X
        is the rows that have them, in their order.
    once : bool
        Whether the server cannot begin again after a question of this kind.
    bound : callable or None
        ``bound(rows, mean, scatter)`` returns the largest absolute number of each array of the
        answer, by name, at a site whose number of rows, norm of the mean and scatter about it are
        at most these. With it answers can be added up by secure sums: their grid follows from what
        sites announce, and an argument ``mean`` has to be one that such rows can have. Work that
        reads "moments" only.
    parts : callable or None
        Of an answer of one array about d columns ``parts(n, d)`` are the names of its n numbers, by
        what they are: by secure sums each name has a grid of its own.
    grids : callable or None
        ``grids(bounds)`` are these, from what all sites announce; None: those of moments where
        there are parts, of ``bound`` where there is one, and else the answer is no sum.
    """

    work: Callable
    reads: str = field(kw_only=True)
    times: int = 1
    fixed: int | tuple[int, ...] | None = None
    given: tuple[Given, ...] = ()
    begins: bool = False
    batches: bool = False
    batch_rows: Callable[[int], int] | None = None
    missing: bool = False
    matched: bool = False
    once: bool = False
    bound: Callable[[float, float, float], Mapping[str, float]] | None = None
    parts: Callable[[int, int], np.ndarray] | None = None
    grids: Callable[[Any], Mapping[str, Any]] | None = None

    def __post_init__(self):
        if self.bound is not None and self.reads != MOMENTS:
            raise ValueError(f"a bound needs reads='moments', got {self.reads!r}.")
        if not re.fullmatch("moments|summary|rows: .+", str(self.reads)):
            raise ValueError(
                f"reads must be 'moments', 'summary' or 'rows: ' and why, got {self.reads!r}."
            )
        if self.reads == "summary" and (taken_by(self.work)[0] or self.matched):
            raise ValueError("reads='summary' is for questions without an argument.")


@lru_cache(maxsize=256)
def taken_by(work: Callable) -> tuple[list[str], set[str]]:
    """Arguments that a work takes beside site and rows, and those by name; or what it wraps."""
    inner = inspect.signature(work).parameters.values()
    outer = inspect.signature(work, follow_wrapped=False).parameters.values()
    names = {p.name for p in (*inner, *outer) if p.kind is p.KEYWORD_ONLY}
    by_place = [p.name for p in inner if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return by_place[2:], names


class Question(NamedTuple):
    """What a question is about.

    Parameters
    ----------
    arguments : list of ndarray
        What the work gets.
    batch : int or None
        Number of the batch.
    keys : ndarray of shape (n, 32), uint8, or None
        Hashed keys of the rows.
    """

    arguments: list[np.ndarray]
    batch: int | None = None
    keys: np.ndarray | None = None


def asked(message: Message, context: Context, tasks: dict[str, Task]) -> Question:
    """Read and count a question."""
    kind, sent = message.kind, message.arrays
    task, batch, keys = tasks[kind], None, None
    if not task.batches:
        count_question(context, tasks, kind)
    n = len(taken_by(task.work)[0]) + task.batches + task.matched
    if set(sent) != set(map(str, range(n))):
        raise RefusedError(f"a question of this kind has {n} arguments, got {len(sent)}")
    arguments = []
    for i in range(n):
        try:
            arguments.append(read_array(sent[str(i)], "|u1" if task.matched and not i else "<f8"))
        except BadMessageError as error:
            raise RefusedError(f"argument {i} is {error}") from None
    if task.batches:
        number, *arguments = arguments
        if number.shape or not 0 <= number < 2**53 or number != number // 1:
            raise RefusedError("the number of a batch must be a whole number")
        batch = int(number)
        count_question(context, tasks, kind, batch)
    if task.matched:
        keys, *arguments = arguments
        take(context, "run", _KEYS, [keys])
    for given in task.given:
        if arrays := given.of(*arguments):
            take(context, "run" if batch is None else "batch", given, arrays)
    for place in (task.fixed,) if isinstance(task.fixed, int) else task.fixed or ():
        digest = digest_of_arrays([arguments[place]])
        if context.state[RUN].setdefault(f"fixed argument {place}", digest) != digest:
            raise RefusedError(f"argument {place} must stay the same until the server begins anew")
    return Question(arguments, batch, keys)


def count_question(
    context: Context, tasks: dict[str, Task], kind: str, batch: int | None = None
) -> None:
    """Count a question before the site works; some kinds begin a new fit, or a new batch.

    Raises
    ------
    RefusedError
        If the run has used up its questions of this kind, or its beginnings, or if a batch is asked
        for out of turn.
    """
    run, asked = dict(context.state.get(RUN, {})), dict(context.state.get(ASKED, {}))
    if run.get("id") != str(context.run_id):  # a series of runs shares one state
        run, asked = {"id": str(context.run_id)}, {}
    task = tasks[kind]
    last = run.get("number")
    if batch is not None and task.begins and (last is None or batch == last + 1):
        for name in [name for name in run if name.startswith("given batch ")]:
            del run[name]
        run |= {"number": batch, "batch": 0}  # a run starts with any batch
    elif batch not in (None, last):
        raise RefusedError(f"batch {batch} is out of turn, the last one was {last}")
    if task.begins or kind == next(iter(tasks)):
        if "ended" in run:
            raise RefusedError(f"a run does not begin again after {run['ended']!r}")
        what = "run" if batch is None else "batch"
        if run.get(what, 0) == BEGINNINGS:
            raise RefusedError(f"a {what} begins at most {BEGINNINGS} times")
        run[what] = run.get(what, 0) + 1
        run = {name: value for name, value in run.items() if not name.startswith("fixed ")}
        asked = {}
    elif batch is None and task.fixed is not None:
        run.setdefault("run", 1)  # what is asked before a beginning is asked of one
    if task.once:
        run["ended"] = kind
    asked[kind] = asked.get(kind, 0) + 1
    context.state[RUN], context.state[ASKED] = run, asked
    if asked[kind] > task.times:
        raise RefusedError(f"more than {task.times} questions of the kind {kind!r}")


def take(context: Context, scope: str, given: Given, arrays: Sequence[np.ndarray]) -> None:
    """Raise if the server gives more than it may in a run or about a batch, its scope."""
    run = context.state[RUN]
    digest, name = digest_of_arrays(arrays), f"given {scope} {given.name}"
    known: list[str] = list(run.get(name, []))
    if digest not in known and len(known) == given.most:
        most = "one" if given.most == 1 else given.most
        raise RefusedError(f"a {scope} has {most} {given.name} in all its beginnings, got another")
    run[name] = [*dict.fromkeys([*known, digest])]


def check_mean(mean: np.ndarray, d: int, center: bool) -> None:
    """Raise unless a vector is a mean of rows with d columns."""
    if mean.shape != (d,):
        raise RefusedError(f"the mean must have shape ({d},), got {mean.shape}")
    if not center and mean.any():
        raise RefusedError("the mean must be zero with center=False")


def are_few(least: int, *numbers: np.ndarray) -> bool:
    """Whether some sum is of rows, but of so few that it tells them."""
    return any(((n > 0) & (n < least)).any() for n in numbers)


def check_patterns(X: Any, least: int | None) -> None:
    """Raise if fewer rows than the owner wants have some pattern of missing entries."""
    if least is not None and rows_of_patterns(X).min(initial=least) < least:
        raise RefusedError(
            f"a pattern of missing entries that fewer than min_rows_of_pattern={least} rows have"
        )


def check_basis(V: np.ndarray, d: int, rank: int) -> None:
    """Raise unless the rows of a matrix are a basis of at most ``rank`` of d directions."""
    if V.ndim != 2 or V.shape[1] != d or len(V) > rank:
        raise RefusedError(f"the basis must have shape (k, {d}) with k <= {rank}, got {V.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        error = linalg.orthonormality_error(V)
    if not error <= GIVEN_BASIS_TOL:
        raise RefusedError(f"the basis must have orthonormal rows, they are off by {error:.1e}")
