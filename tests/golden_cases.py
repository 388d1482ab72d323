"""The fits that `golden.py` keeps: estimators as code, how rows reach them, and sets of rows."""

import inspect
from functools import cache
from types import SimpleNamespace

import numpy as np
import scipy.sparse as sp
from scipy.linalg import hadamard
from sklearn.base import BaseEstimator
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD

import fedpca_sklearn

NAMES = {name: getattr(fedpca_sklearn, name) for name in fedpca_sklearn.__all__}
NAMES |= {"PCA": PCA, "IncrementalPCA": IncrementalPCA, "TruncatedSVD": TruncatedSVD}
NAMES |= {"np": np, "sp": sp}
SETS = ("dense", "sparse", "float32", "weighted", "far", "missing")
# Distance of the far mean from the origin, in deviations of a column.
FAR = 1e5
# Rows of the calls of partial_fit, or of the batches of an iterator.
BATCHES = (1, 2, 40, 7, 50, 60)
# Rows of sites are cut in these shares, and mixed.
SITES = (0.4, 0.3, 0.2, 0.1)
# Parameters without two wrong values.
UNCHECKED = ("estimator", "copy", "n_jobs")
# Other versions of BLAS find others: two refinements leave the third direction open, and the local
# decompositions are about the origin.
UNCERTAIN = (
    "FederatedPCA(3, n_refinements=2) | wide | sparse",
    'FederatedPCA(2, estimator=TruncatedSVD(3, algorithm="arpack"), random_state=0) | fit | far',
)

