"""Rows that do not belong: false alarms, drift, a jump, missing entries, real rows, one row.

Beside `SubspaceMonitor` what a user would do at once: the squared error of scikit-learn's PCA above
the quantile of the rows that were fitted (`in-sample`), EllipticEnvelope and IsolationForest. False
alarms are of clean rows that were not fitted, mean, least and largest of the fits; the shapes are
not those that the corrections were chosen on.
"""

import warnings
from time import process_time

import numpy as np
from sklearn.covariance import EllipticEnvelope
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score

from benchmarks._tools import load, picture, table
from fedpca_sklearn import StreamingPCA, SubspaceMonitor, SubspaceTracker, make_subspace_stream

ALPHA = 0.05
SHAPES = {  # variances along axes; the rotation of rows does not matter
    "signal over noise": lambda d, k: np.r_[np.linspace(25, 4, k), np.ones(d - k)],
    "variances 1 / i": lambda d, k: np.arange(1, d + 1) ** -1.0,
    "i^-0.7": lambda d, k: np.arange(1, d + 1) ** -0.7,
    "fewer causes": lambda d, k: np.r_[np.linspace(30, 10, 2), np.ones(d - 2)],
    "more causes": lambda d, k: np.r_[np.linspace(40, 5, k + 4), np.ones(d - k - 4)],
}


class InSample:
    """Squared error of PCA above the quantile of the rows that were fitted."""

    def __init__(self, k):
        self.pca = PCA(k, svd_solver="covariance_eigh")

    def fit(self, X):
        """Fit the components, and the limit on the same rows."""
        self.pca.fit(X)
        self.offset = np.quantile(self.score_samples(X), ALPHA)
        return self

    def score_samples(self, X):
        """Minus the squared error of each row."""
        return -np.sum((X - self.pca.inverse_transform(self.pca.transform(X))) ** 2, axis=1)

    def predict(self, X):
        """-1 above the limit, 1 below."""
        return np.where(self.score_samples(X) < self.offset, -1, 1)


def detectors(k, cheap=False):
    ours = {
        limits: SubspaceMonitor(StreamingPCA(k), contamination=ALPHA, limits=limits)
        for limits in ("chi2", "quantile")
    }
    theirs = {
        "in-sample": InSample(k),
        "IsolationForest": IsolationForest(contamination=ALPHA, random_state=0),
        "EllipticEnvelope": EllipticEnvelope(contamination=ALPHA, random_state=0),
    }
    return ours | ({"in-sample": theirs["in-sample"]} if cheap else theirs)


def false_alarms(n, repeats, sizes, shapes=tuple(SHAPES)):
    """Rates of clean new rows that are flagged, by kind of rows and shape."""
    rows = []
    for name in shapes:
        for d, k in sizes:
            rng = np.random.default_rng([n, d, k, list(SHAPES).index(name)])
            deviations = np.sqrt(SHAPES[name](d, k))
            found = {}
            for _ in range(repeats):
                X = rng.standard_normal((n, d)) * deviations
                Y = rng.standard_normal((20_000, d)) * deviations
                for method, detector in detectors(k, cheap=True).items():
                    rate = 100 * np.mean(detector.fit(X).predict(Y) == -1)
                    found.setdefault(method, []).append(rate)
            row = {"rows": name, "n": n, "d": d, "k": k}
            for method, rates in found.items():
                row[method] = float(np.mean(rates))
                if method != "in-sample":
                    row[f"{method}, range"] = f"{min(rates):.1f} to {max(rates):.1f}"
            rows.append(row)
    return rows


