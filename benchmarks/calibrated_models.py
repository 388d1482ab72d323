"""What models claim by default on rows that nobody tuned on, beside the simple thing.

- forgetting: `SubspaceTracker` by default and without forgetting, `StreamingPCA`; squared residuals
  of each batch of 40 rows beyond the model before it, over the least of the three, and of all rows
  by the last model over those of PCA. "both at best": of all subspaces between the best one of all
  rows and that of the last 400, the least that the larger of two losses is over its least: of all
  rows, and of every second one of the 400, which did not count. Light sensors, digits, wine, and
  generators: sensors by day and night, heavy tails, a change, a turn to and fro, a slow rotation,
  bursts.
- missing: `ConditionalFill` at four sites by default, after ten rounds, and means; least and
  largest variance of the components over those of the whole rows, and excess error for these.
- intervals: `jackknife_intervals` of sites of equal and unequal size, of one population and with
  means of their own; shares of repetitions with the population's value, 95 % stated.
- merges: `RobustMerge`, `NoiseAwareMerge`, `RobustSum` and `FederatedHeteroscedasticPCA` on honest
  sites that differ, periods of rows in order; squared error of every fourth row, which no site has,
  over that of `SubspaceMerge`.
- personal: `PersonalizedPCA(2, 2)`, the default, on sites that differ and on sites alike; squared
  error of every fourth row about the mean of its site, over that of four shared components by
  `SubspaceMerge`; the same of three shared and one own.
- ranks: `n_components="held-out"`; of whole rows the squared error of entries held out, each row in
  one of ten folds and predicted entry by entry by PCA of the others, over that of the best number;
  of rows with 30 % missing the error of entries filled in, over that of means, beside the best of
  some numbers and trackers of five components, in batches of 30.
- cuts: sparse rows at three sites; variance along the components of `FederatedPCA`, of the same
  after one and two refinements, and of `StreamingPCA`, as a share of that by ARPACK; what a warning
  estimates without the rows.
"""

import warnings
from itertools import product

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, eigsh
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import PCA
from sklearn.preprocessing import scale

from benchmarks._tools import load, table
from fedpca_sklearn import (
    PETRELS,
    ConditionalFill,
    FederatedHeteroscedasticPCA,
    FederatedPCA,
    FederatedPowerPCA,
    NoiseAwareMerge,
    PersonalizedPCA,
    RobustMerge,
    RobustSum,
    StreamingPCA,
    Subspace,
    SubspaceTracker,
    excess_error,
    jackknife_intervals,
    subspace_distance,
)
from fedpca_sklearn.federated._conditional_fill import filled_rows
from fedpca_sklearn.federated._lack_of_fit import share_explained

BATCH = 40


# ------------------------------------------------------------------------------------- forgetting


