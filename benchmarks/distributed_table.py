"""Bai, Chan and Luk: Table 1 and Fig. 1 to 4, DistributedPCA beside the truncated baseline.

X = G E^T + N as in the paper: 6,000 rows of 20 features, a plane of variance 1 and noise of
deviation 0.2, split over s clients, ten simulations each. Clients of the baseline (a) send the
components of sqrt(0.8) of their variance; both methods keep the components of 0.8 of the variance
that they know.

T_a = (sum of m_i) (p + 1) + s (p + 3), T_b = p (p + 1) / 2 log2(s) + s (p + 1) and T_e = n p are
floats that are sent; d is the spectral norm of the centred difference between the rows and their
approximation over that of the centred rows. T_ba and d_ba are means of ratios. "off" is the
distance of the two means in standard deviations of the paper, or in units of its last digit where
it prints 0.
"""

import numpy as np

from benchmarks._tools import picture, table
from fedpca_sklearn import DistributedPCA, TruncatedDistributedPCA, load_balanced_schedule

CLIENTS = (1, 2, 4, 8, 16, 32, 64, 128)
PRINTED = (1, 4, 8, 16, 32, 64, 128)  # the columns of the paper's table
# means and standard deviations
PAPER = {
    "T_ae": (
        (0.0025, 0.0092, 0.0182, 0.0348, 0.0653, 0.1193, 0.2065),
        (0.0000, 0.0001, 0.0001, 0.0004, 0.0008, 0.0011, 0.0017),
    ),
    "T_be": (
        (0.0002, 0.0042, 0.0067, 0.0098, 0.0143, 0.0217, 0.0347),
        (0, 0, 0, 0, 0, 0, 0),
    ),
    "T_ba": (
        (0.0709, 0.4556, 0.3645, 0.2814, 0.2197, 0.1819, 0.1678),
        (0, 0.0041, 0.0025, 0.0036, 0.0028, 0.0016, 0.0014),
    ),
    "d_a": (
        (0.2054, 0.2030, 0.2025, 0.2042, 0.2043, 0.2049, 0.2044),
        (0.0017, 0.0025, 0.0018, 0.0024, 0.0021, 0.0016, 0.0015),
    ),
    "d_b": (
        (0.1993, 0.1976, 0.1979, 0.1988, 0.1988, 0.1992, 0.1988),
        (0.0014, 0.0018, 0.0014, 0.0021, 0.0021, 0.0012, 0.0016),
    ),
    "d_ba": (
        (0.9703, 0.9737, 0.9778, 0.9738, 0.9731, 0.9726, 0.9725),
        (0.0042, 0.0063, 0.0061, 0.0066, 0.0033, 0.0042, 0.0034),
    ),
}
LAST_DIGIT = 1e-4
N, P, D, SIGMA = 6000, 20, 2, 0.2
LOCAL, SHARE = np.sqrt(0.8), 0.8


def simulation(s, seed):
    """One run of the paper's example: X and what is measured on it."""
    rng = np.random.default_rng([s, seed])
    X = rng.standard_normal((N, D)) @ np.eye(P, D).T + SIGMA * rng.standard_normal((N, P))
    b = DistributedPCA(SHARE, n_clients=s).fit(X)
    a = TruncatedDistributedPCA(SHARE, local_threshold=LOCAL, n_clients=s).fit(X)
    as_many = TruncatedDistributedPCA(b.n_components_, local_threshold=LOCAL, n_clients=s).fit(X)
    T_a = sum(a.local_components_.values()) * (P + 1) + s * (P + 3)
    T_b = b.communication_.floats_busiest
    d_a, d_b = left_out(X, a), left_out(X, b)
    # eigenvalues that (a) would compare with the variance of all rows, were it told
    told = np.cumsum(as_many.singular_values_**2) / b.subspace_.scatter
    return {
        "T_ae": T_a / (N * P),
        "T_be": T_b / (N * P),
        "T_ba": T_b / T_a,
        "d_a": d_a,
        "d_b": d_b,
        "d_ba": d_b / d_a,
        "m_a": a.n_components_,
        "m_b": b.n_components_,
        "m_a, share of all": 1 + int(np.sum(told <= SHARE)),
        "d_a, m_b components": left_out(X, as_many),
        "T_ba, all triangles": b.communication_.floats_up / T_a,
    }


def left_out(X, pca):
    """Spectral norm of the centred rows' rest, over that of the centred rows."""
    Z = X - X.mean(axis=0)
    V = pca.components_
    return np.linalg.norm(Z - Z @ V.T @ V, 2) / np.linalg.norm(Z, 2)


def simulations(quick=False):
    """``{s: {name: values of all runs}}``."""
    runs = range(2 if quick else 10)
    found = {s: [simulation(s, seed) for seed in runs] for s in CLIENTS}
    return {s: {name: [run[name] for run in some] for name in some[0]} for s, some in found.items()}


