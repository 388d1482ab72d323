"""A channel for clients that may lie: sums of the answers of those who are not suspects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import scipy.linalg

from .._validation.checks import Interval
from ..communication import Federation, PerfectChannel
from ..federated import _weighted_merges as merges
from ..federated._lack_of_fit import warn_of_suspects
from ..streaming import StreamingPCA
from ..summary import Subspace, merge_subspaces
from ._queries import Client, TimesScatter, Variances

# Rounding that is allowed: a share of the scatter, above what rows in float32 need, and so many
# roundings of a mean.
_SHARE, _ROUNDINGS = 1e-3, 8.0


class RobustSum(PerfectChannel):
    """Sums over the clients that are not suspects, where a server sees each message.

    In a first round each client sends the summary of its rows that it would send to `FederatedPCA`,
    and the server compares these as `RobustMerge` does. Suspects take no part in the rounds. Who
    does is held to its summary: an answer that no rows with this summary can have given is left out
    with its client, and the rounds begin again without it. The result is that of the clients that
    are left, to ``tol``.

    It is the opposite of a sum that hides its parts: secure aggregation, and channels over the air,
    leave nothing to compare; a mechanism is refused. For `FederatedPowerPCA` with
    ``local_steps=1``; other estimators refuse it, whose clients send what is not alike.

    Parameters
    ----------
    max_bad : int or None, default=None
        Clients that may be wrong, at most, fewer than half. None: as many as can be. Those whose
        answers contradict their summaries are left out beyond that.

    Attributes
    ----------
    evidence_ : dict
        Position of a client -> `SiteEvidence` of its summary. `FederatedPowerPCA` shows it by
        label, and `SuspectsDisplay` draws it.
    suspects_ : dict
        The same for those that are beyond a limit, and for those that contradicted their summaries,
        which may be within the limits.

    Warns
    -----
    UserWarning
        Of suspects that may be honest, as `RobustMerge` does, by the summaries of the first round.

    See Also
    --------
    RobustMerge : The same for one exchange of summaries, with the limits.

    Notes
    -----
    The summary of a client has components A, singular values s, and the scatter T. So its scatter
    matrix is S = A' s^2 A + R with R of no negative eigenvalue and of the trace T - sum s^2, and
    its answer V S to the basis V must leave such an R: V R V' is symmetric, with no negative
    eigenvalue, of at most that trace, and ||V R||^2 is at most the traces of R and V R V'
    multiplied. No honest rows fail, however unlike others they are; a thousandth of the scatter is
    allowed for rounding. Up to 256 features summaries keep all directions, R is zero, and an answer
    is known before it comes. So a liar can do no more than one who lies to `RobustMerge`, but for
    what its summary has cut.

    A client that claims too many rows, but is right otherwise, is a suspect and stays, with as much
    weight as others have. Instead of its mean a client first sends a summary: up to 256 features d
    (d + 1) / 2 + 2 d + 2 floats, p = d, and above p (d + 1) + 2 d + 2 with p = 2.25 r, at least r +
    10, for r components. The server holds them, O(s p d), and works O(s^2 r p d) to
    compare s clients and O(s p d r) in a round.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import FederatedPowerPCA, RobustSum, subspace_distance
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((1000, 8)) * [5, 4, 1, 1, 1, 1, 1, 1]
    >>> site = np.repeat(np.arange(10), 100)
    >>> X[site == 3] = 10 * X[site == 3, ::-1]
    >>> for channel in None, RobustSum():
    ...     pca = FederatedPowerPCA(2, channel=channel, random_state=0).fit(X, clients=site)
    ...     print(round(subspace_distance(pca.components_, np.eye(2, 8)), 2))
    1.0
    0.02
    >>> {label: np.round(found, 1).tolist() for label, found in pca.suspects_.items()}
    {3: [6.8, 6.3, 3.5, 0.0]}
    """

    _parameter_constraints: dict = {"max_bad": [Interval(Integral, 0, None, closed="left"), None]}

    dropout = 0.0
    compares_clients = True

    def __init__(self, max_bad: int | None = None):
        self.max_bad = max_bad

    @property
    def suspects_(self) -> dict[int, merges.SiteEvidence]:
        """Evidence of those that are beyond a limit, or contradicted themselves."""
        out = self._shares == 0
        return {i: one for i, one in self.evidence_.items() if max(one) > 1 or out[i]}

    def ask(self, federation: Federation, clients: Sequence[Client], n_components: int) -> None:
        """Compare the summaries of the clients, which they send in a round.

        Parameters
        ----------
        federation : Federation
            Asks them, and logs the round.
        clients : sequence of Client
            Those with rows, in the order of later messages.
        n_components : int
            Directions that are compared.
        """
        calls = ((client.label, client, n_components) for client in clients)
        parts = list(federation.map(_summary, calls))
        federation.log.record(parts)
        some = [i for i, part in enumerate(parts) if part.n_samples > 0]
        bad = merges.most_bad(self.max_bad, len(some), f"the {len(some)} clients")
        compared = [parts[i] for i in some]
        found = merges.evidence(compared, n_components, bad)
        self.evidence_ = dict(zip(some, found, strict=True))
        self._parts, self._shares, self.begins_again = parts, np.ones(len(parts)), False
        self._shares[some] = merges.shares_trusted(compared, found, bad)
        trusted = merges.trusted_parts(compared, self._shares[some])
        if len(trusted) < len(compared):
            merged = merge_subspaces(trusted, n_components)
            warn_of_suspects(compared, trusted, merged, self.suspects_.values())

    def mean(self) -> np.ndarray:
        """Mean of the rows of those that take part, from their summaries.

        Returns
        -------
        mean : ndarray of shape (d,)
            About which scatter is taken.
        """
        counts = self._shares * [part.n_samples for part in self._parts]
        means = np.stack([part.mean for part in self._parts])
        if not counts.any():
            raise ValueError(f"channel={self!r}: each client has contradicted its own summary.")
        return counts @ means / counts.sum()

    def present(self, n_clients, n_before, rng):
        """Those that are not left out; see `Channel.present`."""
        return self._shares > 0

    def taken(self, question: Any, answers: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Answers that do not contradict the clients' summaries; see `Channel.taken`."""
        asked = np.flatnonzero(self._shares > 0)
        parts = [self._parts[i] for i in asked if self._parts[i].n_samples > 0]
        variances = [_scatter(part, question.mean) / part.n_samples for part in parts]
        typical = float(np.median(variances)) if variances else 0.0
        for i, answer in zip(asked, answers, strict=True):
            if contradicts(self._parts[i], question, answer, typical):
                self._shares[i], self.begins_again = 0.0, True
            else:
                yield self._shares[i] * answer


