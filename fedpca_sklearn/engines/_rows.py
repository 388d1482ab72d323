"""What a site has: its rows, with weights and keys, whole or in batches."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import _get_feature_names

from .._base.sources import is_stream, iter_batches
from .._validation.arrays import in_numpy
from .._validation.checks import check_rows, check_weight, is_integer, is_real
from .._validation.containers import as_rows
from .._validation.feature_names import composed
from ._messages import OVER
from ._questions import Question, RefusedError, Task, taken_by
from ._site_policy import Site

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
        if not np.array_equal(sorted_keys(common), common):
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
    return HashedKeys(
        np.frombuffer(data, np.uint8).reshape(n, KEY_BYTES), np.frombuffer(mark, np.uint8)
    )


def _text(key: Any) -> str:
    """One spelling of a key."""
    if isinstance(key, str) and key:
        return composed(key)
    if not isinstance(key, bool) and (is_integer(key) or (is_real(key) and key == key // 1)):
        return str(int(key))
    raise ValueError("keys must be strings or whole numbers, none of them missing.")


def sorted_keys(hashes: np.ndarray) -> np.ndarray:
    """Hashed keys in an order that tells nothing about that of the rows, each once."""
    return np.unique(hashes, axis=0)


def common_keys(of_sites: Sequence[np.ndarray]) -> np.ndarray:
    """Hashed keys that all sites have, sorted, of shape (n, 32); a site has none twice."""
    found, n = np.unique(np.concatenate(of_sites), axis=0, return_counts=True)
    return found[n == len(of_sites)]


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


_WITHOUT_KEYS = "rows without keys cannot be matched with those of other sites"


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
        given = {
            **{"who": site, "weight": self.weight, "keys": self.keys, "columns": self.columns},
            "min_rows": site.policy.min_rows,
            "min_rows_of_pattern": site.policy.min_rows_of_pattern,
        }
        _, names = taken_by(task.work)
        for name, what in {"weight": "sample_weight", "keys": "keys"}.items():
            if given[name] is not None and name not in names:
                raise RefusedError(f"the estimator takes no {what}")
        if "keys" in names and self.keys is None:
            raise RefusedError(_WITHOUT_KEYS)
        more = {name: given[name] for name in names & given.keys()}
        return task.work(site.name, self.X, *arguments, **more)


def asked_rows(
    loaded: Any, task: Task, question: Question, public: Iterable[Any] = ()
) -> AskedRows:
    """Rows that a question is about, of what ``load_rows`` returned.

    Parameters
    ----------
    loaded : object
        Rows, `SiteRows`, or an iterable of either.
    task : Task
    question : Question
    public : iterable
        What the server knows, and what is therefore no salt.
    """
    checked = map(partial(_checked, task=task, public=public), _parts(loaded))
    parts = checked if task.batch_rows is None else _cut(checked, task.batch_rows)
    if question.batch is not None or task.batch_rows is not None:
        part = None
        for i, part in enumerate(parts):
            if i == (question.batch or 0):
                return part
        if part is None:
            raise RefusedError("there are fewer rows than a batch has")
        return replace(part, over=True)
    rows = _stacked(list(parts))
    if question.keys is None:
        return rows
    if rows.keys is None:
        raise RefusedError(_WITHOUT_KEYS)
    return replace(rows, X=rows.X[rows.keys.positions(question.keys)], keys=None)


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
    for part in parts:
        rows = _stacked([*waiting, part])
        n, size = rows.X.shape[0], size_of(rows.X.shape[1])
        for end in range(size, n + 1, size):
            yield replace(rows, X=rows.X[end - size : end])
        waiting = [replace(rows, X=rows.X[n - n % size :])]


def dense(X: Any) -> np.ndarray:
    """Rows as a dense array in double precision."""
    return np.asarray(X.toarray() if sp.issparse(X) else X, dtype=np.float64)
