"""Grammenos et al., lemmas, Theorem 1, Algorithms 2 and 5, eq. 14, memory: what holds.

Lemma 1: summaries of clients that cut nothing, merged, against the SVD of all rows. Lemma 2.1: the
projected data of eq. 5, kept by the way, against the residual of the least rank that SAPCA had, on
Synth(alpha), 4,000 x 400. Lemma 2.2: singular values and subspaces of SPCA for 20 orders of
10,000 x 100 rows, cut and not cut. Theorem 1: eq. 9 to 12 on a spiked covariance, where its
conditions can be met, and what they ask for on Synth(alpha). Algorithm 2: as printed, lambda_2
multiplies one of the two blocks of U_2 Sigma_2. Algorithm 5: a QR factorisation before the SVD.
Section 3: floats that SPCA keeps after k blocks, as pickled, and the peak of a block. Eq. 14: one
row a step with 2 alpha_t = c / t, from the same random basis, beside SPCA.
"""

import pickle
import tracemalloc
from time import process_time

import numpy as np

from benchmarks._tools import table
from fedpca_sklearn import (
    ContributionBounds,
    FederatedPCA,
    StreamingPCA,
    Subspace,
    make_power_law,
    make_spiked,
    merge_subspaces,
    subspace_distance,
)

RANK, BLOCK = 10, 50
ALPHAS = (0.0001, 0.001, 0.5, 1.0, 2.0, 3.0)


def spca(rank, block=BLOCK, rule=None):
    return StreamingPCA(rank, rank_rule=rule, block_size=block, oversampling=0, center=False)


# --------------------------------------------------------------------------------- Lemma 1


def lemma_1(quick):
    X = make_power_law(1000 if quick else 10_000, 100, alpha=1.0, random_state=0)
    s, V = np.linalg.svd(X, full_matrices=False)[1:]
    rows = []
    for m in (2, 8, 32):
        sites = [spca(None).fit(part).subspace_ for part in np.array_split(X, m)]
        whole = merge_subspaces(sites, None)
        rows.append(
            {
                "clients": m,
                "singular values": np.abs(whole.singular_values - s).max() / s[0],
                "first 10 directions": subspace_distance(whole.components[:10], V[:10]),
            }
        )
    return rows


# --------------------------------------------------------------------------------- Lemma 2


def projected_data(X, model, block=BLOCK):
    """Yhat of eq. 5, as rows: every block's SVD cuts the projections of all rows before it."""
    Z = np.zeros((0, 0))
    V = np.zeros((0, X.shape[1]))
    for start in range(0, len(X), block):
        rows = X[start : start + block]
        before, V = V, model.partial_fit(rows).components_
        Z = np.concatenate([Z @ (before @ V.T), rows @ V.T])
    return Z @ V


def lemma_21(quick):
    rows = []
    for alpha, start in [(alpha, RANK) for alpha in ALPHAS] + [(1.0, 1), (1.0, 2 * RANK)]:
        X = make_power_law(*((1000, 100) if quick else (4000, 400)), alpha=alpha, random_state=0)
        model = spca(start, rule=ContributionBounds())
        rows.append({"data": f"Synth({alpha:g}), from rank {start}"} | bounded(X, model))
    low, _ = make_spiked(1000, 40, spikes=np.ones(8), noise_variance=0.0, random_state=0)
    return [*rows, {"data": f"of rank 8, from rank {RANK}"} | bounded(low, spca(RANK))]


def bounded(X, model):
    """Squared errors over the squared residuals of Lemma 2.1."""
    tail = np.append(np.cumsum(np.linalg.svd(X, compute_uv=False)[::-1] ** 2)[::-1], 0.0)
    error = np.linalg.norm(X - projected_data(X, model)) ** 2
    V = model.components_
    now = np.linalg.norm(X - X @ V.T @ V) ** 2
    ranks = getattr(model, "rank_history_", [len(V)])
    least, most = min(ranks), max(ranks)
    exact = tail[least] < 1e-20 * tail[0]  # rows of at most this rank
    return {
        "ranks": f"{least}-{most}",
        "projected / rho(least)": error / tail[0] if exact else error / tail[least],
        "projected / rho(greatest)": "" if exact else error / tail[most],
        "last subspace / rho(least)": "" if exact else now / tail[least],
    }


