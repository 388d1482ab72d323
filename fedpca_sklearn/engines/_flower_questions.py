"""Questions that a site answers, counted and checked before it works."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._kernels import linalg
from .._kernels.tolerances import GIVEN_BASIS_TOL
from ._flower_messages import BadMessageError, read_array
from ._flwr import ConfigRecord, Context, Message
from ._site_policy import RefusedError
from ._site_privacy import Site

# Times that a run may begin: once, and again where the server lost another site.
BEGINNINGS = 3
# Records of the site's own state, which Flower keeps between the messages of a run.
RUN, _ASKED = "fedpca_sklearn", "fedpca_sklearn.asked"


@dataclass(frozen=True)
class Task:
    """What a site does about one kind of question.

    Attributes
    ----------
    work : callable
        ``work(site, X, *arguments)`` returns arrays by name. Arguments are finite arrays; it raises
        `RefusedError` for those it should not be asked.
    times : int
        Questions of this kind before the server has to begin again.
    fixed : int or None
        Position of an argument that stays the same until then.
    """

    work: Callable
    times: int = 1
    fixed: int | None = None

    def answer(self, site: Site, X: Any, arguments: list[np.ndarray]) -> dict[str, Any]:
        """What is sent, by name.

        Parameters
        ----------
        site : Site
            Who is asked, and what it has released.
        X : {ndarray, sparse matrix} of shape (n, d)
            Its rows.
        arguments : list of ndarray
            Those of the question.

        Returns
        -------
        arrays : dict of str to array-like
            The answer.
        """
        return self.work(site.name, X, *arguments)


def nonce_of(message: Message) -> str:
    """Random text of a question, which its answer has to repeat."""
    nonce = message.content.config_records.get("config", ConfigRecord()).get("nonce")
    if not isinstance(nonce, str) or not 0 < len(nonce) <= 64:
        raise RefusedError("a question needs a nonce of 1 to 64 characters")
    return nonce


def arguments_of(message: Message, task: Task) -> list[np.ndarray]:
    """Arguments of a question, as many as its kind has."""
    sent: Mapping[str, Any] = message.content.array_records.get("arguments", {})
    n = len(inspect.signature(task.work).parameters) - 2  # besides the site and its rows
    if set(sent) != {str(i) for i in range(n)}:
        raise RefusedError(f"a question of this kind has {n} arguments, got {len(sent)}")
    arguments = []
    for i in range(n):
        try:
            arguments.append(read_array(sent[str(i)]))
        except BadMessageError as error:
            raise RefusedError(f"argument {i} is {error}") from None
    return arguments


def count_question(context: Context, tasks: dict[str, Task], kind: str) -> None:
    """Count a question before it is read; one of the first kind begins a new fit.

    Raises
    ------
    RefusedError
        If the run has used up its questions of this kind, or its beginnings.
    """
    records = context.state.config_records
    run: dict[str, Any] = dict(records.get(RUN, {}))
    asked: dict[str, Any] = dict(records.get(_ASKED, {}))
    if run.get("id") != str(context.run_id):  # a series of runs shares one state
        run, asked = {"id": str(context.run_id), "begun": 0}, {}
    if kind == next(iter(tasks)):
        if run["begun"] == BEGINNINGS:
            raise RefusedError(f"a run begins at most {BEGINNINGS} times")
        run, asked = {"id": run["id"], "begun": run["begun"] + 1}, {}
    asked[kind] = asked.get(kind, 0) + 1
    context.state[RUN], context.state[_ASKED] = ConfigRecord(run), ConfigRecord(asked)
    if asked[kind] > tasks[kind].times:
        raise RefusedError(f"more than {tasks[kind].times} questions of the kind {kind!r}")


def hold_fixed(context: Context, task: Task, arguments: list[np.ndarray]) -> None:
    """Raise if the argument that stays the same in a run is another one than before."""
    if task.fixed is None:
        return
    argument = arguments[task.fixed]
    digest = hashlib.sha256(repr(argument.shape).encode() + argument.tobytes()).hexdigest()
    run = context.state.config_records[RUN]
    if run.setdefault("fixed", digest) != digest:
        raise RefusedError(f"argument {task.fixed} must stay the same until the server begins anew")


def check_mean(mean: np.ndarray, d: int, center: bool) -> None:
    """Raise unless a vector is a mean of rows with d columns."""
    if mean.shape != (d,):
        raise RefusedError(f"the mean must have shape ({d},), got {mean.shape}")
    if not center and mean.any():
        raise RefusedError("the mean must be zero with center=False")


def check_basis(V: np.ndarray, d: int, rank: int) -> None:
    """Raise unless the rows of a matrix are a basis of at most ``rank`` of d directions."""
    if V.ndim != 2 or V.shape[1] != d or len(V) > rank:
        raise RefusedError(f"the basis must have shape (k, {d}) with k <= {rank}, got {V.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        error = linalg.orthonormality_error(V)
    if not error <= GIVEN_BASIS_TOL:
        raise RefusedError(f"the basis must have orthonormal rows, they are off by {error:.1e}")
