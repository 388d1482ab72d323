"""Federation by rounds: Narayanamurthy et al., Fig. 2 b and 3, Lemmas 4.1 and 4.2; our own extras.

Fig. 2 b and 3: FederatedSubspaceTracker, d = 1,000, r = 30, batches of 60, four clients, noise of
standard deviation 1e-6. The lemmas: FederatedPowerPCA on rows with a flat spectrum behind the r-th
eigenvalue. Ours: a tracker with outliers, the floor of a fixed subspace by noise, LocalPower,
clients that drop out, threads.
"""

from math import ceil, log, sqrt

import numpy as np

from benchmarks._streams import (
    BATCH,
    PAPER,
    RANK,
    draw_lines,
    errors,
    first_below,
    shown,
    targets,
)
from benchmarks._tools import claim, interleaved, picture, table
from fedpca_sklearn import (
    ChangeDetection,
    FadingChannel,
    FederatedPowerPCA,
    FederatedSubspaceTracker,
    FirstSubspace,
    GaussianChannel,
    PerfectChannel,
    RobustSubspaceTracker,
    SubspaceTracker,
    make_subspace_stream,
    partition_clients,
    subspace_distance,
)


def floor(spectrum, rank, sigma):
    """Predicted error of the last direction in the steady state of the noisy power method."""
    ratio = spectrum[rank - 1] ** 2 - spectrum[rank:] ** 2
    return sigma * float(np.sqrt(np.sum(1 / ratio)))


def spiked(n, d, rank, gap, seed):
    """Rows whose eigenvalues are 1 for the first ``rank`` directions and ``gap`` for the others."""
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((d, d)))[0]
    U = np.linalg.qr(rng.standard_normal((n, d)))[0]
    spectrum = np.where(np.arange(d) < rank, 1.0, gap)
    return (U * np.sqrt(spectrum)) @ V.T, V[:, :rank].T, spectrum


def fixed_subspace(quick):
    X, V, spectrum = spiked(1000, 300, 10, 0.5, 0)
    rows, lines = [], {}
    for sigma in (1e-2, 1e-4) if quick else (1.0, 1e-2, 1e-4, 1e-6):
        line = []
        for n_rounds in range(1, 25 if quick else 41):
            pca = FederatedPowerPCA(
                10,
                n_rounds=n_rounds,
                channel=GaussianChannel(sigma),
                center=False,
                n_clients=10,
                tol=0,
                random_state=0,
            ).fit(X)
            line.append(subspace_distance(pca.components_, V))
        lines[sigma] = line
        expected = min(1.0, floor(spectrum, 10, sigma))
        settled = float(np.median(line[-10:]))
        rows.append(
            {
                "sigma": sigma,
                "round 5": line[4],
                "round 10": line[9],
                "round 20": line[19],
                "settled": settled,
                "predicted": expected,
                "ratio": settled / expected,
            }
        )
    table("federated_rounds_noise", rows)

    def draw(ax):
        for sigma, line in lines.items():
            ax.semilogy(1 + np.arange(len(line)), line, label=f"sigma = {sigma:g}")
        ax.set(xlabel="round", ylabel="subspace error", title="a fixed subspace")
        ax.legend(fontsize=7)

    picture("federated_rounds_noise", draw)


def tracker(sigma, **options):
    return FederatedSubspaceTracker(
        RANK,
        batch_size=BATCH,
        robust=False,
        n_clients=4,
        channel=GaussianChannel(sigma),
        random_state=0,
        **PAPER,
        **options,
    )


def figure_2b(quick):
    rows, lines = [], {}
    for missing in (0.2, 0.6) if quick else (0.1, 0.2, 0.4, 0.6):
        stream = make_subspace_stream(model="piecewise", missing=missing, random_state=0)
        lines[missing], seconds = errors(tracker(1e-6), stream, targets(stream))
        rows.append({"missing": missing, "seconds": seconds, **shown(lines[missing])})
    table("federated_rounds_missing", rows)
    worst = max(max(line[24], line[49]) for line in lines.values())
    claim("It works with all shares missing", worst < 0.02, f"batches 25 and 50 below {worst:.1e}")
    for start, when in ((0, "from the start"), (25, "after the change")):
        needed = [first_below(line[start:], 0.1) for line in lines.values()]
        claim(
            f"More missing needs more samples, {when}",
            needed == sorted(set(needed)),
            f"batches until the error is below .1: {', '.join(map(str, needed))}",
        )
    named = {f"{missing:.0%} missing": line for missing, line in lines.items()}
    picture("federated_rounds_missing", lambda ax: draw_lines(ax, named, "Fig. 2 b"))