# Each by `fit`, with the labels of four sites where it takes them.
BY_FIT = """
StreamingPCA()
StreamingPCA(3)
StreamingPCA(0.9)
StreamingPCA("mle")
StreamingPCA(2, oversampling=0, block_size=20)
StreamingPCA(3, oversampling=4, block_size=33)
StreamingPCA(3, forgetting_factor=0.98)
StreamingPCA(3, half_life=40.0)
StreamingPCA(3, forgetting_factor=0.8, forgetting="blocks", block_size=40)
StreamingPCA(3, rank_rule=ContributionBounds(0.02, 0.1), block_size=20)
StreamingPCA(3, rank_rule=ContributionBounds(0.02, 0.1, growth="canonical", hold_off=1), block_size=20)
StreamingPCA(3, rank_rule=EnergyBounds(0.9, 0.97), block_size=20)
StreamingPCA(3, center=False)
StreamingPCA(3, whiten=True)
StreamingPCA(3, svd_solver="qr")
StreamingPCA(3, svd_solver="gram")
StreamingPCA(3, scale=True)
StreamingPCA(2, partial_out=[0, 4])
StreamingPCA(2, scale=True, partial_out=[1], forgetting_factor=0.99)
FederatedPCA()
FederatedPCA(3)
FederatedPCA(0.9)
FederatedPCA("parallel")
FederatedPCA(3, estimator=StreamingPCA(3, oversampling=0, block_size=20))
FederatedPCA(3, estimator=StreamingPCA(center=False))
FederatedPCA(3, estimator=PCA(4))
FederatedPCA(3, estimator=IncrementalPCA(4))
FederatedPCA(3, estimator=SubspaceTracker(4))
FederatedPCA(3, estimator=FrequentDirections(4))
FederatedPCA(2, estimator=TruncatedSVD(3, algorithm="arpack"), random_state=0)
FederatedPCA(3, merge=SubspaceMerge("qr", fan_in=2))
FederatedPCA(3, merge=SubspaceMerge("gram"))
FederatedPCA(3, merge=SubspaceMerge("orthogonal"))
FederatedPCA(3, merge=SubspaceMerge(center="site"))
FederatedPCA(3, merge=SubspaceMerge(fan_in=2, truncate=True, forgetting_factor=0.9))
FederatedPCA(3, merge=ProjectionAverage(4))
FederatedPCA(3, merge=ProjectionAverage(weighting="rows"))
FederatedPCA(2, merge=NoiseAwareMerge())
FederatedPCA(2, merge=RobustMerge())
FederatedPCA(2, merge=RobustMerge("median", max_bad=1))
FederatedPCA(2, mechanism=AnalyzeGauss(4.0, 1e-3, 60.0), random_state=0)
FederatedPCA("above_noise", mechanism=AnalyzeGauss(9.0, 1e-3, "private", center="private"), random_state=0)
FederatedPCA(2, mechanism=StreamingModSuLQ(4.0, 1e-3, 60.0, trust="sum"), random_state=0)
FederatedPCA(3, missing=AvailablePairs())
FederatedPCA(3, missing=ConditionalFill(3))
FederatedPCA(2, estimator=StreamingPCA(2, oversampling=0, block_size=20), n_refinements=2)
FederatedPCA(2, estimator=StreamingPCA(2, oversampling=0), n_refinements=9, tol=1e-3)
FederatedPCA(3, scale=True)
FederatedPCA(2, partial_out=[0, 4])
FederatedPCA(2, scale=True, partial_out=[1], merge=SubspaceMerge(fan_in=2))
PersonalizedPCA(2, 1)
PersonalizedPCA(1, 2, estimator=StreamingPCA(4))
PersonalizedPCA(1, 1, random_state=1)
DistributedPCA()
DistributedPCA(3)
DistributedPCA(0.9)
DistributedPCA(3, missing=AvailablePairs(min_rows=3))
DistributedPCA(3, scale=True)
DistributedPCA(2, partial_out=[2])
TruncatedDistributedPCA(3)
TruncatedDistributedPCA(2, local_threshold=0.5)
TruncatedDistributedPCA(0.9, local_threshold=1.0)
OnlineDistributedPCA(3)
OnlineDistributedPCA(2, projection_dim=4, weighting="rows")
OnlineDistributedPCA(2, average="steps", center=False, variances="sent")
FrequentDirections(3)
FrequentDirections(2, sketch_size=5, robust=True, center=False)
OjaPCA(3, random_state=0)
OjaPCA(2, learning_rate=0.01, batch_size=10, random_state=0)
OjaPCA(2, learning_rate="adaptive", center=False, random_state=0)
OjaPCA(2, init="random", random_state=3)
GROUSE(3, random_state=0)
GROUSE(2, step_size=0.001, center=False, random_state=0)
GROUSE(2, step_size="greedy", init="random", random_state=0)
PAST(3, random_state=0)
PAST(2, deflation=True, forgetting_factor=0.98, random_state=0)
PAST(2, half_life=60.0, center=False, init="random", random_state=0)
SPIRIT()
SPIRIT(2, lower=0.9, upper=0.97, forgetting_factor=1.0, hold_off=2)
SPIRIT(2, half_life=50.0, center=False)
PETRELS(3, random_state=0)
PETRELS(2, forgetting_factor=0.98, regularization=0.1, random_state=0)
PETRELS(2, half_life=60.0, center=False, init="random", random_state=0)
StreamingPowerMethod(3, random_state=0)
StreamingPowerMethod(2, block_size=20, center=False, init="random", random_state=0)
SubspaceTracker(3)
SubspaceTracker(2, batch_size=20, forgetting_factor=0.9, n_iter=2)
SubspaceTracker(2, batch_size=20, half_life=80.0, center=False)
SubspaceTracker(2, batch_size=20, fill="subspace", init=np.eye(2, 10))
SubspaceTracker(2, batch_size=8, detect_changes=ChangeDetection(3, 0.5))
SubspaceTracker(2, batch_size=40, store_subspaces=True)
RobustSubspaceTracker(3)
RobustSubspaceTracker(2, init=FirstSubspace("svd", 40), batch_size=20)
RobustSubspaceTracker(2, support_threshold=OutlierSupport(15.0, 20.0, None), forgetting_factor=0.9)
RobustSubspaceTracker(2, half_life=80.0, n_iter=2, fill="subspace", center=False)
RobustSubspaceTracker(2, batch_size=8, detect_changes=ChangeDetection(3, 0.5))
RobustSubspaceTracker(2, batch_size=40, store_subspaces=True)
AlternatingProjections(3)
AlternatingProjections(2, threshold_scale=0.5, tol=1e-3, max_iter=30, center=True)
FederatedHeteroscedasticPCA(2, random_state=0)
FederatedHeteroscedasticPCA(2, n_rounds=5, tol=1e-2, center=False, random_state=0)
FederatedHeteroscedasticPCA(2, n_rounds=5, channel=FixedPointChannel(40), random_state=0)
FederatedPowerPCA(3, random_state=0)
FederatedPowerPCA(2, acceleration=None, tol=1e-5, random_state=0)
FederatedPowerPCA(2, acceleration="krylov", random_state=0)
FederatedPowerPCA(2, center=False, local_steps=2, random_state=0)
FederatedPowerPCA(2, n_rounds=3, init=np.eye(2, 10))
FederatedPowerPCA(2, n_rounds=3, channel=GaussianChannel(1e-3), random_state=0)
FederatedPowerPCA(2, n_rounds=3, channel=RobustSum(), random_state=0)
FederatedPowerPCA(2, n_rounds=3, mechanism=FedPowerNoise(4.0, 1e-3, 60.0), random_state=0)
FederatedSubspaceTracker(2, random_state=0)
FederatedSubspaceTracker(2, batch_size=20, n_rounds=4, init=FirstSubspace(n_rounds=6), robust=False, random_state=0)
FederatedSubspaceTracker(2, init=FirstSubspace("svd", 40), support_threshold=OutlierSupport(15.0, 20.0), random_state=0)
FederatedSubspaceTracker(2, forgetting_factor=0.9, n_iter=2, fill="subspace", center=False, random_state=0)
FederatedSubspaceTracker(2, half_life=80.0, batch_size=40, store_subspaces=True, random_state=0)
FederatedSubspaceTracker(2, batch_size=20, detect_changes=ChangeDetection(2, 0.5), random_state=0)
FederatedSubspaceTracker(2, n_rounds=3, channel=FixedPointChannel(40), random_state=0)
FederatedScaler()
FederatedScaler(with_mean=False)
FederatedScaler(with_std=False, copy=False)
VerticalFederatedPCA(2, feature_groups=3, random_state=0)
VerticalFederatedPCA(2, feature_groups=[range(4), range(4, 10)], method="merge")
VerticalFederatedPCA(2, feature_groups=3, method=LeftVectorMerge(2), center=False)
VerticalFederatedPCA(2, feature_groups=3, method=PowerRounds(40, tol=1e-6), random_state=0)
VerticalFederatedPCA(1, feature_groups=3, method=VFedPCA(5, 4, weighting="equal"), topology=Ring(1e-3), random_state=0)
VerticalFederatedKernelPCA(2, feature_groups=3, random_state=0)
VerticalFederatedKernelPCA(2, feature_groups=2, kernel="poly", gamma=0.1, degree=2, coef0=2, center=False, random_state=0)
VerticalFederatedKernelPCA(1, feature_groups=2, aggregation="paper", topology=Complete(), random_state=0)
VerticalFederatedKernelPCA(1, feature_groups=2, n_landmarks=20, random_state=0)
VerticalFederatedKernelPCA(1, feature_groups=3, aggregation="paper", projection="features", random_state=0)
SubspaceMonitor(StreamingPCA(2))
SubspaceMonitor(StreamingPCA(2), contamination=0.1, limits="chi2")
SubspaceMonitor(FederatedPCA(2), drift_window=20, drift_level=0.01)
"""  # noqa: E501

