"""What a monitor claims by default on rows that nobody tuned it on, and what holds.

Beside `SubspaceMonitor` as it is by default: its limits from variances alone (`chi2`), the quantile
of the squared errors of rows that were fitted (`in-sample`), and EllipticEnvelope. False alarms are
of clean new rows at a nominal 5 %, means over fits with their 95 % intervals.
"""

import warnings

import numpy as np
from scipy.signal import lfilter
from sklearn.covariance import EllipticEnvelope
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import roc_auc_score

from benchmarks._tools import load, table
from benchmarks.anomalies import InSample
from fedpca_sklearn import (
    PETRELS,
    ConditionalFill,
    FederatedPCA,
    StreamingPCA,
    SubspaceMonitor,
    SubspaceTracker,
)

ALPHA, D, K = 0.05, 20, 3
DEVIATIONS = np.r_[9.0, 6.0, 4.0, np.ones(D - K)]
UNITS = 10.0 ** np.linspace(-2, 2, D)


def rotated(rows, seed):
    """Rows turned by a rotation of their own, about a mean that is not zero."""
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((D, D)))[0]
    return rows @ Q + 5.0


def _normal(rng, n, seed):
    return rotated(rng.standard_normal((n, D)) * DEVIATIONS, seed)


def _of_causes(rng, n, seed, size):
    """K causes of each of n rows, by loadings that belong to the seed."""
    return size * rng.standard_normal((n, K)) @ np.random.default_rng(seed).standard_normal((K, D))


def _of_sites(rng, n, seed):
    """For each row the mean of one of five sites."""
    return np.random.default_rng(seed).standard_normal((5, D))[rng.integers(5, size=(n,))]


def _slowly(rng, n):
    """Logarithms of a size that changes over some thirty rows."""
    return lfilter([1], [1, -0.97], 0.15 * rng.standard_normal((n, 1)), 0)


def _curved(z):
    """Causes, their squares and products, in D columns."""
    return np.tile(np.concatenate([z, z**2, z * np.roll(z, 1, 1)], 1), 3)[:, :D]


GENERATORS = {
    "normal": _normal,
    "heavy tails": lambda rng, n, seed: rotated(
        rng.standard_normal((n, D)) * DEVIATIONS / np.sqrt(rng.chisquare(3, (n, 1)) / 3), seed
    ),
    "heavy entries": lambda rng, n, seed: rotated(rng.standard_t(3, (n, D)) * DEVIATIONS, seed),
    "skew": lambda rng, n, seed: rotated(np.exp(rng.standard_normal((n, D))) * DEVIATIONS, seed),
    "unequal scales": lambda rng, n, seed: _normal(rng, n, seed) * UNITS,
    "two kinds": lambda rng, n, seed: np.where(
        rng.random((n, 1)) < 0.2, _normal(rng, n, seed + 1), _normal(rng, n, seed)
    ),
    "unequal noise": lambda rng, n, seed: (
        rng.standard_normal((n, K)) @ np.ones((K, D))
        + rng.standard_normal((n, D)) * np.linspace(0.2, 2, D)
    ),
    "uniform": lambda rng, n, seed: rotated(rng.uniform(-1, 1, (n, D)) * DEVIATIONS, seed),
    "double exponential": lambda rng, n, seed: rotated(rng.laplace(size=(n, D)) * DEVIATIONS, seed),
    "gamma rows": lambda rng, n, seed: rotated(
        rng.standard_normal((n, D)) * DEVIATIONS * np.sqrt(rng.gamma(1.0, size=(n, 1))), seed
    ),
    "counts": lambda rng, n, seed: rng.poisson(np.exp(_of_causes(rng, n, seed, 0.5) + 1.0)).astype(
        float
    ),
    "rare counts": lambda rng, n, seed: rng.poisson(
        np.exp(_of_causes(rng, n, seed, 0.5) - 2.0)
    ).astype(float),
    "answers of yes and no": lambda rng, n, seed: (
        _of_causes(rng, n, seed, 1.5) + rng.logistic(size=(n, D)) > 0
    ).astype(float),
    "one-hot": lambda rng, n, seed: np.eye(4)[
        (_of_causes(rng, n, seed, 1.0)[:, :5] + rng.standard_normal((n, 5)) > -1).astype(int)
        + rng.integers(0, 3, (n, 5))
    ].reshape(n, D),
    "unequal sites": lambda rng, n, seed: (
        _normal(rng, n, seed) + _of_sites(rng, n, seed) * DEVIATIONS
    ),
    "sites of other noise": lambda rng, n, seed: (
        _normal(rng, n, seed) + rng.standard_normal((n, D)) * (3.0 * (rng.random((n, 1)) < 0.2))
    ),
    "rows that follow each other": lambda rng, n, seed: lfilter(
        [1], [1, -0.8], _normal(rng, n + 50, seed) - 5.0, 0
    )[50:],
    "bursts": lambda rng, n, seed: rotated(
        rng.standard_normal((n, D)) * DEVIATIONS * np.exp(_slowly(rng, n)), seed
    ),
    "a slow season": lambda rng, n, seed: (
        _normal(rng, n, seed) + 5.0 * np.sin(np.arange(n) / 15.0)[:, None]
    ),
    "a curved surface": lambda rng, n, seed: rotated(
        _curved(rng.standard_normal((n, K))) * 4.0 + rng.standard_normal((n, D)), seed
    ),
}