def figure_3(quick):
    """Algorithm 3 with noise in every round beside NORST-like tracking without."""
    rows, floor = [], {}
    for name in ("piecewise",) if quick else ("walk", "piecewise"):
        stream = make_subspace_stream(model=name, random_state=0)
        P = targets(stream)
        norst = SubspaceTracker(RANK, batch_size=BATCH, detect_changes=ChangeDetection(), **PAPER)
        methods = {
            "noise 1e-6": tracker(1e-6),
            "noise 1e-3, variance 1e-6": tracker(1e-3),
            "NORST-like, no noise": norst,
        }
        lines = {}
        for method, model in methods.items():
            lines[method], seconds = errors(model, stream, P)
            rows.append({name: method, "seconds": seconds, **shown(lines[method])})
        noisy, plain = lines["noise 1e-6"], lines["NORST-like, no noise"]
        above = plain > 1e-4
        claim(
            f"{name}: as good as NORST without noise",
            np.all(noisy[above] < 1.05 * plain[above]),
            f"at most {(noisy / plain)[above].max():.3f} times its error while that is above 1e-4",
        )
        floor[name] = noisy[20:25].max(), noisy[45:].max()
        picture(
            f"federated_rounds_{name}",
            lambda ax, lines=lines, name=name: draw_lines(ax, lines, f"Fig. 3, {name}"),
        )
    for name in floor:
        table(f"federated_rounds_{name}", [row for row in rows if name in row])
    before, after = floor["piecewise"]
    claim(
        "The error does not fall below the noise, 1e-6",
        1e-6 < min(before, after) <= max(before, after) < 1e-5,
        f"{before:.1e} in batches 21 to 25, {after:.1e} in 46 to 50, where over_air_noise has the "
        "floor at 5 sigma",
    )


def outliers_through_a_channel():
    """Ours: outliers as well, and a start from clean rows."""
    stream = make_subspace_stream(
        model="piecewise", change_points=(), outliers=0.05, random_state=0
    )
    start = RobustSubspaceTracker(RANK, batch_size=BATCH, **PAPER).fit(stream.X[:150])
    model = tracker(1e-3, init=FirstSubspace(start.components_)).set_params(robust=True)
    line, seconds = errors(model, stream, targets(stream))
    table("federated_rounds_outliers", [{"5 % outliers": 1e-3, "seconds": seconds, **shown(line)}])


def over_the_air(X, V, n_rounds, noise, seed, init=None):
    """Error of FedOA-PM, and its largest eigenvalue."""
    pca = FederatedPowerPCA(
        len(V),
        n_rounds=n_rounds,
        tol=0,
        center=False,
        n_clients=5,
        channel=GaussianChannel(noise),
        init=init,
        random_state=seed,
    ).fit(X)
    return subspace_distance(pca.components_, V), pca.singular_values_[0] ** 2


def lemmas(quick=False):
    """Lemmas 4.1 and 4.2 with the paper's formulas, constant 1, and eps = 1e-6.

    L = log(n r / eps) / log(1 / R) rounds from a random start, log(1 / (eps sqrt(1 - eps_0^2))) /
    log(1 / R) from one at eps_0; noise eps sigma_r / (5 sqrt(n)), the most that is allowed.
    """
    eps, eps_0, n, r = 1e-6, 0.5, 100, 5
    noise, rows = eps / (5 * sqrt(n)), []
    for ratio in (0.5, 0.2) if quick else (0.985, 0.9, 0.8, 0.5, 0.2):
        random = ceil(log(n * r / eps) / log(1 / ratio))
        given = ceil(log(1 / (eps * sqrt(1 - eps_0**2))) / log(1 / ratio))
        low = (1 - 4 * eps**2) - eps**2 * ratio - eps
        found, near, plain = [], [], []
        for seed in range(3 if quick else 20):
            X, V, _ = spiked(400, n, r, ratio, seed)
            found.append(over_the_air(X, V, random, noise, seed))
            near.append(over_the_air(X, V, given, noise, seed, at_distance(V, eps_0, seed)))
            pca = FederatedPowerPCA(
                r, n_rounds=2000, acceleration=None, center=False, tol=eps, random_state=seed
            )
            plain.append(pca.fit(X).n_iter_)
        rows.append(
            {
                "R": ratio,
                "rounds without noise": float(np.median(plain)),
                "L, random start": random,
                "within eps": float(np.mean([error <= eps for error, _ in found])),
                "median error / eps": float(np.median([error / eps for error, _ in found])),
                "L, eps_0 = .5": given,
                "most error / eps": max(error / eps for error, _ in near),
                "in Lemma 4.2": float(np.mean([low <= s <= 1 + eps for _, s in found + near])),
            }
        )
    return rows