# Each by calls of `partial_fit`, of very unlike numbers of rows.
BY_BATCHES = """
StreamingPCA(3)
StreamingPCA(3, forgetting_factor=0.98)
StreamingPCA(3, half_life=40.0)
StreamingPCA(2, oversampling=0, block_size=20)
StreamingPCA(3, center=False, svd_solver="qr")
StreamingPCA(2, scale=True, partial_out=[1])
FederatedPCA(3)
FederatedPCA(3, merge=SubspaceMerge(fan_in=2))
FederatedPCA(2, scale=True, partial_out=[1])
DistributedPCA(3)
TruncatedDistributedPCA(2)
OnlineDistributedPCA(2)
FrequentDirections(2, sketch_size=5)
OjaPCA(2, random_state=0)
PAST(2, random_state=0)
GROUSE(2, random_state=0)
PETRELS(2, random_state=0)
SPIRIT(2)
StreamingPowerMethod(2, block_size=20, random_state=0)
SubspaceTracker(2, batch_size=20)
RobustSubspaceTracker(2, batch_size=20)
FederatedSubspaceTracker(2, batch_size=20, n_rounds=3, random_state=0)
FederatedScaler()
SubspaceMonitor(StreamingPCA(2))
"""

# Each by `fit` of an iterator of the same batches.
BY_ITERATOR = """
StreamingPCA(3)
StreamingPCA(3, forgetting_factor=0.98)
StreamingPCA(2, scale=True)
FrequentDirections(2, sketch_size=5)
SubspaceTracker(2, batch_size=20)
"""

# Each by `fit` without labels: rows are cut into as many shards.
BY_SHARDS = """
FederatedPCA(3, n_clients=7, n_jobs=2)
FederatedPCA(0.8, merge=SubspaceMerge(fan_in=2), n_clients=5)
DistributedPCA(3, n_clients=5)
TruncatedDistributedPCA(3, local_threshold=0.6, n_clients=3)
OnlineDistributedPCA(2, n_clients=3)
PersonalizedPCA(1, 1, n_clients=3)
FederatedPowerPCA(2, n_clients=3, random_state=0)
FederatedSubspaceTracker(2, n_clients=3, n_rounds=3, random_state=0)
FederatedHeteroscedasticPCA(1, n_clients=3, random_state=0)
FederatedScaler(n_clients=3)
FederatedScaler(n_clients=2, mechanism=ScalerNoise(9.0, 1e-3, one_scale=True), random_state=0)
"""

