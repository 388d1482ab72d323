"""Questions that a site answers, counted and checked before it works, and its rows.

These have weights and keys, and come whole or in batches.
"""

from __future__ import annotations

import hmac
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import _get_feature_names

from .._base.sources import is_stream, iter_batches
from .._kernels import linalg
from .._kernels.observed import rows_of_patterns
from .._kernels.tolerances import GIVEN_BASIS_TOL
from .._validation.arrays import in_numpy
from .._validation.checks import check_rows, check_weight, is_integer, is_real
from .._validation.containers import as_rows, composed
from ._messages import OVER, Context, Message, digest_of_arrays, read_array
from ._site_policy import RefusedError, Site

# Times that a run may begin again, where the server lost another site.
RESTARTS = 2
# What a task reads that is handed moments of the rows, not the rows.
MOMENTS = "moments"
# Record of the site's own state, kept between the messages of a run, and how names in it begin of
# what is forgotten where it begins again.
RUN, UNTIL_THEN = "fedpca_sklearn", ("asked ", "fixed ")


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
    arguments : sequence of str or None
        Names of the arguments, where a work takes them as ``*arguments``. What is called ``mean``
        or ``about`` has to be a vector with an entry for each column, and ``V`` a matrix with
        orthonormal rows, where ``rank`` is given: they are checked before the work.
    center : bool
        Whether these vectors may be others than zero.
    rank : callable or None
        ``rank(d)``: rows of ``V`` at most, which have d entries, one for each column; where rows
        are matched one for each row.
    grids : callable or None
        ``grids(bounds)`` are those of the arrays by name, for secure sums, from what all sites
        announce; None: those of ``bound`` where there is one, and else the answer is no sum.
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
    grids: Callable[[Any], Mapping[str, Any]] | None = None
    arguments: Sequence[str] | None = None
    center: bool = True
    rank: Callable[[int], int] | None = None

    @property
    def takes(self) -> Sequence[str]:
        """Names of the arguments that the work takes beside site and rows."""
        return taken_by(self.work)[0] if self.arguments is None else self.arguments

    def _check(self, arguments: Sequence[np.ndarray], shape: tuple[int, int]) -> None:
        """Raise unless vectors and bases are those of rows of a shape."""
        for name, argument in zip(self.takes, arguments, strict=True):
            if name in ("mean", "about"):
                check_mean(argument, shape[1], self.center)
            if name == "V" and self.rank is not None:
                n = shape[0 if self.matched else 1]
                check_basis(argument, n, min(self.rank(n), n))

    def __post_init__(self):
        if self.bound is not None and self.reads != MOMENTS:
            raise ValueError(f"a bound needs reads='moments', got {self.reads!r}.")
        if not re.fullmatch("moments|summary|rows: .+", str(self.reads)):
            raise ValueError(
                f"reads must be 'moments', 'summary' or 'rows: ' and why, got {self.reads!r}."
            )
        if self.reads == "summary" and (self.takes or self.matched):
            raise ValueError("reads='summary' is for questions without an argument.")