def beside_paper(found):
    """Rows of Table 1: ours, the paper's, and how far apart they are."""
    rows = []
    for name, (means, deviations) in PAPER.items():
        for s in CLIENTS:
            values = found[s][name]
            row = {"quantity": name, "s": s, "mean": np.mean(values), "sd": np.std(values, ddof=1)}
            row |= {"paper": "", "paper, sd": "", "off": ""}
            if s in PRINTED:
                mean, sd = (given[PRINTED.index(s)] for given in (means, deviations))
                off = abs(row["mean"] - mean) / (sd or LAST_DIGIT)
                row |= {"paper": mean, "paper, sd": sd, "off": off}
            rows.append(row)
    return rows


def printed(row):
    """A row with four decimals, as the paper prints them."""
    text = {c: f"{row[c]:.4f}" for c in ("mean", "sd", "paper", "paper, sd") if row[c] != ""}
    return row | text | ({"off": f"{row['off']:.1f}"} if row["off"] != "" else {})


def why(found):
    """What the thresholds and the counting have to do with it."""
    names = ("m_a", "m_b", "m_a, share of all", "d_a", "d_a, m_b components", "d_b")
    names += ("T_ba", "T_ba, all triangles")
    rows = []
    for s in CLIENTS:
        means = {name: np.mean(found[s][name]) for name in names}
        text = {name: f"{value:.4f}" for name, value in means.items()}
        rows.append({"s": s} | text | {name: f"{means[name]:.3g}" for name in names[:3]})
    return rows


def spectrum():
    """Fig. 1: eigenvalues of the theoretical covariance E E^T + sigma^2 I."""
    E = np.eye(P, D)
    return np.linalg.eigvalsh(E @ E.T + SIGMA**2 * np.eye(P))[::-1].tolist()


def schedule():
    """Fig. 4: what eight processors do between two updates, and what is sent after it."""
    rows = []
    for i, phase in enumerate(load_balanced_schedule(8, 5, layout="intervals")):
        row = {"interval": f"(t_{i}, t_{i + 1}]"}
        for kind in ("qr", "merge", "update"):
            steps = sorted({task.step for task in phase.tasks if task.kind == kind})
            row[kind] = "; ".join(
                f"{step}: "
                + " ".join(str(t.client) for t in phase.tasks if (t.kind, t.step) == (kind, step))
                for step in steps
            )
        steps = sorted({m.step for m in phase.messages})
        row["sent to"] = "; ".join(
            f"{step}: "
            + " ".join(f"{m.sender}>{m.receiver}" for m in phase.messages if m.step == step)
            for step in steps
        )
        rows.append(row)
    return rows


def updates():
    """Section 4: floats of the busiest way of messages, of the first rows and of each update."""
    rng, rows = np.random.default_rng(0), []
    for s in CLIENTS[1:]:
        pca, sent = DistributedPCA(n_clients=s), [0]
        for _ in range(4):
            pca.partial_fit(rng.standard_normal((N, P)))
            sent.append(pca.communication_.floats_busiest)
        first, *later = np.diff(sent)
        T_b = P * (P + 1) // 2 * int(np.ceil(np.log2(s))) + s * (P + 1)
        rows.append({"s": s, "first": first, "T_b": T_b, "each update": later[0]})
        rows[-1] |= {"beyond T_b": later[0] - T_b, "updates differ by": np.ptp(later)}
    return rows


def main(quick=False):
    found = simulations(quick)
    rows = beside_paper(found)
    table("distributed_table", [printed(row) for row in rows])
    furthest = max((row for row in rows if row["off"] != ""), key=lambda row: row["off"])
    verdict = "all within 2" if furthest["off"] <= 2 else "not all within 2"
    print(
        f"{verdict}: furthest {furthest['off']:.1f} ({furthest['quantity']}, s = {furthest['s']})\n"
    )
    print("Components by the global threshold; with as many, d_a is d_b; T_b with every triangle:")
    table("distributed_table_why", why(found))
    print("\nFig. 1, eigenvalues of the theoretical covariance:")
    table("distributed_table_spectrum", [{str(i): v for i, v in enumerate(spectrum(), 1)}])
    print("\nFig. 4, eight processors, as 'step: processors':")
    table("distributed_table_schedule", schedule())
    print("\nSection 4, floats of the first rows and of each update, 6,000 rows each:")
    table("distributed_table_updates", updates())
    draw_all(found)


def draw_all(found):
    def draw(names, title, log):
        def on(ax):
            for name, label in names.items():
                (line,) = ax.plot(CLIENTS, [np.mean(found[s][name]) for s in CLIENTS], label=label)
                ax.plot(PRINTED, PAPER[name][0], "x", color=line.get_color())
            ax.set_xscale("log", base=2)
            ax.set(xlabel="clients; crosses: the paper", title=title)
            if log:
                ax.set_yscale("log")
            ax.legend()

        return on

    floats = {"T_ae": "T_ae, truncated (Qu et al.)", "T_be": "T_be, exact (Bai et al.)"}
    picture("distributed_table", draw(floats, "floats over those of all rows", log=True))
    errors = {"d_a": "d_a, truncated (Qu et al.)", "d_b": "d_b, exact (Bai et al.)"}
    picture("distributed_table_errors", draw(errors, "error of the approximation", log=False))

    def bars(ax):
        ax.bar(range(1, P + 1), spectrum())
        ax.set(xlabel="eigenvalue", title="theoretical covariance")

    picture("distributed_table_spectrum", bars)