def days(n, period, seed, d=30, k=12):
    """Sensors that see nothing at night, of more directions by day than are tracked."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((k, d)) * np.geomspace(5, 0.5, k)[:, None]
    Z = rng.standard_normal((n, k))
    for i in range(1, n):
        Z[i] = 0.95 * Z[i - 1] + 0.3 * Z[i]
    light = np.maximum(np.sin(2 * np.pi * np.arange(n) / period), 0)[:, None]
    return (Z + 1) * light ** np.linspace(1, 4, k) @ A + 0.05 * rng.standard_normal((n, d))


def of_subspaces(n, seed, kind, d=40, k=5):
    """Rows near subspaces that change as the kind says, with noise."""
    rng = np.random.default_rng(seed)
    A, B = (rng.standard_normal((k, d)) * np.array([[5, 4, 3, 2, 1.5]]).T for _ in range(2))
    t, scores = np.arange(n), rng.standard_normal((n, k))
    if kind == "heavy tails":
        return rng.standard_t(3, (n, k)) @ A + 0.3 * rng.standard_t(3, (n, d))
    if kind == "bursts":
        X = 0.05 * scores @ A
        for at in rng.integers(0, n - 30, n // 200):
            X[at : at + 30] += 5 * rng.standard_normal((30, 1)) @ rng.standard_normal((1, d))
        return X + 0.02 * rng.standard_normal((n, d))
    turn = {
        "one subspace": np.zeros(n),
        "a change": (t >= n // 2) * np.pi / 2,
        "to and fro": (t // 400 % 2) * np.pi / 2,
        "a slow rotation": 3 * np.pi * t / n,
    }[kind][:, None]
    X = np.cos(turn) * (scores @ A) + np.sin(turn) * (scores @ B)
    return X + 0.3 * rng.standard_normal((n, d))


def streams(quick):
    """Rows in order, by name."""
    n = 1200 if quick else 4000
    data = {"digits": load_digits().data.astype(np.float64)}
    for name in ("motes_light.npz", "wine_redwhite.npz"):
        path = load(name)
        if path is not None:
            X = np.load(path)["X"].astype(np.float64)
            data[name.partition(".")[0]] = X[:n] if quick else X
    for period in (200, 400, 800):
        data[f"days of {period} rows"] = days(n, period, seed=period)
    for kind in ("one subspace", "heavy tails", "a change", "to and fro", "a slow rotation"):
        data[kind] = of_subspaces(n, 3, kind)
    data["bursts"] = of_subspaces(n, 3, "bursts")
    return data


def loss(model, Y):
    """Squared residuals of rows beyond a model."""
    Z = Y - model.mean_
    return float(np.sum((Z - Z @ model.components_.T @ model.components_) ** 2))


def losses(model, X):
    """Of each batch by the model before it, and of all rows by the last one."""
    ahead = 0.0
    for at in range(0, len(X), BATCH):
        if at >= 3 * BATCH:
            ahead += loss(model, X[at : at + BATCH])
        model.partial_fit(X[at : at + BATCH])
    return ahead, loss(model, X)


def both_at_best(X, k, window=400):
    """The least, over subspaces between two, of the larger of their losses over the least ones."""

    def best(S):
        return np.linalg.eigh(S)[1][:, -k:]

    Z, Y = X - X.mean(axis=0), X[-window:] - X[-window:].mean(axis=0)
    every, fitted, judged = Z.T @ Z, Y[::2].T @ Y[::2], Y[1::2].T @ Y[1::2]
    parts = every / np.trace(every), fitted / np.trace(fitted)
    spaces = [best((1 - w) * parts[0] + w * parts[1]) for w in np.linspace(0, 1, 201)]
    lost = [[np.trace(S) - np.sum((S @ V) * V) for S in (every, judged)] for V in spaces]
    return float((np.array(lost) / np.min(lost, axis=0)).max(axis=1).min())


def forgetting(quick):
    for name, X in streams(quick).items():
        k = 5 if X.shape[1] > 20 else 3
        models = {
            "by default": SubspaceTracker(k),
            "all count": SubspaceTracker(k, forgetting_factor=1.0),
            "StreamingPCA": StreamingPCA(k),
        }
        found = {label: losses(model, X) for label, model in models.items()}
        least = min(ahead for ahead, _ in found.values())
        best = loss(PCA(k).fit(X), X)
        yield {
            "rows": name,
            **{f"next, {label}": ahead / least for label, (ahead, _) in found.items()},
            **{f"all, {label}": after / best for label, (_, after) in found.items()},
            "both at best": both_at_best(X, k),
        }


# ---------------------------------------------------------------------------------------- missing


def spiked(n, variances, seed, tails=False, d=20):
    """Rows of a few strong directions and unit noise."""
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((d, len(variances))))[0].T
    shape = n, len(variances)
    Z = rng.standard_t(5, shape) if tails else rng.standard_normal(shape)
    return Z * np.sqrt(variances) @ V + rng.standard_normal((n, d)) + rng.standard_normal(d)


def whole_rows(quick):
    """Rows without holes, by name, and the number of components."""
    yield "variances 100, 50, 25", spiked(2000, (100, 50, 25), 1), 3
    yield "variances 10, 7, 5", spiked(2000, (10, 7, 5), 2), 3
    yield "variances 4, 3, 2.5", spiked(2000, (4, 3, 2.5), 3), 3
    yield "heavy tails", spiked(2000, (100, 50, 25), 4, tails=True), 3
    if quick:
        return
    for name, loaded in (("wine", load_wine), ("cancer", load_breast_cancer)):
        X = scale(loaded().data)
        yield name, X, 5 if X.shape[1] > 20 else 3
    X = load_digits().data
    yield "digits", scale(X[:, X.std(axis=0) > 0]), 5


def missing(quick):
    for name, X, k in whole_rows(quick):
        clients, whole = np.arange(len(X)) % 4, FederatedPCA(k).fit(X)
        for share in (0.3, 0.5, 0.7):
            holes = np.where(np.random.default_rng(5).random(X.shape) < share, np.nan, X)
            by_means = np.where(np.isnan(holes), np.nanmean(holes, axis=0), holes)
            fills = {"by default": ConditionalFill(), "10 rounds": ConditionalFill(10)}
            models = {
                label: FederatedPCA(k, missing=fill).fit(holes, clients=clients)
                for label, fill in fills.items()
            }
            models["means"] = FederatedPCA(k).fit(by_means, clients=clients)
            row = {"rows": name, "missing": share}
            for label, model in models.items():
                ratios = model.explained_variance_ / whole.explained_variance_
                row[label] = f"{ratios.min():.2f} to {ratios.max():.2f}"
                row[f"excess, {label}"] = excess_error(X, model.components_, model.mean_)
            yield row


# -------------------------------------------------------------------------------------- intervals

SIZES = {
    "10 of 200": np.full(10, 200),
    "10 of 1,000 to 15": np.geomspace(1000, 15, 10).astype(int),
    "25 of 1,000 to 15": np.geomspace(1000, 15, 25).astype(int),
}
MEANS = {"none": np.zeros(12), "of all columns": 0.7 * np.sqrt([10, 4] + [0.09] * 10)}
MEANS["of two columns"] = np.sqrt([10, 4] + [0] * 10)


def drawn_sites(rng, sizes, deviation):
    """Rows of sites whose means have these deviations."""
    scale_of = np.sqrt([10, 4] + [1] * 10)
    return [
        rng.standard_normal((n, 12)) * scale_of + deviation * rng.standard_normal(12) for n in sizes
    ]


def intervals(quick):
    for i, ((name, sizes), (kind, deviation)) in enumerate(product(SIZES.items(), MEANS.items())):
        rng, hits, warned = np.random.default_rng(i), [], 0
        variance = np.array([10, 4]) + deviation[:2] ** 2
        for _ in range(20 if quick else 2000):
            parts = drawn_sites(rng, sizes, deviation)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found = jackknife_intervals([Subspace.from_rows(rows) for rows in parts], 2)
            warned += bool(caught)
            ends = found.explained_variance_interval
            W = PCA(2).fit(np.concatenate(parts)).components_
            sine = subspace_distance(W, np.eye(2, 12))
            inside = (ends[:, 0] <= variance) & (variance <= ends[:, 1])
            hits.append([*inside, sine <= found.subspace_sine_bound, *(ends[:, 1] / ends[:, 0])])
        hits = np.array(hits)
        yield {
            "sites": name,
            "means": kind,
            "first variance": hits[:, 0].mean(),
            "second": hits[:, 1].mean(),
            "angle": hits[:, 2].mean(),
            "end over end": float(np.median(hits[:, 3:])),
            "warned": warned / len(hits),
        }


# ----------------------------------------------------------------------------------------- merges


def merges(quick):
    data = {name: X for name, X in streams(quick).items() if name != "one subspace"}
    for name, X in data.items():
        X, k = scale(X[:, X.std(axis=0) > 0]), 5 if X.shape[1] > 20 else 3
        held, sites = np.arange(len(X)) % 4 == 0, np.arange(len(X)) * 20 // len(X)
        plain = FederatedPCA(k).fit(X[~held], clients=sites[~held])
        row, found = {"rows": name}, {}
        for label, model in {
            "RobustMerge": FederatedPCA(k, merge=RobustMerge()),
            "NoiseAwareMerge": FederatedPCA(k, merge=NoiseAwareMerge()),
            "RobustSum": FederatedPowerPCA(k, channel=RobustSum(), random_state=0),
            "heteroscedastic": FederatedHeteroscedasticPCA(k, random_state=0),
        }.items():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                found[label] = model.fit(X[~held], clients=sites[~held])
            row[label] = loss(model, X[held]) / loss(plain, X[held])
            row[f"{label} warned"] = sum(
                "SubspaceMerge is better" in str(w.message) for w in caught
            )
        row["suspects"] = len(found["RobustMerge"].suspects_)
        row["of RobustSum"] = len(found["RobustSum"].suspects_)
        yield row


# --------------------------------------------------------------------------------------- personal


def sites_of_tables(quick):
    """Standardised rows with their sites, by name: periods, labels, and shards at random."""
    for name, X in streams(quick).items():
        yield f"{name}, periods", scale(X[:, X.std(axis=0) > 0]), np.arange(len(X)) * 20 // len(X)
    for name, loaded in (
        ("digits", load_digits),
        ("wine", load_wine),
        ("cancer", load_breast_cancer),
    ):
        data = loaded()
        X = scale(data.data[:, data.data.std(axis=0) > 0])
        yield f"{name}, labels", X, data.target
        yield f"{name}, shards", X, np.random.default_rng(0).integers(4, size=len(X))


def personal(quick):
    for name, X, sites in sites_of_tables(quick):
        held, row = np.arange(len(X)) % 4 == 0, {"rows": name}
        plain = FederatedPCA(4).fit(X[~held], clients=sites[~held])
        for shared, own in ((2, 2), (3, 1)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                pca = PersonalizedPCA(shared, own).fit(X[~held], clients=sites[~held])
            Z = pca.transform(X[held], clients=sites[held])
            left = X[held] - pca.inverse_transform(Z, clients=sites[held])
            row[f"{shared} shared, {own} own"] = float(np.sum(left**2)) / loss(plain, X[held])
            if own == 2:
                row["need own"] = f"{sum(pca.needs_local_.values())} of {len(pca.needs_local_)}"
                row["warned"] = len(caught)
        yield row


# ------------------------------------------------------------------------------------------ ranks


def errors_of_folds(X, n_folds=10):
    """Squared error of entries that are predicted from the others of a row, by number."""
    (n, d), fold = X.shape, np.random.default_rng(0).permutation(len(X)) % n_folds
    errors = np.zeros(min(d - 1, n * 9 // 10 - 2) + 1)
    for i in range(n_folds):
        train = X[fold != i]
        Z = X[fold == i] - train.mean(axis=0)
        values, V = np.linalg.eigh(np.cov(train.T, bias=True))
        values, V = values[::-1], V[:, ::-1]
        for r in range(len(errors)):
            noise = max(values[r:].mean(), 1e-12 * values[0])
            P = (V / np.r_[values[:r], np.full(d - r, noise)]) @ V.T
            errors[r] += np.sum((Z @ P / np.diag(P)) ** 2)
    return errors


def with_numbers(quick):
    """Whole rows, standardised, by name."""
    data = {name: scale(X[::5]) for name, X in streams(quick).items() if "days" not in name}
    data = {name: X[:, X.std(axis=0) > 0] for name, X in data.items()}
    data |= {f"days of {period} rows": days(800, period, period) for period in (200, 800)}
    data |= {
        name: scale(of().data) for name, of in (("wine", load_wine), ("cancer", load_breast_cancer))
    }
    for variances in ((10, 7, 5), (4, 3, 2.5)):
        data[f"variances {variances}"] = spiked(500, variances, 2)
    return data | {"noise": np.random.default_rng(0).standard_normal((300, 15))}


def filled_by(pca, holes):
    """Rows filled in by the model of a fit with `ConditionalFill`."""
    return filled_rows(holes, pca.subspace_.truncate(pca.n_components_))


def filled_in_batches(tracker, holes, size=30):
    """Batches filled in by the tracker that has seen them."""
    parts = []
    for at in range(0, len(holes), size):
        tracker.partial_fit(holes[at : at + size])
        parts.append(tracker.impute(holes[at : at + size]))
    return np.concatenate(parts)


def ranks(quick):
    for name, X in with_numbers(quick).items():
        errors, number = errors_of_folds(X), StreamingPCA("held-out").fit(X).n_components_
        row = {"rows": name, "number": number, "best": int(np.argmin(errors))}
        row["error over best"] = errors[number] / errors.min()
        lost = np.random.default_rng(1).random(X.shape) < 0.3
        holes, sites = np.where(lost, np.nan, X), np.arange(len(X)) % 4
        by_means = np.sum((np.nanmean(holes, axis=0) - X)[lost] ** 2)

        def rms(filled, X=X, lost=lost, by_means=by_means):
            return float(np.sqrt(np.sum((filled - X)[lost] ** 2) / by_means))

        def with_fill(number, holes=holes, sites=sites):
            pca = FederatedPCA(number, missing=ConditionalFill())
            return pca.fit(holes, clients=sites)

        pca, tried = with_fill("held-out"), []
        for k in (1, 2, 3, 5, 8, 12, 16, 20):
            try:
                tried.append(rms(filled_by(with_fill(k), holes)))
            except ValueError:  # too few entries
                break
        row |= {"30 % missing": pca.n_components_, "rms": rms(filled_by(pca, holes))}
        row["best rms"] = min(tried)
        row["SubspaceTracker(5)"] = rms(filled_in_batches(SubspaceTracker(5), holes))
        row["PETRELS(5)"] = rms(filled_in_batches(PETRELS(5, random_state=0), holes))
        yield row


# ------------------------------------------------------------------------------------------- cuts


def documents(n, d, seed, topics=80, words=30):
    """Counts of words that are drawn from topics, as of documents."""
    rng = np.random.default_rng(seed)
    of_words = rng.dirichlet(np.full(d, 0.02), topics).cumsum(axis=1)
    of_topics = rng.dirichlet(np.full(topics, 0.1), n).cumsum(axis=1)
    topic = np.stack(
        [(of_topics > rng.random((n, 1))).argmax(axis=1) for _ in range(words)], axis=1
    )
    word = np.empty((n, words), dtype=int)
    for t in range(topics):
        word[topic == t] = np.searchsorted(of_words[t, :-1], rng.random(np.sum(topic == t)))
    at = np.repeat(np.arange(n), words), word.ravel()
    X = sp.csr_matrix((np.ones(n * words), at), shape=(n, d))
    X.sum_duplicates()
    return X


def sparse_rows(quick):
    """Sparse rows with three sites, by name, and the number of components."""
    n, d = (5000, 1000) if quick else (50_000, 5000)
    X = documents(n, d, 0)
    yield "documents, shards", X, np.arange(n) * 3 // n, 50
    along_first = np.asarray(X @ StreamingPCA(1).fit(X).components_[0]).ravel()
    yield "documents, by their topics", X, np.argsort(np.argsort(along_first)) * 3 // n, 50
    path = None if quick else load("newsgroups20_counts.npz")
    if path is not None:
        counts = sp.load_npz(path).tocsr().astype(np.float64)
        counts = counts[:, np.argsort(-counts.getnnz(axis=0))[50:5050]]
        counts.data = np.log1p(counts.data)
        yield "newsgroups, in order", counts, np.arange(counts.shape[0]) * 3 // counts.shape[0], 50
    noise = sp.random(n, d, 0.005, "csr", random_state=0)
    yield "entries at random", noise, np.arange(n) * 3 // n, 50


def energy(X, mean, V):
    """Sum of squares of sparse rows along directions."""
    return float(np.sum((X @ V.T - V @ mean) ** 2))


def cuts(quick):
    for name, X, sites, k in sparse_rows(quick):
        n, d, mean = *X.shape, np.asarray(X.mean(axis=0)).ravel()

        def times(v, X=X, mean=mean, n=n):
            return X.T @ (X @ v) - n * mean * (mean @ v)

        best = eigsh(LinearOperator((d, d), times, dtype=float), k, return_eigenvectors=False).sum()
        row = {"rows": name, "StreamingPCA": energy(X, mean, StreamingPCA(k).fit(X).components_)}
        for rounds in (0, 1, 2):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                pca = FederatedPCA(k, n_refinements=rounds).fit(X, clients=sites)
            row[f"{rounds} rounds" if rounds else "FederatedPCA"] = energy(X, mean, pca.components_)
            if not rounds:
                parts = list(pca.summaries_.values())
                estimate, warned = share_explained(parts, pca.subspace_, k), len(caught)
        row = {key: value if key == "rows" else value / best for key, value in row.items()}
        yield row | {"estimate": estimate, "warned": warned}


def main(quick=False):
    for section in (forgetting, missing, intervals, merges, personal, ranks, cuts):
        print(f"\n{section.__name__}")
        table(f"calibrated_{section.__name__}", list(section(quick)))