@lru_cache(maxsize=256)
def taken_by(work: Callable) -> tuple[list[str], set[str]]:
    """Arguments that a work takes beside site and rows, and those by name."""
    taken = inspect.signature(work).parameters.values()
    by_place = [p.name for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return by_place[2:], {p.name for p in taken if p.kind is p.KEYWORD_ONLY}


def asked(
    message: Message, context: Context, tasks: dict[str, Task], restarts: int | None
) -> tuple[list[np.ndarray], int | None, Any]:
    """Read and count a question: arguments of the work, number of the batch, hashed keys."""
    kind, sent = message.kind, message.arrays
    task, batch, keys = tasks[kind], None, None
    if not task.batches:
        count_question(context, tasks, kind, restarts)
    n = len(task.takes) + task.batches + task.matched
    if set(sent) != set(map(str, range(n))):
        raise RefusedError(f"a question of this kind has {n} arguments, got {len(sent)}")
    arguments = []
    for i in range(n):
        try:
            arguments.append(read_array(sent[str(i)], "|u1" if task.matched and not i else "<f8"))
        except ValueError as error:
            raise RefusedError(f"argument {i} is {error}") from None
    if task.batches:
        number, *arguments = arguments
        if number.shape or not 0 <= number < 2**53 or number != number // 1:
            raise RefusedError("the number of a batch must be a whole number")
        batch = int(number)
        count_question(context, tasks, kind, restarts, batch)
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
    return arguments, batch, keys


def count_question(
    context: Context, tasks: dict[str, Task], kind: str, restarts: Any, batch: int | None = None
) -> None:
    """Count a question before the site works; some kinds begin a new fit, or a new batch.

    Raises
    ------
    RefusedError
        If the run has used up its questions of this kind, or its beginnings, or if a batch is asked
        for out of turn.
    """
    run = dict(context.state.get(RUN, {}))
    if run.get("id") != str(context.run_id):  # a series of runs shares one state
        run = {"id": str(context.run_id)}
    task, last, first = tasks[kind], run.get("number"), next(iter(tasks))
    if batch is not None and (task.begins or kind == first) and last in (None, batch - 1):
        run = {name: kept for name, kept in run.items() if not name.startswith("given batch ")}
        run |= {"number": batch, "batch": 0}  # a run starts with any batch
    elif batch not in (None, last):
        raise RefusedError(f"batch {batch} is out of turn, the last one was {last}")
    what = "run" if batch is None else "batch"
    if task.begins or kind == first:
        if "ended" in run:
            raise RefusedError(f"a run does not begin again after {run['ended']!r}")
        most = RESTARTS if restarts is None else restarts
        if run.get(what, 0) > most:
            raise RefusedError(f"a {what} begins again at most {most} times")
        run[what] = run.get(what, 0) + 1
        run = {name: value for name, value in run.items() if not name.startswith(UNTIL_THEN)}
    elif restarts is None:
        run.setdefault(what, 1)  # what is asked before a beginning is asked of one
    elif not run.get(what):
        text = f"this site takes part in secure sums only, a {what} of which begins with {first!r}"
        raise RefusedError(text)
    if task.once:
        run["ended"] = kind
    run[f"asked {kind}"] = n_asked = run.get(f"asked {kind}", 0) + 1
    context.state[RUN] = run
    if n_asked > task.times:
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


# -------------------------------------------------------------------- rows

# Bytes of a hashed key, of what tells a salt from others, and the least that a salt has.
KEY_BYTES, MARK_BYTES, _SALT_BYTES = 32, 8, 16


class HashedKeys(NamedTuple):
    """Hashed keys of a site's rows, and what sites with the same salt have in common.

    Parameters
    ----------
    hashes : ndarray of shape (n, 32), uint8
    mark : ndarray of shape (8,), uint8
    """

    hashes: np.ndarray
    mark: np.ndarray

    def positions(self, common: np.ndarray) -> np.ndarray:
        """Rows that have the keys that a server says are common, in its order."""
        if common.ndim != 2 or common.shape[1] != KEY_BYTES:
            raise RefusedError(f"keys must have shape (n, {KEY_BYTES}), got {common.shape}")
        if not np.array_equal(np.unique(common, axis=0), common):
            raise RefusedError("common keys must be sorted and differ")
        at = {key.tobytes(): i for i, key in enumerate(self.hashes)}
        found = [at.get(key.tobytes(), -1) for key in common]
        if -1 in found:
            raise RefusedError("common keys must be keys of the site")
        return np.array(found)


def hashed_keys(keys: Any, salt: Any, n: int, public: Iterable[Any] = ()) -> HashedKeys:
    """HMAC-SHA256 of the key of each of n rows. No error tells a key.

    Parameters
    ----------
    keys, salt
        As in `SiteRows`.
    n : int
    public : iterable
        What the server knows, and what is therefore no salt.
    """
    secret = salt.encode() if isinstance(salt, str) else salt
    if not isinstance(secret, bytes) or len(secret) < _SALT_BYTES:
        raise RefusedError(f"the salt of the keys must have {_SALT_BYTES} bytes at least")
    if any(secret == (known.encode() if isinstance(known, str) else known) for known in public):
        raise RefusedError("the salt of the keys comes from the server")
    texts = [_text(key) for key in np.asarray(keys, dtype=object).ravel().tolist()]
    if len(texts) != n:
        raise ValueError(f"keys must have one key per row, {n}, got {len(texts)}.")
    if len(set(texts)) < n:
        raise RefusedError("keys must differ, and some come more than once")
    data = b"".join(hmac.digest(secret, b"key " + text.encode(), "sha256") for text in texts)
    mark = hmac.digest(secret, b"salt", "sha256")[:MARK_BYTES]
    hashes = np.frombuffer(data, np.uint8).reshape(n, KEY_BYTES)
    return HashedKeys(hashes, np.frombuffer(mark, np.uint8))


def _text(key: Any) -> str:
    """One spelling of a key."""
    if isinstance(key, str) and key:
        return composed(key)
    if not isinstance(key, bool) and (is_integer(key) or (is_real(key) and key == key // 1)):
        return str(int(key))
    raise ValueError("keys must be strings or whole numbers, none of them missing.")


@dataclass(frozen=True, eq=False)
class SiteRows:
    """Rows of a site with what belongs to them, where ``load_rows`` returns more than rows.

    Attributes
    ----------
    X : {array-like, sparse matrix} of shape (n, d)
        Rows; of a data frame the column names are used.
    sample_weight : array-like of shape (n,) or None
        Weight of each row; None: 1. Integer weights equal repeated rows. Their sum is at least 1; a
        row of weight zero does not count for ``min_rows``.
    keys : array-like of shape (n,) or None
        Of sites that own columns: what names a row at all sites, strings or whole numbers, each
        once. 7 and "7" are the same key.
    salt : bytes, str or None
        With keys: the secret of at least 16 bytes that they are hashed with. The owners of the
        sites agree on it among themselves, for instance on ``secrets.token_bytes(32)``. It is read
        from a file at the site: the app and its run configuration come from the server.

    columns : sequence of str or None
        What the columns are called, where X is no data frame.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import DistributedPCA
    >>> from fedpca_sklearn.engines.flower import SiteRows, client_app
    >>> def load_rows(context):
    ...     X, y = load_digits(return_X_y=True)
    ...     return SiteRows(X, sample_weight=1 + y)
    >>> app = client_app(load_rows, DistributedPCA(5))
    """

    X: Any
    sample_weight: Any = None
    keys: Any = None
    salt: bytes | str | None = None
    columns: Sequence[str] | None = None


@dataclass(frozen=True, eq=False)
class AskedRows:
    """Checked rows that a question is about.

    Attributes
    ----------
    X : ndarray or sparse array of shape (n, d), or SiteMoments
    columns : list of str or None
    weight : ndarray of shape (n,) or None
    keys : HashedKeys or None
    over : bool
        Whether the batch that was asked for is not there; the rows are those of the last one.
    """

    X: Any
    columns: list[str] | None
    weight: np.ndarray | None
    keys: HashedKeys | None
    over: bool = False

    def check_enough(self, min_rows: int) -> None:
        """Raise unless enough rows count for something."""
        w = self.weight
        if (self.X.shape[0] if w is None else np.count_nonzero(w)) < min_rows:
            raise RefusedError(f"fewer than min_rows={min_rows} rows")
        if w is not None and w.sum() < 1:
            raise RefusedError("sample_weight has a sum below 1")

    def answer(self, task: Task, site: Site, arguments: list[np.ndarray]) -> dict[str, Any]:
        """Arrays that the site sends, by name."""
        if self.over:
            return {OVER: np.ones(1)}
        given = {"who": site, "weight": self.weight, "keys": self.keys, "columns": self.columns}
        given |= {name: getattr(site.policy, name) for name in ("min_rows", "min_rows_of_pattern")}
        _, names = taken_by(task.work)
        for name, what in {"weight": "sample_weight", "keys": "keys"}.items():
            if given[name] is not None and name not in names:
                raise RefusedError(f"the estimator takes no {what}")
        more = {name: given[name] for name in names & given.keys()}
        if arguments:
            shape = (0, len(self.X.mean)) if task.reads == MOMENTS else self.X.shape
            task._check(arguments, shape)
        return task.work(site.name, self.X, *arguments, **more)


def asked_rows(
    loaded: Any, task: Task, number: int | None, common: Any, public: Iterable[Any]
) -> AskedRows:
    """Rows that a question is about, of what ``load_rows`` returned.

    Parameters
    ----------
    loaded : object
        Rows, `SiteRows`, or an iterable of either.
    task : Task
    number : int or None
        Of the batch.
    common : ndarray of shape (n, 32), uint8, or None
        Hashed keys of the rows.
    public : iterable
        What the server knows, and what is therefore no salt.
    """
    checked = map(partial(_checked, task=task, public=public), _parts(loaded))
    parts = checked if task.batch_rows is None else _cut(checked, task.batch_rows)
    if number is not None or task.batch_rows is not None:
        part = None
        for i, part in enumerate(parts):
            if i == (number or 0):
                return part
        if part is None:
            raise RefusedError("there are no rows")
        return replace(part, over=True)
    rows = _stacked(list(parts))
    if common is None:
        return rows
    own: Any = rows.keys
    return replace(rows, X=rows.X[own.positions(common)], keys=None)


def _parts(loaded: Any) -> Iterator[SiteRows]:
    """Batches of a site; rows that come in one piece are one."""
    several = isinstance(loaded, (list, tuple)) and loaded and isinstance(loaded[0], SiteRows)
    if not several:
        loaded = iter_batches(loaded) if is_stream(loaded) else [loaded]
    for part in loaded:
        yield part if isinstance(part, SiteRows) else SiteRows(part)


def _checked(part: SiteRows, task: Task, public: Iterable[Any]) -> AskedRows:
    """Rows, names, weights and hashed keys of a batch."""
    columns = part.columns
    if columns is None and not isinstance(part.X, np.ndarray):
        columns = _get_feature_names(as_rows(part.X))
    X = check_rows(in_numpy(part.X) if task.missing else part.X, allow_nan=task.missing)
    weight = check_weight(part.sample_weight, X.shape[0])
    keys = None if part.keys is None else hashed_keys(part.keys, part.salt, X.shape[0], public)
    if keys is None and (task.matched or "keys" in taken_by(task.work)[1]):
        raise RefusedError("rows without keys cannot be matched with those of other sites")
    return AskedRows(X, None if columns is None else list(map(str, columns)), weight, keys)


def _stacked(parts: list[AskedRows]) -> AskedRows:
    """All batches as one."""
    if not parts:
        raise ValueError("load_rows must return a batch at least, got none.")
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    for part in parts[1:]:
        if (part.columns, part.X.shape[1]) != (first.columns, first.X.shape[1]):
            raise ValueError("load_rows must return batches with the same columns.")
    blocks = [part.X for part in parts]
    X = sp.vstack(blocks, format="csr") if any(map(sp.issparse, blocks)) else np.vstack(blocks)
    weight = None
    if any(part.weight is not None for part in parts):
        ones = (np.ones(part.X.shape[0]) if part.weight is None else part.weight for part in parts)
        weight = np.concatenate(list(ones))
    if any(part.keys is not None for part in parts):
        raise ValueError("keys need rows in one piece.")
    return AskedRows(X, first.columns, weight, None)


def _cut(parts: Iterator[AskedRows], size_of: Callable[[int], int]) -> Iterator[AskedRows]:
    """Batches of as many rows as a task takes of d columns; what is left at the end waits."""
    waiting: list[AskedRows] = []
    found = 0
    for part in parts:
        rows = _stacked([*waiting, part])
        n, size = rows.X.shape[0], size_of(rows.X.shape[1])
        for end in range(size, n + 1, size):
            yield replace(rows, X=rows.X[end - size : end])
        waiting, found = [replace(rows, X=rows.X[n - n % size :])], found + n // size
    if waiting and not found:
        raise RefusedError(f"a batch has {size} rows, there are fewer; batch_size says how many")


def dense(X: Any) -> np.ndarray:
    """Rows as a dense array in double precision."""
    return np.asarray(X.toarray() if sp.issparse(X) else X, dtype=np.float64)