def at_distance(V, distance, seed):
    """A basis at this sine of every angle to V."""
    W = np.random.default_rng(seed).standard_normal(V.shape)
    W = np.linalg.qr((W - W @ V.T @ V).T)[0].T
    return sqrt(1 - distance**2) * V + distance * W


def report_lemmas(rows):
    table("federated_rounds_lemmas", rows)
    for row in rows:
        claim(
            f"Lemma 4.1 at R = {row['R']}",
            row["within eps"] >= 0.9,
            f"{row['within eps']:.0%} of the random starts within eps after L rounds, median error "
            f"{row['median error / eps']:.2f} eps; given starts at most "
            f"{row['most error / eps']:.2f} eps",
        )
    claim(
        "Lemma 4.2",
        all(row["in Lemma 4.2"] == 1 for row in rows),
        f"{min(row['in Lemma 4.2'] for row in rows):.0%} of the runs or more in the interval",
    )


def local_power(quick):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, 100)) * np.arange(1, 101) ** -0.5
    alike = np.arange(20_000) % 10
    unlike = partition_clients(np.round(X[:, 0] * 10), 10, method="label", random_state=0)
    true = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:5]
    rows = []
    for steps in (1, 4) if quick else (1, 2, 4, 8):
        row = {"local steps": steps}
        for name, clients in (("alike", alike), ("unlike", unlike)):
            for n_rounds in (5, 20, 80):
                pca = FederatedPowerPCA(
                    5,
                    n_rounds=n_rounds,
                    local_steps=steps,
                    acceleration=None,
                    tol=1e-8,
                    random_state=0,
                )
                error = subspace_distance(pca.fit(X, clients=clients).components_, true)
                row[f"{name}, {n_rounds} rounds"] = error
        rows.append(row)
    table("federated_rounds_local", rows)


def losses(quick=False):
    """Clients that drop out, and links that fade: median error of seeds, and clients a round."""
    X, V, _ = spiked(2000, 100, 5, 0.5, 0)
    channels = {f"{p:.0%} drop out": PerfectChannel(dropout=p) for p in (0.0, 0.1, 0.3, 0.5)}
    channels |= {
        "Gaussian": GaussianChannel(1e-4),
        "fading": FadingChannel(1e-4),
        "fading, max_power=2": FadingChannel(1e-4, max_power=2.0),
        "fading, pilots off by 10 %": FadingChannel(1e-4, pilot_std=0.1),
        "fading, pilots off by 30 %": FadingChannel(1e-4, pilot_std=0.3),
        "fading, 8 entries late": FadingChannel(1e-4, max_delay=8),
        "the same without padding": FadingChannel(1e-4, max_delay=8, padding=0),
    }
    rows = []
    for name, channel in channels.items():
        errors, sent = [], []
        for seed in range(2 if quick else 5):
            pca = FederatedPowerPCA(
                5,
                n_rounds=60,
                acceleration=None,
                tol=1e-8,
                center=False,
                n_clients=20,
                channel=channel,
                random_state=seed,
            ).fit(X)
            errors.append(subspace_distance(pca.components_, V))
            sent += [row["messages_up"] for row in pca.communication_.table]
        median = float(np.median(errors))
        rows.append({"channel": name, "median error": median, "clients": float(np.mean(sent))})
    return rows


def parallel():
    X = np.random.default_rng(0).standard_normal((320_000, 500))
    X *= np.arange(1, 501) ** -0.5
    clients = np.repeat(np.arange(16), 20_000)

    def run(n_jobs):
        pca = FederatedPowerPCA(
            10, n_rounds=10, acceleration=None, tol=0, n_jobs=n_jobs, random_state=0
        )
        return pca.fit(X, clients=clients)

    seconds, found = interleaved({"n_jobs=1": lambda: run(1), "n_jobs=2": lambda: run(2)}, 3)
    one = seconds["n_jobs=1"][0]
    rows = [{"": n, "seconds": s, "faster": one / s} for n, (s, _) in seconds.items()]
    table("federated_rounds_parallel", rows)
    print(found["n_jobs=2"].communication_)


def main(quick=False):
    figure_2b(quick)
    figure_3(quick)
    report_lemmas(lemmas(quick))
    fixed_subspace(quick)
    if not quick:
        outliers_through_a_channel()
    local_power(quick)
    table("federated_rounds_losses", losses(quick))
    if not quick:
        parallel()