def interval(values):
    """Mean of values, and where the mean of all lies with 95 %."""
    mean, half = np.mean(values), 1.96 * np.std(values, ddof=1) / np.sqrt(len(values))
    return {"mean": float(mean), "interval": f"{mean - half:.4f} to {mean + half:.4f}"}


def false_alarms(repeats, n=300):
    """Rates of clean new rows that are flagged, by kind of rows."""
    rows = []
    for name, draw in GENERATORS.items():
        found = {"default": [], "chi2": [], "in-sample": []}
        for seed in range(repeats):
            rng = np.random.default_rng(seed)
            X, new = draw(rng, n, seed), draw(rng, 1000, seed)
            for kind, model in {
                "default": SubspaceMonitor(StreamingPCA(K)),
                "chi2": SubspaceMonitor(StreamingPCA(K), limits="chi2"),
                "in-sample": InSample(K),
            }.items():
                found[kind].append(np.mean(model.fit(X).predict(new) == -1))
        row = {"rows": name, "n": n, "fits": repeats}
        for kind, rates in found.items():
            row[kind] = interval(rates)["mean"]
        rows.append(row | {"95 % of default": interval(found["default"])["interval"]})
    return rows


def with_holes(rng, X, share, blocks=False):
    """Rows of which a share of the entries is missing, at random or in blocks of five columns."""
    lost = rng.random((len(X), D // 5 if blocks else D)) < share
    lost = np.repeat(lost, 5, axis=1) if blocks else lost
    lost[lost.all(axis=1), 0] = False
    return np.where(lost, np.nan, X)


def rows_with_holes(repeats):
    """Rates of clean rows with holes that are flagged, by estimator; nan: refused."""
    over = {
        "SubspaceTracker": lambda: SubspaceTracker(K),
        "PETRELS": lambda: PETRELS(K, random_state=0),
        "ConditionalFill": lambda: FederatedPCA(K, n_clients=2, missing=ConditionalFill()),
        "StreamingPCA, fitted on whole rows": lambda: StreamingPCA(K),
    }
    rows = []
    for name, make in over.items():
        for share, blocks in ((0.05, False), (0.3, False), (0.6, False), (0.3, True)):
            rates, chi2 = [], []
            slow = name != "StreamingPCA, fitted on whole rows"
            for seed in range(repeats):
                rng = np.random.default_rng(seed)
                X, new = _normal(rng, 600 if slow else 300, seed), _normal(rng, 500, seed)
                X = with_holes(rng, X, share, blocks) if slow else X
                new = with_holes(rng, new, share, blocks)
                for found, more in ((rates, {}), (chi2, {"limits": "chi2"})):
                    monitor = SubspaceMonitor(make(), **more)
                    try:
                        with warnings.catch_warnings():
                            warnings.simplefilter("ignore")
                            found.append(np.mean(monitor.fit(X).predict(new) == -1))
                    except ValueError:
                        found.append(np.nan)
            row = {"over": name, "missing": share, "in": "blocks" if blocks else "entries"}
            row |= {"fits": len(rates), "default": interval(rates)["mean"]}
            rows.append(
                row | {"95 % of it": interval(rates)["interval"], "chi2": interval(chi2)["mean"]}
            )
    return rows


def a_jump(kind, factor, limits, seed, before=1500, after=4500, batch=20):
    """Alarms, flagged shares after a lasting change, and how well faults are found in the end."""
    rng = np.random.default_rng(seed)
    X = _normal(rng, before + after, seed)
    if kind == "three times":
        X[before:] = 5.0 + 3 * (X[before:] - 5.0)
    elif kind == "other subspace":
        X[before:] = _normal(rng, after, seed + 1000)
    elif kind == "other mean":
        X[before:] += 6.0
    more = {} if limits is None else {"limits": limits}
    monitor, flagged = SubspaceMonitor(StreamingPCA(K, forgetting_factor=factor), **more), []
    for part in np.split(X, (before + after) // batch):
        if hasattr(monitor, "estimator_"):
            flagged.append(monitor.predict(part) == -1)
        monitor.partial_fit(part)
    flagged = np.concatenate([np.zeros(batch, bool), *flagged])
    points = monitor.drift_points_ + batch
    return {
        "alarms before": float(np.sum(points <= before)),
        "alarms after": float(np.sum(points > before)),
        "rows to the first": float((points[points > before] - before).min(initial=after)),
        "flagged before": float(flagged[500:before].mean()),
        "rows 500 to 1000": float(flagged[before + 500 : before + 1000].mean()),
        "1000 to 4500": float(flagged[before + 1000 :].mean()),
    }


def jumps(repeats):
    """Means over streams."""
    rows = []
    for kind in ("none", "three times", "other subspace", "other mean"):
        for factor in (1.0, 0.99):
            for limits in (None, "chi2"):
                found = [a_jump(kind, factor, limits, seed) for seed in range(repeats)]
                row = {"jump": kind, "forgetting": factor, "limits": limits or "default"}
                rows.append(row | {n: float(np.mean([f[n] for f in found])) for n in found[0]})
    return rows


def a_drift(limits, seed, n=6000, batch=20):
    """A subspace that turns all the time; flagged rows and alarms."""
    rng = np.random.default_rng(seed)
    X, angle = rng.standard_normal((n, D)), np.arange(n) / 1000
    signal = rng.standard_normal((n, K)) * DEVIATIONS[:K]
    for j in range(K):
        X[:, j] += np.cos(angle) * signal[:, j]
        X[:, j + K] += np.sin(angle) * signal[:, j]
    return shares_of_a_stream(X, StreamingPCA(K, forgetting_factor=0.99), limits, batch)


def a_series(limits, seed, n=8000):
    """Rows of which each is .9 of the last one and a part of its own, without a change."""
    X = lfilter([1], [1, -0.9], _normal(np.random.default_rng(seed), n + 200, seed) - 5.0, 0)[200:]
    return shares_of_a_stream(X, StreamingPCA(K), limits)


def shares_of_a_stream(X, estimator, limits, batch=20):
    """Share of the rows after the first 500 that is flagged before it is learnt, and alarms."""
    more = {} if limits is None else {"limits": limits}
    monitor, flagged = SubspaceMonitor(estimator, **more), []
    for i in range(0, len(X), batch):
        if hasattr(monitor, "estimator_"):
            flagged.append(monitor.predict(X[i : i + batch]) == -1)
        monitor.partial_fit(X[i : i + batch])
    return float(np.concatenate(flagged)[500:].mean()), len(monitor.drift_points_)


def streams(repeats):
    """A drift, a series, and light sensors in time order, standardised by the first 1,000 rows."""
    rows = []
    path = load("motes_light.npz")
    for limits in (None, "chi2"):
        shown = {"limits": limits or "default"}
        for name, drawn in (("drift", a_drift), ("series", a_series)):
            share, alarms = np.mean([drawn(limits, seed) for seed in range(repeats)], axis=0)
            rows.append({"stream": name} | shown | {"flagged": float(share), "alarms": alarms})
        if path is not None:
            X = np.load(path)["X"].astype(float)
            X = (X - X[:1000].mean(axis=0)) / X[:1000].std(axis=0)
            for factor in (1.0, 0.99):
                estimator = StreamingPCA(5, forgetting_factor=factor)
                share, alarms = shares_of_a_stream(X, estimator, limits)
                row = {"stream": f"light, forgetting {factor}"} | shown
                rows.append(row | {"flagged": share, "alarms": float(alarms)})
    return rows


def tables():
    """Clean rows and odd ones: other classes, noise on all entries, one wrong entry, far along."""
    rng = np.random.default_rng(0)
    medical, benign = load_breast_cancer(return_X_y=True)
    clean = medical[benign == 1]
    yield "medical, malignant", clean, medical[benign == 0], 5
    for size in (0.2, 0.3):
        noise = size * clean.std(axis=0) * rng.standard_normal((300, 30))
        yield (
            f"medical, noise of {size}",
            clean,
            clean[rng.integers(len(clean), size=300)] + noise,
            5,
        )
    columns = np.hstack([medical, rng.standard_normal(medical.shape) * medical.std()])
    yield "medical, 30 columns of noise", columns[benign == 1], columns[benign == 0], 5
    digits, y = load_digits(return_X_y=True)
    for digit in (0, 6, 8):
        yield f"digits, {digit}", digits[y != digit], digits[y == digit], 5
    for name, labels in (("wine_redwhite", "colour"), ("vehicle", "y"), ("sonar", "y")):
        path = load(f"{name}.npz")
        if path is not None:
            data = np.load(path)
            X, odd = data["X"].astype(float), data[labels] == np.unique(data[labels])[0]
            yield name, X[~odd][:2000], X[odd], 5
    for name in ("normal", "heavy tails"):
        X, other = GENERATORS[name](rng, 1000, 0), GENERATORS[name](rng, 500, 0)
        V = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2]
        far = other + rng.choice([-2.2, 2.2], (500, K)) * DEVIATIONS[:K] @ V[:K]
        entry = other.copy()
        entry[np.arange(500), rng.integers(D, size=500)] += 4
        yield f"{name}, far along the components", X, far, K
        yield f"{name}, an entry off", X, entry, K


def one_score(repeats):
    """AUC of the score beside Q alone, T2 alone, and EllipticEnvelope."""
    rows = []
    for name, clean, odd, k in tables():
        found = {}
        for seed in range(repeats):
            order = np.random.default_rng(seed).permutation(len(clean))
            fit, held = clean[order[::2]], clean[order[1::2]]
            mean, scale = fit.mean(axis=0), fit.std(axis=0)
            scale[scale == 0] = 1
            fit, held, bad = ((A - mean) / scale for A in (fit, held, odd))
            X = np.concatenate([held, bad])
            monitor = SubspaceMonitor(StreamingPCA(k)).fit(fit)
            q, t2 = monitor.statistics(X).T[:2]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # singular covariances
                ellipse = EllipticEnvelope(random_state=0).fit(fit)
            for kind, unlike in {
                "score": -monitor.score_samples(X),
                "Q": q,
                "T2": t2,
                "EllipticEnvelope": -ellipse.score_samples(X),
            }.items():
                auc = roc_auc_score(np.arange(len(X)) >= len(held), unlike)
                found.setdefault(kind, []).append(auc)
            found.setdefault("flagged", []).append(np.mean(monitor.predict(held) == -1))
        means = {kind: float(np.mean(values)) for kind, values in found.items()}
        less = max(means["Q"], means["T2"]) - means["score"]
        rows.append({"data": name, "k": k} | means | {"below the better": less})
    return rows


def a_broken_sensor():
    """A sensor that sends NaN, and faults of others meanwhile, over StreamingPCA."""
    rng = np.random.default_rng(0)
    X, new = _normal(rng, 1000, 0), _normal(rng, 2000, 0)
    new[:, 3] = np.nan
    new[::4, 7] += 8
    bad = np.arange(2000) % 4 == 0
    try:
        monitor = SubspaceMonitor(StreamingPCA(K)).fit(X)
        scores, labels = monitor.score_samples(new), monitor.predict(new)
    except ValueError as error:
        return f"refused: {str(error)[:60]} ..."
    return (
        f"flagged of usual rows {np.mean(labels[~bad] == -1):.3f}, "
        f"AUC of faults {roc_auc_score(bad, -scores):.3f}"
    )


def by_times():
    """A half-life in time."""
    rng = np.random.default_rng(0)
    X, times = (
        _normal(rng, 2000, 0),
        np.datetime64("2026-01-01") + 10 * np.arange(2000).astype("timedelta64[s]"),
    )
    try:
        monitor = SubspaceMonitor(StreamingPCA(K, half_life="1h"))
        monitor.fit(X[:1000], times=times[:1000])
        rate = np.mean(monitor.predict(X[1000:]) == -1)
        return f"flagged of usual rows {rate:.3f}"
    except (TypeError, ValueError) as error:
        return f"refused: {str(error)[:60]} ..."


def main(quick=False):
    repeats = 40 if quick else 500
    print("False alarms of new clean rows, nominal .05, should be .03 to .07:")
    table("calibrated_false_alarms", false_alarms(repeats))
    print("\nThe same of rows with holes:")
    table("calibrated_holes", rows_with_holes(repeats))
    print("\nA lasting jump; one alarm, then 5 % within 500 rows:")
    table("calibrated_jumps", jumps(2 if quick else 10))
    print("\nStreams that change all the time:")
    table("calibrated_streams", streams(1 if quick else 4))
    print("\nOne score, AUC beside the two statistics alone:")
    table("calibrated_score", one_score(1 if quick else 4))
    print("\nA broken sensor:", a_broken_sensor())
    print("A half-life in time:", by_times())