def lemma_22(quick):
    X = make_power_law(2000 if quick else 10_000, 100, alpha=1.0, random_state=0)
    models = {f"SPCA, r = {r}": spca(r) for r in (5, 20, 50, 75)}
    models |= {
        "SPCA, r = 100, nothing cut": spca(100),
        "FederatedPCA(5), 8 clients": FederatedPCA(5, n_clients=8),
    }
    rows = []
    for name, model in models.items():
        first = model.fit(X)
        s, V = first.singular_values_, first.components_
        moved, last, all_of_them = [], [], []
        for seed in range(2 if quick else 20):
            model.fit(X[np.random.default_rng(seed).permutation(len(X))])
            moved.append(np.abs(model.singular_values_ - s).max() / s[0])
            last.append(subspace_distance(model.components_[-1:], V[-1:]))
            all_of_them.append(subspace_distance(model.components_, V))
        rows.append(
            {
                "estimator": name,
                "singular values": max(moved),
                "last direction": max(last),
                "subspace": max(all_of_them),
            }
        )
    return rows


# ------------------------------------------------------------------------------- Theorem 1


def theorem(variances, rank, alpha, p):
    """Eta of eq. 9, the least block, its power, and log10 of G of eq. 10 as a function."""
    rho = variances[rank:].sum()
    first, last = variances[0], variances[rank - 1]
    eta = first / last + np.sqrt(2 * alpha * rho / (p ** (1 / 3) * last))
    block = alpha * p ** (1 / 3) * rank / (p ** (1 / 6) - 1) ** 2  # the constant c left out
    power = p * eta**2
    constant = alpha * p ** (1 / 3) / (p ** (1 / 3) - 1) ** 2
    constant *= min(first / last * rho, rank * first + rho)

    def log_G(tau, b):
        return np.log10(constant) + power * np.log10(4) + (power - 1) * np.log10(tau / (power * b))

    return eta, block, power, log_G


def theorem_1(quick):
    d, rank, alpha, p, noise = 100, 5, 1.0, 2.0, 1e-6
    variances = np.r_[np.ones(rank), np.zeros(d - rank)] + noise
    _, block, power, log_G = theorem(variances, rank, alpha, p)
    b = int(np.ceil(block))
    rows = []
    for times in (4, 16) if quick else (4, 16, 64):
        tau = times * b
        X, V = make_spiked(tau, d, spikes=np.ones(rank), noise_variance=noise, random_state=times)
        model = spca(rank, b)
        error = np.linalg.norm(X - projected_data(X, model, b)) ** 2 / tau
        residual = (np.linalg.svd(X, compute_uv=False)[rank:] ** 2).sum() / tau
        missed = rank - np.linalg.norm(model.components_ @ V.T) ** 2
        G = 10 ** log_G(tau, b)
        rows.append(
            {
                "tau": tau,
                "least tau": power * b,
                "error": error,
                "eq. 10": G,
                "risk": missed + noise * (d - rank),
                "eq. 11": G + alpha * (d - rank) * variances[0] * np.sqrt(np.log(tau) / tau),
                "of no model": rank * variances[0] + variances[rank:].sum(),
                "error / residual": error / residual,
                "(tau / b)^(p eta^2 - 1)": times ** (power - 1),
            }
        )
    return rows


def theorem_1_on_synth(quick):
    return [asked(alpha) for alpha in ALPHAS]


def asked(alpha, d=400, rank=RANK):
    """What Theorem 1 asks for on Synth(alpha), at the p that needs the fewest rows."""
    variances = np.arange(1, d + 1) ** -alpha

    def needed(p):
        _, block, power, _ = theorem(variances, rank, 1.0, p)
        return power * block

    p = min(np.geomspace(1.1, 1e8, 2000), key=needed)
    eta, block, _, log_G = theorem(variances, rank, 1.0, p)
    trivial = rank * variances[0] + variances[rank:].sum()
    return {
        "alpha": alpha,
        "p": p,
        "eta": eta,
        "least b": block,
        "least tau": needed(p),
        "the same, b = 50, p = 1": BLOCK * theorem(variances, rank, 1.0, 1 + 1e-9)[2],
        "log10 of eq. 10 over no model": log_G(needed(p), block) - np.log10(trivial),
    }


# ----------------------------------------------------------------------------- Algorithm 2


def printed_algorithm_2(U1, s1, U2, s2, rank, lambda_1, lambda_2):
    """Algorithm 2 as printed: lambda_2 stands before R_p Sigma_2 only."""
    Z = U1.T @ U2
    R = np.linalg.qr(U2 - U1 @ Z)[1]
    top = np.hstack([lambda_1 * np.diag(s1), Z * s2])
    bottom = np.hstack([np.zeros((len(R), len(s1))), lambda_2 * R * s2])
    return np.linalg.svd(np.vstack([top, bottom]), compute_uv=False)[:rank]


