"""PCA of rows that belong to clients: local summaries, merged once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from inspect import signature
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from .._base.adjusting import AdjustingMixin
from .._base.callbacks import has_callbacks
from .._base.fitted import LEARNT, Learnt, show_in
from .._kernels.device_rows import in_memory
from .._kernels.sizes import SMALL_DIMENSION, auto_oversampling
from .._kernels.tame import is_tame_state
from .._kernels.too_large import largest_named
from .._validation.arrays import PLACE
from .._validation.checks import check_at_most_features, number_or_none
from .._validation.intervals import InstanceOf, Interval
from ..communication._federation import clients_named, log_fit
from ..privacy import SecondMomentMechanism
from ..streaming import StreamingPCA
from ..summary import Subspace
from ..summary._merging import check_subspaces, checked_with_place, tighter_fraction
from ..summary._metric import alike, merged
from ..summary._updating import lacks_directions
from ._available_pairs import AvailablePairs, MissingStrategy
from ._clients import StreamingClientsTransformer, label_order, rows_of, shards_of
from ._conditional_fill import ConditionalFill
from ._local_fit import (
    Estimators,
    Site,
    Summarised,
    fit_site,
    labels_of_sites,
    with_label_as_site,
)
from ._merge import LastMerge, MergeStrategy, SubspaceMerge, merge_in_rounds
from ._pairs_of_clients import PairsOfClientsMixin
from ._private import ABOVE_NOISE, SpendsPrivacy, release_of_clients, show_above_noise
from ._small_clients import keeps_summaries, need_no_units, small_sites

__all__ = ["FederatedPCA"]


# Numbers of rows, with weights, that add up to a number whose products with variances are finite.
_USUAL_WEIGHTS = 1e-30, 1e30


class Merge(NamedTuple):
    """Clients whose summaries are merged when an attribute of the merge is read.

    ``new``: what the next client does, if rows of clients need no check but that of their numbers.
    """

    strategy: MergeStrategy
    clients: dict[Any, Any]
    n_rows: int
    new: Summarised | None


def _sorted(labels: Iterable[Any]) -> list[Any]:
    return sorted(labels, key=label_order)


def _clients_can_partial_fit(self: FederatedPCA) -> bool:
    goes_on = self.estimator is None or hasattr(self.estimator, "partial_fit")
    return goes_on and not isinstance(self.missing, ConditionalFill)


class FederatedPCA(PairsOfClientsMixin, SpendsPrivacy):
    """Principal component analysis of rows that belong to several clients, in one round or a few.

    Every client (site) summarises its own rows, and sends the summary, a `Subspace`, to a server,
    which merges the summaries. No row leaves its client. With at most 256 features the result is
    PCA of all rows in one place, up to rounding, however they are split among clients. `fit`
    simulates this in one process: ``clients`` says whose each row is. Real sites send files, which
    `from_subspaces` merges, or are connected by Flower (`fedpca_sklearn.engines.flower`).

    Parameters
    ----------
    n_components : int, float, "parallel", "held-out", "mle", "above_noise" or None, default=None
        As in `StreamingPCA`. "parallel", "held-out" and "mle" count the components of all rows, for
        which clients send all directions; they are refused with a ``mechanism``, and but for
        "held-out" and `ConditionalFill` with ``missing``.
        "above_noise", with a ``mechanism``: ``n_components_above_noise_``, at least one.
    estimator : estimator or None, default=None
        Fitted by each client: `StreamingPCA`, or any PCA-like estimator, such as scikit-learn's
        PCA, IncrementalPCA and TruncatedSVD. Its ``n_components`` bounds what a client sends and
        should exceed the one here; None in a `StreamingPCA` without ``rank_rule`` is the one here
        where the ``merge`` cuts every node to it (``truncate=True``). None: `StreamingPCA` with all
        directions up to 256 features, and with ``max(10, 1.25 n_components)`` extra ones beyond.
    merge : MergeStrategy or None, default=None
        How summaries are merged. None: ``SubspaceMerge()``, all at once.
        ``SubspaceMerge(fan_in=2)``: in a binary tree. ``SubspaceMerge(center="site")``: of rows
        minus their client's mean.
    mechanism : AnalyzeGauss, ModSuLQ, StreamingModSuLQ or None, default=None
        Differential privacy: clients clip their rows and send noisy summaries. Then ``estimator``
        and ``sample_weight`` must be None.
    missing : AvailablePairs, ConditionalFill or None, default=None
        How missing entries (NaN) are treated. None: they are refused, unless ``estimator`` is a
        tracker. Not with a ``mechanism``, refinements, ``scale`` or ``partial_out``.
        `AvailablePairs` takes at most 256 columns, and no ``estimator`` or ``merge``.
    n_refinements : int, default=0
        Rounds of `refine` at the end of `fit`. `partial_fit` makes none, as it does not have the
        rows of earlier calls. With a ``tol`` this is the largest number of rounds, and 0 means 20.
    tol : float or None, default=None
        Refine until ``subspace_error_bound_`` is at most this; a ConvergenceWarning tells if the
        rounds did not suffice.
    n_clients : int, default=2
        If ``clients`` is not given, the rows are cut into this number of contiguous shards, each of
        which counts as a client. Of a dask.array every row chunk is a client instead, and is fitted
        where it is.
    n_jobs : int or None, default=None
        Clients fitted at the same time; threads, unless ``joblib.parallel_config`` says otherwise.
    random_state : int, RandomState instance or None, default=None
        Seeds sub-estimators that have a ``random_state``, each client differently, and the noise
        of a mechanism. Noise protects only from those who do not know its seed, and the same
        integer in two fits repeats the noise.
    scale : bool, default=False
        True: PCA of the correlation matrix of all rows, as in `StreamingPCA`. Not with a
        ``mechanism``.
    partial_out : str, int or sequence of these, default=None
        Confounders, as in `StreamingPCA`; their effects are those over all rows. Not with a
        ``mechanism``.

    Attributes
    ----------
    components_, mean_, singular_values_, explained_variance_, explained_variance_ratio_, \
            noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_, scale_, \
            confounders_, confounder_effects_
        As in `StreamingPCA`, for all rows of all clients.
    clients_ : list
        Labels of the clients seen so far, sorted.
    estimators_ : mapping
        Label -> fitted sub-estimator; empty with a mechanism. By default a client keeps its summary
        only, and its estimator is made of it when it is looked up.
    summaries_ : dict
        Label -> `Subspace` that the client has sent last, for instance for `jackknife_intervals`;
        not there with ``trust="sum"``, and `PairMoments` with ``missing=AvailablePairs()``.
    noise_variances_, suspects_, evidence_ : dict
        Label -> what the merge found out about the client. Only with `NoiseAwareMerge`,
        `RobustMerge`, or another strategy that keeps such attributes.
    subspace_error_bound_ : float
        The sine of the largest angle between the components and those of all rows at once is at
        most this; inf where nothing is known. It is computed from what clients have cut, if their
        estimators are `StreamingPCA` or scikit-learn's PCA, IncrementalPCA or TruncatedSVD, without
        a mechanism and `ProjectionAverage`. Summaries from elsewhere are supposed to have been cut
        in this way. After `refine` it is computed from products instead.
    explained_variance_interval_ : ndarray of shape (n_components_, 2)
        The variance of all rows at once along a component lies between these two.
    n_refinements_ : int
        Number of rounds of `refine` since the summaries were merged.
    negative_variance_ : float
        With ``missing``: size of the most negative eigenvalue, see `AvailablePairs`.
    privacy_spent_ : PrivacySpent
        With a mechanism: (epsilon, delta) of the client that has spent most, over all calls of
        this fit. Calls that failed after clients had computed their messages count too. Another
        ``fit``, a copy and a clone start accounts of their own, unless the mechanism has a
        `PrivacyLedger`; then it is what the ledger says.
    n_components_above_noise_ : int
        With a mechanism: components whose eigenvalue in the released matrix is beyond what the
        noise, whose size is known, makes of nothing in 97 of 100 cases. It follows
        from the release and costs nothing. Of several releases fewer are counted, as their edge is
        known less well. Of one, a `PrivacyNoiseWarning` names the others that are shown.
    communication_ : CommunicationLog
        What was sent: k (d + 1) + 2 d + 2 floats by each client for k directions, once, and what
        refinements send.

    See Also
    --------
    merge_subspaces : The merge by itself.

    Notes
    -----
    Unless ``merge`` says otherwise, the result does not depend on the order of the clients. Where
    clients do not keep all directions, see `StreamingPCA`, it is an approximation; `refine` and
    ``tol`` improve it.

    Federated PCA of Grammenos et al. (2019), section 3: SPCA or SAPCA at the clients, merged
    pairwise or in a tree (DASM), with the mean correction of Bai, Chan and Luk (2005). Clients
    work in time O(n_i d k); the server in O(s k^2 d) a level. Nothing is sent back, unless `refine`
    asks. `partial_fit` merges all summaries again, or with a ``fan_in`` those on the paths of
    clients that changed. Rows that come a few at a time wait at their client, up to 256 kB of them
    or as many as features, and are in all that is read. Pickles and copies hold summaries, no rows.

    The labels ``clients`` are metadata of the rows, like the ``groups`` of a splitter: with
    metadata routing enabled they pass through Pipeline and GridSearchCV without further requests.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.decomposition import PCA
    >>> from fedpca_sklearn import FederatedPCA, subspace_distance
    >>> X, y = load_digits(return_X_y=True)
    >>> federated = FederatedPCA(5).fit(X, clients=y)  # ten clients with one digit each
    >>> pooled = PCA(5).fit(X)
    >>> federated.explained_variance_.round(3)
    array([179.007, 163.718, 141.788, 101.1  ,  69.513])
    >>> pooled.explained_variance_.round(3)
    array([179.007, 163.718, 141.788, 101.1  ,  69.513])
    >>> subspace_distance(federated.components_, pooled.components_) < 1e-12
    True

    Sites that cannot share rows fit by themselves, and send a file:

    >>> from fedpca_sklearn import StreamingPCA
    >>> sites = [StreamingPCA(5).fit(X[y == digit]).subspace_ for digit in range(10)]
    >>> FederatedPCA.from_subspaces(sites, 5).explained_variance_.round(3)
    array([179.007, 163.718, 141.788, 101.1  ,  69.513])
    """

    _takes_dask = True
    _takes_arrays = True

    _parameter_constraints: dict = {
        **PairsOfClientsMixin._parameter_constraints,
        "n_components": [
            *StreamingPCA._parameter_constraints["n_components"],
            StrOptions({ABOVE_NOISE}),
        ],
        "estimator": [HasMethods(["fit"]), None],
        "merge": [InstanceOf(MergeStrategy), None],
        "mechanism": [InstanceOf(SecondMomentMechanism, "base.SecondMomentMechanism"), None],
        "missing": [InstanceOf(MissingStrategy, "AvailablePairs", "ConditionalFill"), None],
        "n_refinements": [Interval(Integral, 0, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="neither"), None],
        "random_state": ["random_state"],
        **PairsOfClientsMixin._adjusting_constraints,
    }

    def __init__(
        self,
        n_components: int | float | str | None = None,
        *,
        estimator: Any = None,
        merge: Any = None,
        mechanism: Any = None,
        missing: Any = None,
        n_refinements: int = 0,
        tol: float | None = None,
        n_clients: int = 2,
        n_jobs: int | None = None,
        random_state: Any = None,
        scale: bool = False,
        partial_out: Any = None,
    ):
        self.n_components = n_components
        self.estimator = estimator
        self.merge = merge
        self.mechanism = mechanism
        self.missing = missing
        self.n_refinements = n_refinements
        self.tol = tol
        self.n_clients = n_clients
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.scale = scale
        self.partial_out = partial_out

    # not of estimators, nor of rounds, that take all rows at once
    partial_fit = available_if(_clients_can_partial_fit)(StreamingClientsTransformer.partial_fit)

    @classmethod
    def from_subspaces(
        cls,
        subspaces: Sequence[Subspace],
        n_components: int | float | str | None = None,
        *,
        merge: Any = None,
        scale: bool = False,
        partial_out: Any = None,
    ) -> FederatedPCA:
        """Build a fitted estimator from summaries that were computed elsewhere.

        Where summaries know their ``sites``, two with a site in common are refused, and a warning
        tells if only some know them.

        Parameters
        ----------
        subspaces : sequence of Subspace
            One per site, for instance read with `Subspace.load`.
        n_components : int, float, "parallel", "mle" or None, default=None
            Number of components, or in (0, 1) the share of the variance that they explain, or the
            rule that counts them; None: all that the merged summaries hold. If directions were cut,
            a larger number than that is an error.
        merge : MergeStrategy or None, default=None
            Strategy that makes one summary of all; None: ``SubspaceMerge()``.
        scale : bool, default=False
            As in `FederatedPCA`. Sites need not know, unless they cut directions: the summaries are
            those of the rows. A warning tells if more than 5 % of the variance of scaled columns is
            missing in them, and ten times the share that is missing of the columns as they are.
        partial_out : str, int or sequence of these, default=None
            As in `FederatedPCA`. A warning tells if 5 % of a confounder's variance was cut.

        Returns
        -------
        pca : FederatedPCA
            ``clients_`` are the sites, if all summaries know theirs, or else the positions in the
            list. A later ``partial_fit`` adds clients with other labels, and goes on with more rows
            of these, as `StreamingPCA.from_subspace` does.
        """
        pca = cls(n_components, merge=merge, scale=scale, partial_out=partial_out)
        return pca._from(subspaces)

    def _from(self, subspaces: Sequence[Subspace]) -> Any:
        """The estimator, fitted on summaries."""
        self._check_parameters()
        subspaces, place = checked_with_place(subspaces)
        check_at_most_features(self.n_components, subspaces[0].n_features)
        if not any(s.n_samples > 0 for s in subspaces):
            raise ValueError("subspaces must hold at least one row, all have n_samples=0.")
        self._start()
        self._clients = {
            label: Site(None, max(1, round(s.n_samples)) if s.n_samples > 0 else 0, s)
            for label, s in zip(labels_of_sites(subspaces), subspaces, strict=True)
        }
        self._merge_all()
        beyond = self._beyond_the_summary()
        if beyond is not None:
            raise ValueError(beyond)
        self.clients_ = _sorted(self._clients)
        self.n_features_in_ = subspaces[0].n_features
        if self.subspace_.feature_names is not None:
            self.feature_names_in_ = np.array(self.subspace_.feature_names, dtype=object)
        self._warn_of_another_cut()
        show_in(place, self)
        return self

    def _reset(self) -> None:
        # in order of appearance, so that a tree keeps its shape when clients join
        self._clients = {}
        self._last_merge: LastMerge | None = None
        self._trust: str | None = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.mechanism is not None:
            self.mechanism.validate()
            if isinstance(self.n_components, str) and self.n_components != ABOVE_NOISE:
                raise ValueError(
                    f"n_components={self.n_components!r} takes variances for those of rows, and a "
                    f"mechanism adds noise: give a number, or no mechanism={self.mechanism!r}."
                )
        elif self.n_components == ABOVE_NOISE:
            raise ValueError('n_components="above_noise" needs a mechanism, whose noise it is.')
        self._check_refinement()
        self._check_adjusting()
        asks = isinstance(self.estimator, AdjustingMixin) and self.estimator._asks()
        if asks and not self._asks():
            raise ValueError(
                "estimator must have scale=False and partial_out=None, as clients send summaries "
                f"of the rows as they are, got {self.estimator!r}; FederatedPCA has both."
            )
        if self.merge is not None:
            self.merge.validate()
            if isinstance(self.n_components, str):  # some need a number, and say so
                self.merge.directions_needed(self.n_components)
        if self.mechanism is not None:
            if self.estimator is not None:
                raise ValueError(
                    "estimator must be None with a mechanism, which makes the summaries of "
                    f"clients, got {self.estimator!r}."
                )
            if self.merge is not None:
                self.merge.check_trust(self.mechanism.trust)

    # ---------------------------------------------------------------- the round

    def _step(self, X: Any, weight: Any, shards: list[Any], method: str) -> list[Any]:
        trust = None if self.mechanism is None else self.mechanism.trust
        if self._clients and trust != self._trust:
            raise ValueError(
                f"mechanism must not change between calls of partial_fit from trust="
                f"{self._trust!r} to {trust!r} (None: no mechanism); call fit."
            )
        self._trust = trust
        if trust is not None:
            X = in_memory(X)
            self._clients, terms = release_of_clients(self, X, weight, shards, method == "fit")
            self._merge_all()
            n_calls = self._accounts.n_calls
            message = show_above_noise(self, terms, terms.n_shares, n_calls)
            if n_calls == 1:
                self._noise_message = message
            return [label for label, _ in shards]
        if method == "fit":
            self.__dict__.pop("_accounts", None)
        seen = self._clients
        client = self._client(X, method, weight is not None)
        unseen = [shard for shard in shards if shard[0] not in seen]
        new = [label for label, _ in unseen]
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=len(seen) + len(new))
        seeds = dict(zip(new, seeds[len(seen) :], strict=True))  # those before went to old clients
        small = {}
        at_once = weight is None and isinstance(X, np.ndarray) and not has_callbacks(self)
        if unseen and at_once and isinstance(client, Summarised):
            small = small_sites(client, X, unseen)
        others = [shard for shard in shards if shard[0] not in small]
        calls = (
            (label, seen.get(label), client, seeds.get(label), rows, w, method)
            for label, rows, w in rows_of(X, weight, others)
        )
        fitted = dict(self._map(fit_site, calls, others))
        if small:  # in the order in which they appear
            fitted = {label: small.get(label) or fitted[label] for label, _ in shards}
        if any(client.summary.sites for client in seen.values()):
            fitted = {label: with_label_as_site(label, site) for label, site in fitted.items()}
        self._clients = {**seen, **fitted}
        self._merge_all()
        if self.missing is None:
            self._warn_of_cut()
        if isinstance(self.estimator, AdjustingMixin) and not self.estimator._asks():
            self._warn_of_another_cut()
        if method == "fit":
            self._refine_as_asked(lambda: self._multiplies(X, weight, shards))
        return list(fitted)

    def _client(self, X: Any, method: str, weighted: bool) -> Summarised | BaseEstimator:
        """What each client does with its rows: takes them into a summary, or fits an estimator."""
        estimator, d = self.estimator, X.shape[1]
        if self._takes_the_rank(estimator):
            estimator = clone(estimator).set_params(n_components=self._rank_of_clients(d))
        elif estimator is None:
            n_components = self._rank_of_clients(d)
            options = {"oversampling": self._beyond(n_components, d), **self._adjustments(d)}
            estimator = StreamingPCA(n_components, **options)
        name = type(estimator).__name__
        if weighted and "sample_weight" not in signature(getattr(estimator, method)).parameters:
            raise TypeError(f"sample_weight was given, but {name}.{method} does not take it.")
        if not keeps_summaries(estimator, d):
            return estimator
        clients = Summarised(clone(estimator) if estimator is self.estimator else estimator)
        return clients if need_no_units(clients, X) else estimator

    def _rank_of_clients(self, d: int) -> int | float | None:
        """Directions, or share of the variance, that clients of this class look for."""
        n_components = self._directions_needed()
        if isinstance(n_components, float):
            return tighter_fraction(n_components)
        if n_components is None:
            return None
        return min(n_components, d - self._with_confounders(0))

    def _takes_the_rank(self, estimator: Any) -> bool:
        """Whether the rank that every node is cut to is that of the clients' blocks, too."""
        if not getattr(self.merge, "truncate", False) or not isinstance(estimator, StreamingPCA):
            return False
        return estimator.n_components is None and estimator.rank_rule is None

    @staticmethod
    def _beyond(n_components: int | float | None, d: int) -> int | Literal["auto"]:
        """Extra directions of a client: as many as are worth their bytes in a message."""
        if not isinstance(n_components, Integral) or d <= SMALL_DIMENSION:
            return "auto"
        return auto_oversampling(n_components)

    def _directions_needed(self) -> int | float | None:
        if self.merge is None:
            return number_or_none(self.n_components)
        return number_or_none(self.merge.directions_needed(self.n_components))

    def _beyond_the_summary(self) -> str | None:
        if not any(lacks_directions(client.summary) for client in self._clients.values()):
            return None  # what a merge leaves out of whole summaries is its own
        return super()._beyond_the_summary()

    def _merge_all(self) -> None:
        """Merge what every client has sent and set the fitted attributes."""
        if isinstance(self.missing, AvailablePairs):
            return self._merge_pairs()
        whole = check_subspaces([client.summary for client in self._clients.values()])
        self._refuse_noise(whole)
        strategy = SubspaceMerge() if self.merge is None else clone(self.merge)
        names = partial(clients_named, self._clients)
        n_rows = sum(client.n_rows for client in self._clients.values())
        last = LastMerge(self._last_merge, self.communication_)
        if self._adds_up_later(strategy, whole):
            last.record(whole)
            self.__dict__[LEARNT] = Learnt(Merge(strategy, self._clients, n_rows, self._opened()))
        else:
            with largest_named(names, whole):
                subspace = self._merged(strategy, whole, last)
                above = self.n_components == ABOVE_NOISE  # of all, once they are known
                self._set_fitted(subspace, None if above else self.n_components, n_rows)
        self._last_merge = last.done()
        self._show_findings(strategy)
        estimators: Any = Estimators(self._clients)
        self.estimators_ = estimators
        self.n_refinements_ = 0

    def _adds_up_later(self, strategy: MergeStrategy, whole: list[Subspace]) -> bool:
        """Whether clients send all that they know at once, and nothing in it can be an error."""
        if not strategy._adds_up or self._trust is not None:
            return False
        if self._asks() or isinstance(self.n_components, str):
            return False
        least, most = _USUAL_WEIGHTS
        return all(
            least < summary.n_samples < most
            and is_tame_state(summary.mean, summary.total_variance, summary._dtype)
            for summary in whole
        )

    def _opened(self) -> Summarised | None:
        """What the next client does, if clients keep sums and no parameter is an object."""
        if type(self) is not FederatedPCA or hasattr(self, "feature_names_in_"):
            return None
        last = next(reversed(self._clients.values())).estimator
        simple = self.estimator is None and self.merge is None and self.n_jobs in (None, 1)
        sites = self._clients.values()
        known = simple and all(isinstance(site.estimator, Summarised) for site in sites)
        return last if known else None

    def _settle(self) -> None:
        super()._settle()
        learnt = vars(self)[LEARNT]
        if isinstance(learnt.state, Merge):
            self.__dict__[LEARNT] = Learnt(learnt.state._replace(new=None), learnt.values)

    def _taken_as_before(self, X: Any, clients: Any) -> bool:
        merge = self._state_without_checks()
        if not isinstance(merge, Merge) or merge.new is None or self.n_refinements_:
            return False
        if type(X) is not np.ndarray or X.ndim != 2 or not len(X) or isinstance(clients, str):
            return False
        if X.shape[1] != self.n_features_in_ or X.dtype not in (np.float64, np.float32):
            return False
        with self._unchanged_on_error():
            seen: dict[Any, Any] = self._clients
            after: dict[Any, Any] = {}
            shards = shards_of(len(X), clients, self.n_clients)
            for label, rows in shards:
                before = seen.get(label)
                if before is None and len(shards) > 1:  # many are summarised at once
                    return False
                site = (before.estimator if before else merge.new).after(before, X[rows])
                if site is None:
                    return False
                after[label] = site
            log, now = self.communication_.copy(), {**seen, **after}
            log.record(site.message for site in after.values())
            log.floats_pooled += X.size
            n_rows = merge.n_rows + len(X)
            self.__dict__.update(
                {
                    "_clients": now,
                    "clients_": self.clients_ if len(now) == len(seen) else _sorted(now),
                    "communication_": log,
                    "estimators_": Estimators(now),
                    "_last_merge": LastMerge.of_clients(now),
                    LEARNT: Learnt(merge._replace(clients=now, n_rows=n_rows)),
                }
            )
        log_fit(self, len(after))
        return True

    def _compute(self, merge: Merge) -> dict[str, Any]:
        whole = [client.summary for client in merge.clients.values()]
        subspace = self._merged(merge.strategy, whole, None)
        return self._attributes(subspace, self.n_components, merge.n_rows)

    def _merged(
        self, strategy: MergeStrategy, whole: list[Subspace], last: LastMerge | None
    ) -> Subspace:
        """The merge of the summaries of all clients, in units that fit how rows are adjusted.

        Rounds are recorded in ``last``, unless they have been.
        """
        adjusting = self._adjusting(whole[0].n_features, whole[0].feature_names)
        wanted = number_or_none(self.n_components)
        if strategy._adds_up and adjusting:
            kept = strategy.directions_kept(whole, self._with_confounders(wanted))
            if last is not None:
                last.record(whole)
            return merged(whole, kept, adjusting, wanted)
        sums = last is None or self._trust == "sum"  # which were logged
        last = last or LastMerge()
        summaries, undone = alike(whole, adjusting, wanted, not self._takes_all, last.once)
        sent = {id(s): of for s, of in zip(summaries, whole, strict=True)}

        def record(messages: list[Subspace], receivers: list | None = None) -> None:
            last.record([sent.get(id(message), message) for message in messages], receivers)

        kept = strategy.directions_kept(summaries, self._with_confounders(wanted))
        return undone(
            merge_in_rounds(
                strategy,
                summaries,
                kept,
                kept,
                record=None if sums else record,
                once=last.once,
            )
        )

    def _show_findings(self, strategy: MergeStrategy) -> None:
        """Show what a strategy found of the sites in this merge, by attribute and label."""
        for name in self.__dict__.pop("_findings", ()):
            delattr(self, name)
        labels = [label for label, site in self._clients.items() if site.summary.n_samples > 0]
        found = {
            name: {labels[position]: value for position, value in of_sites.items()}
            for name, of_sites in vars(strategy).items()
            if name.endswith("_")
        }
        self.__dict__.update(found, _findings=tuple(found))

    def _refuse_noise(self, summaries: list[Subspace]) -> None:
        """Raise where variances of rows are asked for, and some summaries have noise in theirs."""
        counted = isinstance(self.n_components, str) and self.n_components != ABOVE_NOISE
        if (counted or self._asks()) and any(s.privacy is not None for s in summaries):
            what = f"n_components={self.n_components!r} takes"
            what = what if counted else "scale and partial_out take"
            raise ValueError(
                f"{what} variances for those of rows, and a summary has the noise of a privacy "
                "mechanism."
            )

    # ---------------------------------------------------------------- who has sent what

    @property
    def summaries_(self) -> dict[Any, Subspace]:
        """What each client has sent last, by its label."""
        check_is_fitted(self)
        if self._trust == "sum":
            raise AttributeError("With trust='sum' only the sum of all clients is known.")
        return {label: self._clients[label].summary for label in self.clients_}

    def remove(self, label: Any) -> Any:
        """Take a client out: the fit is then that of the others, as if it had never come.

        Parameters
        ----------
        label : object
            One of ``clients_``.

        Returns
        -------
        self : FederatedPCA
            Unchanged if an error is raised. What a mechanism has charged stays charged.

        Raises
        ------
        ValueError
            For an unknown label, for the last client, and with ``trust="sum"``, where only the sum
            of all is known.

        Notes
        -----
        The others' summaries are merged anew, so that nothing of the client is left, not even a
        rounding error, nor a refinement. In a tree the merges on its path are made again.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from fedpca_sklearn import FederatedPCA
        >>> X, y = load_digits(return_X_y=True)
        >>> pca = FederatedPCA(5).fit(X, clients=y).remove(3)
        >>> others = FederatedPCA(5).fit(X[y != 3], clients=y[y != 3])
        >>> bool((pca.explained_variance_ == others.explained_variance_).all())
        True
        """
        check_is_fitted(self)
        if self._trust == "sum":
            raise ValueError("trust='sum' knows the sum of all clients only; none can be removed.")
        if label not in self._clients:
            raise ValueError(f"label must be one of clients_, {self.clients_}, got {label!r}.")
        if isinstance(self.missing, ConditionalFill):
            raise ValueError(
                f"remove cannot be with missing={self.missing!r}: the rows of the others were "
                "filled in by what the client's told; fit without it."
            )
        others = {known: site for known, site in self._clients.items() if known != label}
        if not any(site.n_rows for site in others.values()):
            raise ValueError(f"label={label!r} is the last client; nothing would be left.")
        place = vars(self).get(PLACE)
        with self._unchanged_on_error():
            self.communication_ = self.communication_.copy()
            self._clients = others
            self._merge_all()
            self.clients_ = [known for known in self.clients_ if known in others]
            if place is not None:
                self.__dict__[PLACE] = place
        if self.missing is None:
            self._warn_of_cut()
        return self
