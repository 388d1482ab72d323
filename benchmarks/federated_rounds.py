"""Federation by rounds: Narayanamurthy et al., Fig. 2 and 3, Lemmas 4.1 and 4.2; LocalPower.

A fixed subspace: FederatedPowerPCA through Gaussian channels. Fig. 2 b and 3:
FederatedSubspaceTracker, d = 1,000, r = 30, batches of 60, piecewise constant and rotating.
"""

from time import perf_counter

import numpy as np

from benchmarks._tools import interleaved, picture, table
from fedpca_sklearn import (
    FadingChannel,
    FederatedPowerPCA,
    FederatedSubspaceTracker,
    GaussianChannel,
    PerfectChannel,
    RobustSubspaceTracker,
    make_subspace_stream,
    partition_clients,
    subspace_distance,
)

RANK, BATCH = 30, 60


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


def figure_2a(quick):
    X, V, spectrum = spiked(1000, 300, 10, 0.5, 0)
    rows, lines = [], {}
    for sigma in (1e-2, 1e-4) if quick else (1.0, 1e-2, 1e-4, 1e-6):
        errors = []
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
            errors.append(subspace_distance(pca.components_, V))
        lines[sigma] = errors
        expected = min(1.0, floor(spectrum, 10, sigma))
        settled = float(np.median(errors[-10:]))
        rows.append(
            {
                "sigma": sigma,
                "round 5": errors[4],
                "round 10": errors[9],
                "round 20": errors[19],
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


def tracked(tracker, stream):
    owners = np.arange(len(stream.X)) % 4
    errors, seconds = [], 0.0
    for start in range(0, len(stream.X), BATCH):
        rows = slice(start, start + BATCH)
        before = perf_counter()
        if isinstance(tracker, FederatedSubspaceTracker):
            tracker.partial_fit(stream.X[rows], clients=owners[rows])
        else:
            tracker.partial_fit(stream.X[rows])
        seconds += perf_counter() - before
        now = stream.subspace_at(min(start + BATCH, len(stream.X)) - 1)
        errors.append(subspace_distance(tracker.components_, now))
    return errors, seconds


def figures_2b_and_3(quick):
    shown = (1, 2, 5, 10, 20, 25, 26, 30, 40, 50)
    rows, lines = [], {}
    options = {"batch_size": BATCH, "robust": False, "random_state": 0}
    for missing in (0.4,) if quick else (0.1, 0.2, 0.4, 0.6):
        stream = make_subspace_stream(model="piecewise", missing=missing, random_state=0)
        tracker = FederatedSubspaceTracker(RANK, channel=GaussianChannel(1e-6), **options)
        lines[f"piecewise, {missing:.0%} missing"] = tracked(tracker, stream)
    if not quick:
        stream = make_subspace_stream(random_state=0)
        tracker = FederatedSubspaceTracker(RANK, channel=GaussianChannel(1e-3), **options)
        lines["rotation, sigma 1e-3"] = tracked(tracker, stream)
        stream = make_subspace_stream(delta=0, outliers=0.05, random_state=0)
        start = RobustSubspaceTracker(RANK, batch_size=BATCH).fit(stream.X[:150]).components_
        tracker = FederatedSubspaceTracker(
            RANK, init=start, batch_size=BATCH, channel=GaussianChannel(1e-3), random_state=0
        )
        lines["5 % outliers, sigma 1e-3"] = tracked(tracker, stream)
    for name, (errors, seconds) in lines.items():
        at = {f"batch {i}": errors[i - 1] for i in shown}
        rows.append({"stream": name, "seconds": seconds, **at})
    table("federated_rounds_tracking", rows)

    def draw(ax):
        for name, (errors, _) in lines.items():
            ax.semilogy(1 + np.arange(len(errors)), errors, label=name)
        ax.set(xlabel="batch of 60 rows", ylabel="subspace error", title="Fig. 2 b and 3")
        ax.legend(fontsize=6)

    picture("federated_rounds_tracking", draw)


def lemmas(quick=False):
    rows = []
    for gap in (0.5, 0.2) if quick else (0.9, 0.8, 0.5, 0.2):
        needed, krylov, off, allowed = [], [], [], []
        for seed in range(2 if quick else 20):
            X, V, spectrum = spiked(400, 100, 5, gap, seed)
            options = {"center": False, "n_clients": 5, "tol": 1e-6, "random_state": seed}
            plain = FederatedPowerPCA(5, n_rounds=500, **options).fit(X)
            needed.append(plain.n_iter_)
            fast = FederatedPowerPCA(5, n_rounds=500, acceleration="krylov", **options).fit(X)
            krylov.append(fast.n_iter_)
            sigma = 1e-3
            noisy = FederatedPowerPCA(
                5, n_rounds=200, channel=GaussianChannel(sigma), **options
            ).fit(X)
            error = subspace_distance(noisy.components_, V)
            off.append(abs(noisy.singular_values_[0] ** 2 - spectrum[0]))
            allowed.append(error**2 + 2 * sigma * np.sqrt(5))
        rows.append(
            {
                "lambda_{r+1} / lambda_r": gap,
                "rounds to 1e-6": float(np.median(needed)),
                "log(1e6) / log(ratio)": float(np.log(1e6) / -np.log(gap)),
                "with krylov": float(np.median(krylov)),
                "largest eigenvalue off": max(off),
                "over error^2 + 2 sigma sqrt(r)": max(np.divide(off, allowed)),
            }
        )
    return rows


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
                pca = FederatedPowerPCA(5, n_rounds=n_rounds, local_steps=steps, random_state=0)
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
                5, n_rounds=60, center=False, n_clients=20, channel=channel, random_state=seed
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
        pca = FederatedPowerPCA(10, n_rounds=10, tol=0, n_jobs=n_jobs, random_state=0)
        return pca.fit(X, clients=clients)

    seconds, found = interleaved({"n_jobs=1": lambda: run(1), "n_jobs=2": lambda: run(2)}, 3)
    one = seconds["n_jobs=1"][0]
    rows = [{"": n, "seconds": s, "faster": one / s} for n, (s, _) in seconds.items()]
    table("federated_rounds_parallel", rows)
    print(found["n_jobs=2"].communication_)


def main(quick=False):
    figure_2a(quick)
    figures_2b_and_3(quick)
    table("federated_rounds_lemmas", lemmas(quick))
    local_power(quick)
    table("federated_rounds_losses", losses(quick))
    if not quick:
        parallel()