def algorithm_2(quick):
    parts = np.split(make_power_law(200, 30, alpha=1.0, random_state=0), 2)
    sites = [Subspace.from_rows(part, 5, center=False) for part in parts]
    (U1, s1), (U2, s2) = ((site.components.T, site.singular_values) for site in sites)
    rows = []
    for lambda_2 in (1.0, 1.5, 2.0):
        weights = [0.7, lambda_2]
        want = merge_subspaces(sites, 5, weights=weights, method="svd").singular_values
        ours = merge_subspaces(sites, 5, weights=weights, method="orthogonal").singular_values
        printed = printed_algorithm_2(U1, s1, U2, s2, 5, *weights)
        rows.append(
            {
                "lambda_2": lambda_2,
                "as printed": np.abs(printed - want).max() / want[0],
                'method="orthogonal"': np.abs(ours - want).max() / want[0],
            }
        )
    return rows


# ------------------------------------------------------------------- Algorithm 5, memory, eq. 14


def algorithm_5(quick):
    rows = []
    for d, r in ((200, 10), (2000, 10)) if quick else ((200, 10), (2000, 10), (2000, 100)):
        parts = np.split(make_power_law(4 * r, d, alpha=1.0, random_state=0), 2)
        sites = [Subspace.from_rows(part, r, center=False) for part in parts]
        options = {"n_components": r, "weights": [0.7, 1.5]}
        found = {how: merge_subspaces(sites, method=how, **options) for how in ("svd", "qr")}
        s = found["svd"].singular_values
        rows.append(
            {
                "d": d,
                "r": r,
                "singular values": np.abs(found["qr"].singular_values - s).max() / s[0],
                "subspace": subspace_distance(found["qr"].components, found["svd"].components),
                "time of svd / qr": least(sites, options, "svd") / least(sites, options, "qr"),
            }
        )
    return rows


def least(sites, options, method, repeats=7, calls=20):
    """The processor's time of some merges, the least of a few."""
    found = []
    for _ in range(repeats):
        before = process_time()
        for _ in range(calls):
            merge_subspaces(sites, method=method, **options)
        found.append(process_time() - before)
    return min(found)


def memory(quick, d=400, r=RANK):
    rng, model, rows, peaks = np.random.default_rng(0), spca(r, block=r), [], []
    for k in range(1, (101 if quick else 1001)):
        block = rng.standard_normal((r, d))
        tracemalloc.start()
        model.partial_fit(block)
        peaks.append(tracemalloc.get_traced_memory()[1] / 8)
        tracemalloc.stop()
        if k in (10, 100, 1000):
            rows.append(
                {
                    "k": k,
                    "r (d + k r)": r * (d + k * r),
                    "r (d + 1)": r * (d + 1),
                    "kept": len(pickle.dumps(model)) // 8,
                    "peak of a block, median": int(np.median(peaks)),
                }
            )
    return rows


def clipped(A):
    """P of eq. 14: singular values above one become one."""
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    return (U * np.minimum(s, 1.0)) @ Vt


def eq_14(quick):
    rows = []
    for alpha in (1.0,) if quick else (0.5, 1.0, 2.0):
        X = make_power_law(*((1000, 100) if quick else (4000, 400)), alpha=alpha, random_state=0)
        best = (np.linalg.svd(X, compute_uv=False)[RANK:] ** 2).sum()
        found = {"SPCA": spca(RANK).fit(X).components_.T}
        start = np.random.default_rng(0).standard_normal((X.shape[1], RANK))
        for c in (0.1, 1.0, 10.0):
            S = np.linalg.qr(start)[0]
            for t, y in enumerate(X, 1):
                S = clipped(S + c / t * np.outer(y, y @ S))
            found[f"eq. 14, c = {c:g}"] = np.linalg.qr(S)[0]
        errors = {way: np.linalg.norm(X - X @ U @ U.T) ** 2 / best for way, U in found.items()}
        rows.append({"data": f"Synth({alpha:g})"} | errors)
    return rows


def main(quick=False):
    for heading, part in (
        ("Lemma 1: largest difference from the SVD of all rows", lemma_1),
        ("Lemma 2.1 asks for at most 1: squared errors over squared residuals", lemma_21),
        ("Lemma 2.2 asks for 0: largest difference of an order from the first one", lemma_22),
        ("Theorem 1, p = 2: five variances of 1 over 95 of 1e-6", theorem_1),
        ("Theorem 1 on Synth(alpha), 400 features, rank 10", theorem_1_on_synth),
        ("Algorithm 2 against Algorithm 4: singular values over the largest", algorithm_2),
        ("Algorithm 5 against Algorithm 4: singular values over the largest", algorithm_5),
        ("Section 3, memory of SPCA after k blocks of r rows, in floats", memory),
        ("Eq. 14: squared errors over the best of rank 10", eq_14),
    ):
        print(f"\n{heading}")
        table(f"federated_lemmas_{part.__name__}", part(quick))