# Each by `fit` of rows of 300 features, where three components are a sketch and ten are exact.
BY_WIDE = """
StreamingPCA(3, oversampling=10)
StreamingPCA(10)
StreamingPCA(3, oversampling=10, block_size=64)
StreamingPCA(3, oversampling=10, scale=True, partial_out=[1])
FederatedPCA(3)
FederatedPCA(10)
FederatedPCA(3, n_refinements=2)
FederatedPCA(3, scale=True)
DistributedPCA(3)
FederatedPowerPCA(3, random_state=0)
"""
WIDE_BATCHES = """
StreamingPCA(3, oversampling=10)
StreamingPCA(10)
"""

# Each by `fit` of rows whose variances are equal in pairs.
BY_TIES = """
StreamingPCA(4)
StreamingPCA(2, oversampling=0)
FederatedPCA(4)
DistributedPCA(4)
SubspaceMonitor(StreamingPCA(2), limits="chi2")
"""

# Each is evaluated, with rows `X`, weights `w`, labels of sites `clients`, rows and summaries of
# these (`parts`, `summaries`), rows with missing entries and a complete one (`holes`), and `wide`
# rows of 300 features.
BY_CALL = """
Subspace.from_rows(X, 3)
Subspace.from_rows(X, 3, center=False, sample_weight=w)
Subspace.from_rows(X[:6])
Subspace.from_rows(X[:6]).update(X[6:], 4, forgetting_factor=0.9)
Subspace.from_rows(X[:50], 4).update(X[50:], 2, sample_weight=w[50:])
Subspace.from_rows(X, 3).decay(0.25).truncate(2)
Subspace.empty(10).update(X[:1])
Subspace.from_bytes(Subspace.from_rows(X, 4).to_bytes())
[len(Subspace.from_rows(rows, k).to_bytes()) for rows in (X, X[:4], wide) for k in (None, 1, 3)]
Subspace.from_estimator(PCA(3).fit(X))
Subspace.from_estimator(IncrementalPCA(3).fit(X))
Subspace.from_rows(wide[:9]).truncate(3)
merge_subspaces(summaries)
merge_subspaces(summaries, 3, method="qr")
merge_subspaces(summaries, 3, method="gram", weights=[1.0, 0.5, 2.0, 0.0])
merge_subspaces(summaries, 3, method="orthogonal")
merge_subspaces(summaries, 0.9, method="svd")
merge_subspaces([Subspace.from_rows(X[:3]), Subspace.empty(10), Subspace.from_rows(X[3:4])])
StreamingPCA.from_subspace(summaries[0], 3, n_samples_seen=70).partial_fit(X)
StreamingPCA.from_subspace(Subspace.from_rows(wide, 20), 3, forgetting_factor=0.9).partial_fit(wide)
StreamingPCA(2, oversampling=0, block_size=20).fit(X).refine(X, n_rounds=2)
StreamingPCA(2, half_life="1h").partial_fit(X, times=np.datetime64("2026-01-01") + 60 * np.arange(len(X)))
StreamingPCA(2, half_life="30s").partial_fit(X[:90], times=np.arange(90).astype("datetime64[s]")).partial_fit(X[90:], times=np.arange(99, 169).astype("datetime64[s]"))
StreamingPCA(3).fit(X).to_sklearn()
StreamingPCA(3, scale=True, partial_out=[1]).fit(X).inverse_transform(X[:3, :3] / 9)
StreamingPCA(3, whiten=True).fit(X).inverse_transform(np.eye(3))
FederatedPCA.from_subspaces(summaries, 3, scale=True)
FederatedPCA.from_subspaces(summaries, 2, partial_out=[1, 2], merge=SubspaceMerge(fan_in=2))
FederatedPCA.from_subspaces(summaries, "parallel")
FederatedPCA.from_pairs([PairMoments.from_rows(holes[clients == c], sample_weight=w[clients == c]) for c in range(4)], 3)
FederatedPCA.from_pairs([PairMoments.from_rows(holes)], 3, missing=AvailablePairs(min_rows=40))
PairMoments.from_rows(holes, sample_weight=w).covariance(30)
len(PairMoments.from_rows(holes).to_bytes())
FederatedPCA(2).fit(X, clients=clients).remove(1)
FederatedPCA(2, estimator=StreamingPCA(2, oversampling=0, block_size=20)).fit(X, clients=clients).refine(X, clients=clients, n_rounds=2)
FederatedPCA(2, merge=RobustMerge()).fit(X + 60 * (clients == 3)[:, None] * (X[:, :1] > 3), clients=clients)
FederatedPCA(3).fit(X, clients=clients, sample_weight=w * (clients != 2))
PersonalizedPCA(1, 2).fit(X, clients=clients).transform(X[:9], clients=clients[:9])
PersonalizedPCA(1, 2).fit(X, clients=clients).inverse_transform(np.ones((9, 3)), clients=clients[:9])
PersonalizedPCA(1, 2).fit(X[clients < 3], clients=clients[clients < 3]).adapt(X[clients == 3], clients=clients[clients == 3])
PersonalizedPCA(1, 2).fit(X, clients=clients).refine(X, clients=clients, n_rounds=2)
PersonalizedPCA(1, 2).fit(X, clients=clients).remove(1)
FederatedScaler.from_subspaces(summaries)
FederatedScaler(with_mean=False).from_subspaces(summaries[:2], with_std=False)
FederatedScaler().fit(holes, clients=clients, sample_weight=w).inverse_transform(X[:4])
jackknife_intervals(summaries, 2, confidence=0.9)
jackknife_intervals([Subspace.from_rows(X[i::9]) for i in range(9)], 3)
parallel_analysis(Subspace.from_rows(X), level=0.1, n_draws=40, random_state=3)
parallel_analysis(Subspace.from_rows(wide, 30), n_draws=20)
[(found.errors, found.ranks, found.prequential_errors, found.best_errors) for found in (evaluate_stream(StreamingPCA(2), X, batch_size=20, n_checkpoints=4), evaluate_stream(GROUSE(2, random_state=0), holes, X, batch_size=40))]
[reconstruction_error(X, np.eye(10)[:3], X.mean(axis=0)), excess_error(X, np.eye(10)[:3]), reconstruction_error(wide, np.eye(300)[5:9])]
[subspace_distance(X[:3], X[3:6], metric=m) for m in ("sin", "projection", "chordal")]
[subspace_distance(X[:2], X[2:5]), subspace_distance(X[:4], X[:4] + 1e-9 * X[4:8])]
projected_sparse_recovery(X[:5] + 90 * (np.eye(10)[2:7]), StreamingPCA(2).fit(X).components_, 3.0)
make_power_law(30, 8, alpha=0.7, random_state=1)
make_power_law(9, 5, random_state=1, return_components=2)
make_spiked(30, 8, spikes=[4.0, 2.0], noise_variance=0.5, random_state=1)
make_subspace_stream(60, 12, 2, random_state=1)
make_subspace_stream(60, 12, 2, model="piecewise", change_points=[20, 45], missing_pattern="moving", outliers=0.1, random_state=1)
make_subspace_stream(60, 12, 2, delta=0.1, variances=[4.0, 1.0], noise_std=0.1, outliers=0.2, outlier_pattern="moving", outlier_range=(5.0, 9.0), random_state=1)
[partition_clients(clients, 3, method=m, random_state=1) for m in ("iid", "label", "dirichlet")]
partition_clients(clients, 5, method="dirichlet", concentration=0.1, random_state=2)
[batch.sum() for batch in iter_batches([X[:20], X[20:90]], batch_size=33)]
load_balanced_schedule(4, 12)
load_balanced_schedule(4, 9, layout="intervals")
[graph.neighbours(5) for graph in (Ring(), Star(), Complete())]
FederatedPowerPCA(2, n_rounds=5, channel=FadingChannel(1e-3, 0.01, max_delay=3, dropout=0.2), random_state=0).fit(X, clients=clients)
FederatedPowerPCA(2, n_rounds=4, channel=RobustSum(1), random_state=0).fit(np.where((clients == 3)[:, None], 9 * X[:, ::-1], X), clients=clients)
VerticalFederatedPCA(2, feature_groups=4, topology=Graph([[0, 1, 0, 0], [1, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]]), random_state=0).fit(X)
VerticalFederatedPCA(2, feature_groups=4, method=VFedPCA(9, 6, update="original", exchange="neighbours"), topology="ring", random_state=0).fit(X)
VerticalFederatedPCA(2, feature_groups=4, method=VFedPCA(9, 6, warm_start=False, weight_scaling=False), random_state=0).fit(X)
VerticalFederatedPCA(2, feature_groups=4, method=LeftVectorMerge(2), topology="star").fit(X)
VerticalFederatedKernelPCA(2, feature_groups=2, kernel="linear", center=False).fit(X).transform(X[:5])
VerticalFederatedKernelPCA(1, feature_groups=2, aggregation=VFedPCA(9, 3), topology="ring", kernel="poly", random_state=0).fit(X)
[AnalyzeGauss(e, 1e-5, 3.0, center=0.0).plan(900, 12, 2, spectrum=9.0 * 0.7 ** np.arange(12)) for e in (0.5, 4.0)]
ModSuLQ(1.0, 1e-5, 3.0, trust="sum").plan(20_000, 30, 2)
AnalyzeGauss(1.0, 1e-5, "private", center="private").plan(5_000, 20, 3, spectrum=[9.0, 4.0, 1.0])
[m.costs(12, 5) for m in (FedPowerNoise(1.0, 1e-5, 3.0), AnalyzeGauss(1.0, 1e-5, 3.0), ScalerNoise(1.0, 1e-5), StreamingModSuLQ(1.0, 1e-5, 3.0))]
FederatedPCA(2, mechanism=ModSuLQ(9.0, 1e-3, 40.0, center=X.mean(axis=0), mean="fixed"), random_state=1).fit(X, clients=clients)
FederatedPCA(2, mechanism=AnalyzeGauss(9.0, 1e-3, "private", center=0.0, n_releases=3), random_state=1).partial_fit(X, clients=clients)
FederatedPowerPCA(2, n_rounds=3, mechanism=FedPowerNoise(9.0, 1e-3, 40.0, center=1.0, trust="sum"), random_state=1).fit(X, clients=clients)
FederatedScaler(mechanism=ScalerNoise(9.0, 1e-3, trust="sum", bounds=(0.1, 100.0)), random_state=1).fit(X, clients=clients)
SubspaceMonitor(StreamingPCA(2)).fit(X[:120]).predict(X[110:] + 9.0 * (np.arange(50) > 30)[:, None])
SubspaceMonitor(StreamingPCA(2), limits="chi2").fit(X[:120]).contributions(X[110:] * 2)
SubspaceMonitor(StreamingPCA(2, forgetting_factor=0.97), contamination=0.1).fit(X[:60]).partial_fit(holes[60:])
SubspaceMonitor(StreamingPCA(2), drift_window=15, drift_level=0.05).fit(X[:70]).partial_fit(X[70:] * 1.5).partial_fit(X[:60])
SubspaceMonitor(StreamingPCA(2, half_life="9min")).fit(X, times=np.datetime64("2026-01-01T00:00") + np.arange(len(X)))
SubspaceMonitor(SubspaceTracker(2)).fit(holes[:100]).statistics(holes[100:])
SubspaceMonitor.from_subspace(Subspace.from_rows(X, 4), 2, limits="chi2").statistics(holes)
SubspaceMonitor.from_estimator(FederatedPCA(2).fit(X, clients=clients), limits="chi2").score_samples(X)
RobustSubspaceTracker(2, batch_size=20).fit(holes).decompose(X[:30] + 80.0 * np.eye(30, 10, -3))
FederatedSubspaceTracker(2, batch_size=20, n_rounds=3, random_state=0).fit(X, clients=clients).decompose(holes[:20])
AlternatingProjections(2).fit(X).decompose(X + 80.0 * (np.arange(1600).reshape(160, 10) % 37 == 0))
SubspaceTracker(2, batch_size=20).fit(holes).impute(holes[:30])
PETRELS(2, random_state=0).fit(holes).impute(holes[:30])
DistributedPCA(2, missing=AvailablePairs()).fit(holes, clients=clients).impute(holes[:30])
FederatedPCA(2, missing=ConditionalFill(2)).fit(holes, clients=clients, sample_weight=w).impute(holes[:30])
FederatedPCA(2, missing=AvailablePairs(min_rows=9)).fit(holes, clients=clients, sample_weight=w)
TruncatedDistributedPCA(2, local_threshold=0.7).fit(X, clients=clients).communication_.table
FederatedSubspaceTracker(2, batch_size=40, n_rounds=3, random_state=0).fit(X, clients=clients).communication_.table
VerticalFederatedPCA(1, feature_groups=3, random_state=0).fit(X).communication_.table
StreamingPCA(3).fit(make_power_law(5000, 700, random_state=0))
StreamingPCA(3).fit(np.asfortranarray(make_power_law(4000, 600, alpha=0.5, random_state=0), dtype=np.float32))
StreamingPCA(3).fit(sp.random(900, 4000, 0.01, format="csr", random_state=0))
StreamingPCA(3).fit(sp.random(3000, 600, 0.02, format="csr", random_state=0), sample_weight=np.linspace(0.1, 3, 3000))
StreamingPCA(40).partial_fit(wide[:40]).partial_fit(np.asfortranarray(wide[40:]))
FederatedPCA(3, n_clients=4).fit(sp.random(800, 900, 0.02, format="csr", random_state=0))
FederatedPCA(3, n_clients=4, scale=True).fit(sp.random(800, 900, 0.02, format="csr", random_state=0))
FederatedPCA(2, n_refinements=2, n_clients=4).fit(sp.random(800, 900, 0.02, format="csr", random_state=0))
TruncatedDistributedPCA(3, n_clients=4).fit(wide)
SubspaceMonitor.from_subspace(Subspace.from_rows(X[:7], 3), 2, limits="chi2").statistics(X)
StreamingPCA(3).fit(sp.random(60, 4000, 0.005, format="csr", random_state=0))
StreamingPCA(3).partial_fit(sp.random(700, 3000, 0.02, format="csr", random_state=0)).partial_fit(sp.random(700, 3000, 0.02, format="csr", random_state=1))
len(StreamingPCA(scale=True).fit(X[:, :8] * 10.0 ** np.arange(-12, 12, 3)).subspace_.to_bytes())
StreamingPCA(3, scale=True).fit(X[:, :8] * 10.0 ** np.arange(-12, 12, 3)).transform(X[:5, :8])
merge_subspaces([Subspace.from_rows(part.astype("f4"), 4) for part in parts], 3)
merge_subspaces([Subspace.from_rows(part.astype("f4"), k) for part, k in zip(parts, (2, None, 9, 4))], 3, method="svd")
PersonalizedPCA(1, 1, n_clients=1).fit(X)
AlternatingProjections(1).fit(X[:9] + 1e3 * (np.arange(10) == 2))
RobustSubspaceTracker(1, batch_size=6, support_threshold=OutlierSupport(1e-3)).fit(X[:30])
RobustSubspaceTracker(2).fit(X + 60.0 * (np.arange(1600).reshape(160, 10) // 40 % 10 == 3))
RobustSubspaceTracker(2, batch_size=20).fit(np.where(np.arange(160)[:, None] // 9 == np.arange(10), 90.0, X))
FederatedSubspaceTracker(2, batch_size=20, n_rounds=3, random_state=0).fit(np.where((np.arange(160) < 50)[:, None] & (np.arange(10) == 3), np.nan, X), clients=clients)
FederatedPCA("above_noise", mechanism=AnalyzeGauss(30.0, 1e-3, 60.0, n_releases=2), random_state=0).partial_fit(X, clients=clients).partial_fit(X, clients=clients)
FederatedPCA(2, mechanism=AnalyzeGauss(30.0, 1e-3, "private", center="private", n_releases=2), random_state=0).partial_fit(X, clients=clients).partial_fit(X + 50, clients=clients)
StreamingPCA(3).partial_fit(X.astype("f4")).partial_fit(X)
StreamingPCA(3).partial_fit(X).partial_fit(X.astype("f4")).partial_fit(sp.csr_array(X))
FederatedPCA(2).fit(np.round(X).astype(np.int8), clients=np.array(["d", "b", "c", "a"])[clients]).summaries_
FederatedPCA(2).partial_fit(X.tolist(), clients=clients.tolist()).partial_fit(X[:4], clients=[9, 9, 8, 8]).clients_
FederatedPCA(2, scale=True).partial_fit(X[:60], clients=clients[:60]).partial_fit(X[60:], clients=clients[60:]).communication_.table
FederatedPCA(2, partial_out=[4]).partial_fit(X[:60], clients=clients[:60]).partial_fit(X[60:], clients=clients[60:], sample_weight=w[60:])
FederatedPCA(2).partial_fit(np.floor(X).astype(int), clients=clients).partial_fit(np.floor(X[:50]).astype(int), clients=clients[:50])
FrequentDirections(3).fit(wide)
"""  # noqa: E501

