"""PCA of rows that belong to clients: local summaries, merged once."""

from __future__ import annotations

from dataclasses import KW_ONLY
from functools import partial
from numbers import Integral, Real
from operator import attrgetter
from typing import Any

from sklearn.base import clone
from sklearn.utils._param_validation import HasMethods, StrOptions
from sklearn.utils.metaestimators import available_if

from .._base import adjusting
from .._base.fitted import LEARNT, Learnt, of_one_state
from .._base.missing_entries import impute
from .._kernels.too_large import largest_named
from .._validation.checks import InstanceOf, Interval, allowed, number_or_none, with_parameters
from ..communication._federation import clients_named
from ..privacy import SecondMomentMechanism
from ..streaming import StreamingPCA
from ..summary._merging import check_subspaces
from ..summary._updating import lacks_directions
from . import _client_refinement as refinement
from . import _merge as merging
from . import _private as private
from . import _summaries
from ._available_pairs import MissingStrategy, check_missing, from_pairs, ridge_of
from ._clients import StreamingClientsTransformer
from ._local_fit import DeferredMerge, goes_on, partial_fit


@with_parameters
class FederatedPCA(StreamingClientsTransformer):
    """Principal component analysis of rows that belong to several clients, in one round or a few.

    Every client (site) summarises its own rows and sends the summary, a `Subspace`, to a server,
    which merges the summaries. No row leaves its client. With at most 256 features the result is
    PCA of all rows in one place, up to rounding. `fit` simulates this in one process; real sites
    send files, which `from_subspaces` merges, or are connected by Flower
    (`fedpca_sklearn.engines.flower`).

    Parameters
    ----------
    n_components : int, float, "parallel", "held-out", "mle", "above_noise" or None, default=None
        As in `StreamingPCA`; "above_noise", with a ``mechanism``: ``n_components_above_noise_``.
    estimator : estimator or None, default=None
        Fitted by each client: `StreamingPCA` or another PCA-like estimator, whose ``n_components``
        bounds what a client sends. None: `StreamingPCA`, with extra directions above 256 features.
        A client goes on with that of its first rows: another one is for clients that are new then.
    merge : MergeStrategy or None, default=None
        How summaries are merged. None: ``SubspaceMerge()``, all at once.
    mechanism : AnalyzeGauss, ModSuLQ, StreamingModSuLQ or None, default=None
        Differential privacy: clients clip their rows and send noisy summaries.
    missing : AvailablePairs, ConditionalFill or None, default=None
        What is made of missing entries (NaN). None: refused, unless ``estimator`` is a tracker.
    n_refinements : int, default=0
        Rounds of `refine` at the end of `fit`; with a ``tol`` at most, and then 0 means 20.
    tol : float or None, default=None
        Refine until ``subspace_error_bound_`` is at most this, or give a ConvergenceWarning.
    n_clients : int, default=2
        Contiguous shards that stand in for clients where ``clients`` is not given. Of a dask.array
        every row chunk is a client.
    n_jobs : int or None, default=None
        Clients at work at the same time; threads, unless ``joblib.parallel_config`` says otherwise.
    random_state : int, RandomState instance or None, default=None
        Seeds sub-estimators, and the noise of a mechanism: it protects from who does not know it.
    scale : bool, default=False
        True: PCA of the correlation matrix of all rows, as in `StreamingPCA`.
    partial_out : str, int or sequence of these, default=None
        Confounders, as in `StreamingPCA`; their effects are those over all rows.

    Attributes
    ----------
    components_, mean_, singular_values_, explained_variance_, explained_variance_ratio_, \
            noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_, scale_, \
            confounders_, confounder_effects_, subspace_error_bound_, explained_variance_interval_
        As in `StreamingPCA`, for all rows of all clients.
    clients_, estimators_, summaries_ : list, mapping, dict
        Labels of the clients, sorted; their fitted sub-estimators, and what they have sent last.
    noise_variances_, suspects_, evidence_ : dict
        Label -> what `NoiseAwareMerge` or `RobustMerge` found out about the client.
    n_refinements_ : int
        Rounds of `refine` since the summaries were merged.
    negative_variance_ : float
        With `AvailablePairs`: size of the most negative eigenvalue.
    privacy_spent_, n_components_above_noise_ : PrivacySpent, int
        With a mechanism: the cost to the client that has spent most, also of calls that failed; and
        components whose eigenvalue is beyond what the noise alone makes in 97 of 100 cases.
    communication_ : CommunicationLog
        What was sent: k (d + 1) + 2 d + 2 floats by each client for k directions, d (d + 1) / 2 + 2
        d + 2 for all d in float64.

    See Also
    --------
    merge_subspaces : The merge by itself.

    Notes
    -----
    Federated PCA of Grammenos et al. (2019), section 3, with the means of Bai, Chan and Luk (2005).
    The guide, "Rows at several sites", has costs, and which parameters exclude each other.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.decomposition import PCA
    >>> from fedpca_sklearn import FederatedPCA, subspace_distance
    >>> X, y = load_digits(return_X_y=True)
    >>> federated = FederatedPCA(5).fit(X, clients=y)  # ten clients with one digit each
    >>> subspace_distance(federated.components_, PCA(5).fit(X).components_) < 1e-12
    True
    """

    _takes_dask = True
    _takes_arrays = True
    # whether the moments of pairs of each client are kept, so that one can leave
    _keeps_clients = True

    n_components: int | float | str | None = allowed(
        *StreamingPCA._parameter_constraints["n_components"],
        StrOptions({private.ABOVE_NOISE}),
        default=None,
    )
    _: KW_ONLY
    estimator: Any = allowed(HasMethods(["fit"]), None, default=None)
    merge: Any = allowed(InstanceOf(merging.MergeStrategy), None, default=None)
    mechanism: Any = allowed(
        InstanceOf(SecondMomentMechanism, "base.SecondMomentMechanism"), None, default=None
    )
    missing: Any = allowed(
        InstanceOf(MissingStrategy, "AvailablePairs", "ConditionalFill"), None, default=None
    )
    n_refinements: int = allowed(Interval(Integral, 0, None, closed="left"), default=0)
    tol: float | None = allowed(Interval(Real, 0, None, closed="neither"), None, default=None)
    n_clients: int = 2
    n_jobs: int | None = None
    random_state: Any = allowed("random_state", default=None)
    scale: bool = allowed(*adjusting.ADJUSTING["scale"], default=False)
    partial_out: Any = allowed(*adjusting.ADJUSTING["partial_out"], default=None)

    # what else can be done with clients, and read of the fit
    from_subspaces = classmethod(_summaries.from_subspaces)
    from_pairs = classmethod(from_pairs)
    remove = _summaries.remove
    partial_fit = available_if(goes_on)(partial_fit)
    refine = refinement.refine
    impute = available_if(attrgetter("_takes_missing"))(of_one_state(impute))
    _ridge, _never_exceeds = ridge_of, refinement.never_exceeds
    scale_, confounders_, confounder_effects_ = adjusting.adjusted_attributes()
    subspace_error_bound_ = property(adjusting.subspace_error_bound)
    explained_variance_interval_ = property(adjusting.explained_variance_interval)
    privacy_spent_ = property(private.privacy_spent)
    summaries_, estimators_ = property(_summaries.summaries), property(_summaries.estimators)

    @property
    def _takes_missing(self) -> bool:
        """Whether rows may have missing entries: also where the sites' trackers take such rows."""
        return self.missing is not None or getattr(self.estimator, "_takes_missing", False)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_missing(self)
        if self.mechanism is not None or self.n_components == private.ABOVE_NOISE:
            private.check_mechanism(self)
        if self.n_refinements or self.tol is not None:
            refinement.check_refinement(self)
        adjusting.check_adjusting(self)
        merging.check_merge(self)

    def _reset(self) -> None:
        # in order of appearance, so that a tree keeps its shape when clients join
        self._clients: dict[Any, Any] = {}
        self._last_merge: merging.LastMerge | None = None
        self._trust: str | None = None
        self.n_refinements_ = 0
        missing = self.missing
        self._missing_of_fit = None if missing is None else type(missing).__name__
        found = self.__dict__.pop("_findings", ())  # by a merge
        for name in ("negative_variance_", "n_components_above_noise_", *found):
            self.__dict__.pop(name, None)

    # ---------------------------------------------------------------- the round

    def _step(self, X: Any, weight: Any, shards: list[Any], method: str) -> list[Any]:
        if method == "fit" and self.mechanism is None:
            self.__dict__.pop("_accounts", None)
        if self.missing is not None:
            return self.missing._take(self, X, weight, shards)
        if self.mechanism is not None or self._trust is not None:
            private.check_same_trust(self)
        if self.mechanism is not None:
            return private.release_of_clients(self, X, weight, shards, method == "fit")
        labels = _summaries.take_summaries(self, X, weight, shards, method)
        if self._lacks_directions:
            refinement.warn_of_cut(self)
        if isinstance(self.estimator, StreamingPCA) and not adjusting.adjusts(self.estimator):
            adjusting.warn_of_another_cut(self)
        if method == "fit" and (self.n_refinements or self.tol is not None):
            refinement.refine_as_asked(
                self, lambda: refinement.products_of_clients(self, X, weight, shards)
            )
        return labels

    @property
    def _lacks_directions(self) -> bool:
        """Whether a client has cut directions of its summary."""
        return any(map(lacks_directions, [site.summary for site in self._clients.values()]))

    def _directions_needed(self) -> int | float | None:
        """Directions, or share of the variance, that clients look for."""
        if self.merge is None:
            return number_or_none(self.n_components)
        return number_or_none(self.merge.directions_needed(self.n_components))

    def _merge_all(self) -> None:
        """Merge what every client has sent and set the fitted attributes."""
        sites = self._clients.values()
        whole = [site.summary for site in sites]
        # made here of the same columns, so that they need no check
        kind = _summaries.Summarised
        made_here = [isinstance(s.estimator, kind) and not s.summary.sites for s in sites]
        all_summarised = all(made_here)
        if not all_summarised:
            whole = check_subspaces(whole)
        above = self.n_components == private.ABOVE_NOISE  # of all, once they are known
        merging.refuse_noise(self, whole, counted=isinstance(self.n_components, str) and not above)
        strategy = merging.SubspaceMerge() if self.merge is None else clone(self.merge)
        n_rows = sum([site.n_rows for site in sites])
        sums = self._trust == "sum"  # whose rounds are in the log
        last = merging.LastMerge(self._last_merge, None if sums else self.communication_)
        simple = all_summarised and type(self) is FederatedPCA
        deferred = _summaries.deferred_merge(self, strategy, whole, n_rows, simple)
        if deferred is not None:
            last.record(whole)
            self.__dict__[LEARNT] = Learnt(deferred)
        else:
            with largest_named(partial(clients_named, self._clients), whole):
                subspace = merging.merged_clients(self, strategy, whole, last)
                self._set_fitted(subspace, None if above else self.n_components, n_rows)
        self._last_merge = last.done()
        merging.show_findings(self, strategy)
        self.n_refinements_ = 0

    def _compute(self, merge: DeferredMerge) -> dict[str, Any]:
        whole = [client.summary for client in merge.clients.values()]
        subspace = merging.merged_clients(self, merge.strategy, whole, merging.LastMerge())
        return self._attributes(subspace, self.n_components, merge.n_rows)

    def _settle(self) -> None:
        super()._settle()
        learnt = vars(self)[LEARNT]
        if isinstance(learnt.state, DeferredMerge):
            self.__dict__[LEARNT] = Learnt(learnt.state._replace(new=None), learnt.values)

    def _beyond_the_summary(self) -> str | None:
        # what a merge leaves out of whole summaries is its own
        return super()._beyond_the_summary() if self._lacks_directions else None