def _summary(label: Any, client: Client, n_components: int) -> Subspace:
    """What a client of `FederatedPCA` would send."""
    pca = StreamingPCA(n_components)
    return pca.partial_fit(client.rows, sample_weight=client.weight).subspace_


# -------------------------------------------------------------------- answers and summaries


def contradicts(
    part: Subspace, query: TimesScatter | Variances, answer: np.ndarray, typical: float
) -> bool:
    """Whether no rows with the summary ``part`` have the answer.

    What is below a thousandth of as many rows of the ``typical`` variance is not looked at.
    """
    V, n, shift = query.V, part.n_samples, part.mean - query.mean
    scatter = _scatter(part, query.mean)
    length = scipy.linalg.norm(part.mean, check_finite=False)
    rounding = _ROUNDINGS * float(np.finfo(part.components.dtype).eps * length)
    slack = n * max(_SHARE * max(scatter / max(n, 1.0), typical), rounding * rounding)
    cut = max(part.scatter - float(part.singular_values @ part.singular_values), 0.0)
    said = (part.components @ V.T).T * part.singular_values**2 @ part.components
    said += n * np.outer(V @ shift, shift)
    unit = slack or 1.0  # squares of what is huge would overflow
    cut, slack = cut / unit, slack / unit
    with np.errstate(over="ignore", invalid="ignore"):  # as liars can make it
        if isinstance(query, Variances):
            inner, stated = answer[:-2].reshape(len(V), len(V)), answer[-2:]
            agree = abs(stated[0] - scatter) / unit <= slack and abs(stated[1] - n) <= _SHARE * n
            return not (agree and _is_part_of((inner - said @ V.T) / unit, cut, slack))
        rest = (answer - said) / unit
        within = rest @ V.T
        most = cut * max(float(np.trace(within)), 0.0) + len(V) * slack * (cut + slack)
        return not (np.sum(rest**2) <= most and _is_part_of(within, cut, slack))


def _scatter(part: Subspace, mean: np.ndarray) -> float:
    """Scatter about a mean that need not be the part's own."""
    return part.scatter + part.n_samples * float(np.sum((part.mean - mean) ** 2))


def _is_part_of(within: np.ndarray, trace: float, slack: float) -> bool:
    """Whether V R V' is what it is, for an R without negative eigenvalues of a trace."""
    if not (np.isfinite(within).all() and (np.abs(within - within.T) <= slack).all()):
        return False
    values = np.linalg.eigvalsh((within + within.T) / 2)
    return bool(values[0] >= -slack and values.sum() <= trace + len(values) * slack)