# The first estimator of each kind by `fit` of rows that few expect: fewer than columns, constant
# and equal columns, large whole numbers, and gross outliers.
ODD = ("few", "constant", "counts", "gross")

HOWS = {
    "fit": BY_FIT,
    "batches": BY_BATCHES,
    "iterator": BY_ITERATOR,
    "shards": BY_SHARDS,
    "wide": BY_WIDE,
    "wide batches": WIDE_BATCHES,
    "ties": BY_TIES,
    "call": BY_CALL,
}


def made(code):
    """The estimator that a line of code makes."""
    return eval(code, dict(NAMES))


def _takes(estimator, method, name):
    return name in inspect.signature(getattr(estimator, method)).parameters


@cache
def fits():
    """Names of all fits: code, how, set of rows."""
    found = []
    for how, codes in HOWS.items():
        kinds = set()
        for code in codes.strip().splitlines():
            if how == "call":
                found.append(f"{code} | call | dense")
                continue
            estimator = made(code)
            if how == "fit" and type(estimator) not in kinds:
                kinds.add(type(estimator))
                found += [f"{code} | fit | {name}" for name in ODD]
            tags = estimator.__sklearn_tags__().input_tags
            method = "partial_fit" if "batches" in how else "fit"
            takes = dict.fromkeys(SETS, True) | {
                "sparse": tags.sparse,
                "missing": tags.allow_nan,
                "far": getattr(estimator, "center", True),
                "weighted": how != "iterator" and _takes(estimator, method, "sample_weight"),
            }
            sets = ("dense",) if how == "ties" else [name for name in SETS if takes[name]]
            found += [f"{code} | {how} | {name}" for name in sets]
    return tuple(name for name in found if name not in UNCERTAIN)