def a_stream(kind, n, missing, seed, d=64, k=5):
    """Rows of which 5 % have a direction of their own, of the same length, and which these are."""
    if kind == "drift":
        options = {"model": "rotation", "delta": 2e-4}
    else:
        options = {"model": "piecewise", "change_points": [n // 2]}
    stream = make_subspace_stream(
        n, d, k, **options, noise_std=0.2, missing=missing, random_state=seed
    )
    rng = np.random.default_rng(seed)
    unlike = rng.random(n) < 0.05
    X = stream.X.copy()
    own = rng.standard_normal((unlike.sum(), d))
    own *= (np.linalg.norm(stream.low_rank[unlike], axis=1) / np.linalg.norm(own, axis=1))[:, None]
    X[unlike] += own - stream.low_rank[unlike]
    return X, unlike


def over_streams(n, repeats, batch=20):
    """AUC of scores before rows are learnt, after the first 500 rows."""
    rows = []
    for kind in ("drift", "jump"):
        for missing in (0.0, 0.05):
            found = {}
            for seed in range(repeats):
                X, unlike = a_stream(kind, n, missing, seed)
                counted = np.arange(n) >= 500
                if kind == "jump":  # 200 rows in which the new subspace is learnt are not counted
                    counted &= (np.arange(n) < n // 2) | (np.arange(n) >= n // 2 + 200)
                fading = 0.5 ** (1 / 100)
                estimator = StreamingPCA(5, forgetting_factor=fading)
                if missing:
                    estimator = SubspaceTracker(5, batch_size=batch, forgetting_factor=fading)
                scores = []
                monitor = SubspaceMonitor(estimator, limits="quantile")
                for i in range(0, n, batch):
                    monitor.partial_fit(X[i : i + batch])
                    scores.append(monitor.recent_scores_)
                filled = np.where(np.isnan(X), np.nanmean(X[:500], axis=0), X)
                frozen = InSample(5).fit(filled[:500])
                forest = IsolationForest(random_state=0).fit(filled[:500])
                for name, values in {
                    "SubspaceMonitor": np.concatenate(scores),
                    "PCA of the first 500": frozen.score_samples(filled),
                    "IsolationForest of them": forest.score_samples(filled),
                }.items():
                    auc = roc_auc_score(unlike[counted], -values[counted])
                    found.setdefault(name, []).append(auc)
                if kind == "jump":
                    after = monitor.drift_points_[monitor.drift_points_ > n // 2 - 2 * batch]
                    found.setdefault("rows to the alarm", []).append(
                        after[0] + batch - n // 2 if len(after) else np.nan
                    )
            rows.append(
                {"stream": kind, "missing": missing}
                | {name: float(np.mean(values)) for name, values in found.items()}
                | {"least of ours": min(found["SubspaceMonitor"])}
            )
    return rows


def real_data():
    """Rows and labels of what does not belong: other classes, or None; scaled columns."""
    for file in ("wine_redwhite.npz", "vehicle.npz", "sonar.npz"):
        path = load(file)
        if path is not None:
            data = np.load(path)
            X, y = data["X"].astype(float), data["y"]
            if file.startswith("wine"):
                y = data["colour"]
            yield file.split(".")[0], X, y == np.unique(y)[0]
    from sklearn.datasets import load_breast_cancer, load_digits

    X, y = load_breast_cancer(return_X_y=True)
    yield "breast cancer", X, y == 0
    X, y = load_digits(return_X_y=True)
    yield "digits, eights", X, y == 8


def on_real_rows(repeats):
    """False alarms of held-out rows of the common kind, and AUC against the other kind."""
    rows = []
    for name, X, other in real_data():
        clean, k = X[~other], 5
        found = {}
        for seed in range(repeats):
            order = np.random.default_rng(seed).permutation(len(clean))
            fit, held = clean[order[::2]], clean[order[1::2]]
            mean, scale = fit.mean(axis=0), fit.std(axis=0)
            scale[scale == 0] = 1
            fit, held, odd = ((A - mean) / scale for A in (fit, held, X[other]))
            for method, detector in detectors(k).items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # singular covariances of EllipticEnvelope
                    detector.fit(fit)
                alarms = 100 * np.mean(detector.predict(held) == -1)
                unlike = -detector.score_samples(np.concatenate([held, odd]))
                auc = roc_auc_score(np.arange(len(unlike)) >= len(held), unlike)
                found.setdefault(method, []).append((alarms, auc))
        row = {"data": name}
        for method, figures in found.items():
            alarms, auc = np.mean(figures, axis=0)
            row |= {f"{method}, %": float(alarms), f"{method}, AUC": float(auc)}
        rows.append(row)
    return rows


def of_one_row(repeats):
    """Microseconds of the processor for one row, least of some runs in turn."""
    X = np.random.default_rng(0).standard_normal((1500, 64))
    monitor = SubspaceMonitor(StreamingPCA(10)).fit(X)
    calls = {
        "transform": monitor.estimator_.transform,
        "score_samples": monitor.score_samples,
        "predict": monitor.predict,
    }
    seconds = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = process_time()
            for i in range(len(X)):
                call(X[i : i + 1])
            seconds[name].append((process_time() - start) / len(X))
    least = {name: min(values) for name, values in seconds.items()}
    return [
        {"call": name, "us": 1e6 * value, "over transform": value / least["transform"]}
        for name, value in least.items()
    ]


def main(quick=False):
    sizes = [(30, 4)] if quick else [(16, 3), (48, 4), (48, 10), (120, 7), (250, 10)]
    print("False alarms of new clean rows in %, to be 5 +- 1:")
    few = false_alarms(500, 8 if quick else 20, sizes)
    many = false_alarms(50_000, 1, [(30, 4)] if quick else [(48, 4), (120, 7)])
    table("anomalies_alarms", few + many)
    for limits in ("chi2", "quantile"):
        rates = [row[limits] for row in few + many]
        held = "holds" if min(rates) >= 4 and max(rates) <= 6 else "DOES NOT HOLD"
        print(f"{limits}: 5 % +- 1 {held} ({min(rates):.2f} to {max(rates):.2f})")
    print("\nAUC of rows with something of their own, scored and then learnt:")
    streams = over_streams(2000 if quick else 5000, 1 if quick else 4)
    table("anomalies_streams", streams)
    print("\nReal rows, half of the common kind fitted, five components:")
    table("anomalies_real", on_real_rows(1 if quick else 8))
    print("\nOne row:")
    table("anomalies_one_row", of_one_row(1 if quick else 5))

    def draw(ax):
        for limits in ("chi2", "quantile", "in-sample"):
            ax.plot([row[limits] for row in few], "o", mfc="none", label=limits)
        ax.axhline(5, color="grey", linestyle="--")
        ax.set(xlabel="kind of rows", ylabel="false alarms, %, n = 500")
        ax.legend()

    picture("anomalies", draw)