def wrong_calls():
    """Names of fits that have to fail: each parameter of each estimator with two wrong values."""
    found = []
    for name in fedpca_sklearn.__all__:
        kind = NAMES[name]
        if not (inspect.isclass(kind) and issubclass(kind, BaseEstimator) and hasattr(kind, "fit")):
            continue
        first = "StreamingPCA(2), " if name == "SubspaceMonitor" else ""
        names = [p for p in inspect.signature(kind).parameters if p not in UNCHECKED]
        values = "-7", "'no such value'"
        found += [f"{name}({first}{p}={value}) | wrong | dense" for p in names for value in values]
    return tuple(found)


@cache
def rows(size, name):
    """Rows of a size and a set, with the weights and the labels of four sites."""
    rng = np.random.default_rng(20261123)
    if size == "ties":
        X = np.array([8, 8, 4, 4, 2, 2, 1, 1])[:, None] * hadamard(8)
        X = np.vstack([X, -X] * 5).astype(float)
    else:
        n, d = (400, 300) if size == "wide" else (160, 10)
        first = 10.0 / np.arange(1, d + 1) if size == "wide" else 9.0 * 0.7 ** np.arange(d)
        Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
        X = rng.standard_normal((n, d)) * first @ Q + 3.0 * rng.standard_normal(d)
        X = np.round(X * 2.0**20) / 2.0**20  # the same bits however the product was rounded
    clients = rng.permutation(
        np.repeat(np.arange(4), np.round(len(X) * np.array(SITES)).astype(int))
    )
    weight = None
    if name == "sparse":
        X = sp.csr_array(np.where(rng.random(X.shape) < 0.4, X, 0.0))
    elif name == "float32":
        X = X.astype(np.float32)
    elif name == "weighted":
        weight = np.round(rng.uniform(0.1, 3.0, len(X)), 3)
    elif name == "far":
        X = X + np.round(FAR * X.std(axis=0))
    elif name == "missing":
        X = np.where(rng.random(X.shape) < 0.1, np.nan, X)
    elif name == "few":
        X, clients = X[:7], np.arange(7) % 3
    elif name == "constant":
        X[:, 2], X[:, 5], X[:, 7] = 5.0, 0.0, X[:, 1]
    elif name == "counts":
        X = np.floor(np.abs(X)) * 1e4
    elif name == "gross":
        X = X + 900.0 * (rng.random(X.shape) < 0.02)
    return SimpleNamespace(X=X, clients=clients, weight=weight)


def called(code, X, clients):
    """What a line of code of `BY_CALL` returns."""
    holes = np.where(np.arange(X.size).reshape(X.shape) % 7 == 3, np.nan, X)
    holes[5] = X[5]
    parts = [X[clients == c] for c in range(4)]
    known = {"X": X, "clients": clients, "w": np.linspace(0.1, 3, len(X)), "holes": holes}
    wide = rows("wide", "dense").X
    moved = np.resize(X - rows("small", "dense").X, wide.shape)  # as X is, for the margins
    known |= {"parts": parts, "wide": wide + moved}
    known["summaries"] = [fedpca_sklearn.Subspace.from_rows(part, 4) for part in parts]
    return eval(code, NAMES | known)


def size_of(how):
    """Which rows are read."""
    return {"wide": "wide", "ties": "ties"}.get(how.split()[0], "small")


def fitted(code, how, X, given):
    """The estimator of a line of code after the fit of rows, and their weights and labels."""
    if how == "call":
        return called(code, X, given.clients)
    model = made(code)
    method = "partial_fit" if "batches" in how else "fit"
    more = {}
    if given.weight is not None:
        more["sample_weight"] = given.weight
    if how not in ("shards", "iterator", "wrong") and _takes(model, method, "clients"):
        inner = getattr(model, "estimator", None)
        if not isinstance(model, fedpca_sklearn.SubspaceMonitor) or _takes(inner, "fit", "clients"):
            more["clients"] = given.clients
    if method == "fit" and how != "iterator":
        return model.fit(X, **more)
    ends = np.cumsum(BATCHES) * X.shape[0] // sum(BATCHES)
    parts = [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    if how == "iterator":
        return model.fit(iter([X[part] for part in parts]))
    for part in parts:
        model.partial_fit(X[part], **{name: value[part] for name, value in more.items()})
    return model
