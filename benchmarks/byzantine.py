"""Sites that lie: six attacks on 20 sites, and attacks that know the defence.

Digits and rows of a power law at 20 sites at random ("like"), digits with one label a site, two
sites a label ("unlike"); f sites lie. Errors are divided by those of the honest sites merged alone:
the sine of the largest angle to five components of all true rows, the distance of the mean, and
that of the explained variances. The attacks: rows times 100; rows rotated, by each liar in its own
way; rows times -1; one false subspace, the same for all liars, with the spectrum of the site; a
mean moved by 1e6; a claim of 1e9 rows. "Recall" and "precision" are those of suspects_.

Stronger attacks: "mirrored", rows times -1 in a random half of the columns; "inside", liars who
know the rule and all honest sites move mean, variances and directions together as far as the limits
let them, towards one false subspace.
"""

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

from benchmarks._tools import claim, table
from fedpca_sklearn import (
    FederatedPCA,
    FederatedPowerPCA,
    ProjectionAverage,
    RobustMerge,
    RobustSum,
    Subspace,
    SubspaceMerge,
    make_power_law,
    merge_subspaces,
    partition_clients,
    subspace_distance,
)

SITES, RANK = 20, 5
ATTACKS = ("scaled", "rotated", "sign-flipped", "colluding", "mean", "rows")
STRONGER = ("mirrored", "inside")


# -------------------------------------------------------------------------------------- sites


def sites_of(data, seed):
    """Rows of 20 sites."""
    rng = np.random.default_rng(seed)
    if data == "power law, like":
        X = 2 + make_power_law(2000, 50, alpha=1.5, random_state=seed)
        return np.array_split(X, SITES)
    X, y = load_digits(return_X_y=True)
    if data == "digits, like":
        return np.array_split(rng.permutation(X), SITES)
    halves = [h for c in range(10) for h in np.array_split(rng.permutation(X[y == c]), 2)]
    return [halves[i] for i in rng.permutation(SITES)]


def random_basis(rng, k, d):
    return np.linalg.qr(rng.standard_normal((d, k)))[0].T


def attacked(rows, liars, kind, seed):
    """Summaries of all sites, of which the liars' are wrong."""
    rng = np.random.default_rng(1000 + seed)
    d = rows[0].shape[1]
    sites = [Subspace.from_rows(X) for X in rows]
    false, signs = random_basis(rng, d, d), rng.choice([-1.0, 1.0], d)
    for i in liars:
        site = sites[i]
        sites[i] = {
            "scaled": lambda i=i: Subspace.from_rows(100 * rows[i]),
            "rotated": lambda i=i: Subspace.from_rows(rows[i] @ random_basis(rng, d, d)),
            "sign-flipped": lambda i=i: Subspace.from_rows(-rows[i]),
            "mirrored": lambda i=i: Subspace.from_rows(signs * rows[i]),
            "colluding": lambda site=site: lie(site, components=false[: site.n_components]),
            "mean": lambda site=site: lie(site, mean=site.mean + 1e6),
            "rows": lambda site=site: site.decay(1e9 / site.n_samples),
            "inside": lambda site=site: site,
        }[kind]()
    return just_inside(sites, liars, rng) if kind == "inside" else sites


def lie(site, **changes):
    """A summary that differs in some fields, and passes all checks."""
    names = ("components", "singular_values", "mean", "n_samples", "scatter")
    return Subspace(**{name: changes.get(name, getattr(site, name)) for name in names})


def just_inside(sites, liars, rng):
    """Liars who move mean, variances and directions, one after the other, up to the limits."""
    honest = [site for i, site in enumerate(sites) if i not in liars]
    V = merge_subspaces(honest, RANK).components
    false = rng.standard_normal((RANK, V.shape[1]))
    false = np.linalg.qr((false - false @ V.T @ V).T)[0].T
    spread = np.sqrt(np.median([site.total_variance for site in honest]))

    def shifted(site, t):
        return lie(site, mean=site.mean + t * spread * false[0])

    def inflated(site, t):
        wide = np.exp(t)
        return lie(
            site,
            singular_values=site.singular_values * np.sqrt(wide),
            scatter=site.scatter * wide,
        )

    def turned(site, t):
        # t = 1: the leading directions are the false ones
        own = site.components[:RANK]
        basis = np.cos(t * np.pi / 2) * own + np.sin(t * np.pi / 2) * false[: len(own)]
        left, _, right = np.linalg.svd(basis, full_matrices=False)
        s = site.singular_values[: len(own)]
        return lie(site, components=left @ right, singular_values=s)

    for move, most in ((shifted, 4.0), (inflated, 5.0), (turned, 1.0)):
        low, high = 0.0, most
        for _ in range(12):
            t = (low + high) / 2
            low, high = (t, high) if passes(moved(sites, liars, move, t), liars) else (low, t)
        sites = moved(sites, liars, move, low)
    return sites


def moved(sites, liars, move, t):
    return [move(site, t) if i in liars else site for i, site in enumerate(sites)]


def passes(sites, liars):
    merge = RobustMerge()
    merge.merge(sites, RANK)
    return not set(merge.suspects_) & set(liars)


# ------------------------------------------------------------------------------------- errors


def errors(found, true):
    """Errors of directions, mean and explained variances."""
    return np.array(
        [
            subspace_distance(found.components, true.components),
            np.linalg.norm(found.mean - true.mean),
            np.linalg.norm(found.explained_variance - true.explained_variance),
        ]
    )


def draw(data, kind, f, seed):
    """Errors of one draw over those of the honest sites, and counts of suspects."""
    rows = sites_of(data, seed)
    liars = np.random.default_rng(seed).permutation(SITES)[:f].tolist()
    sites = attacked(rows, liars, kind, seed)
    true = SubspaceMerge().merge([Subspace.from_rows(X) for X in rows], RANK)
    honest = [Subspace.from_rows(X) for i, X in enumerate(rows) if i not in liars]
    # without liars the errors themselves, which rounding alone makes
    least = errors(SubspaceMerge().merge(honest, RANK), true) if f else np.ones(3)
    robust = RobustMerge()
    found = errors(robust.merge(sites, RANK), true) / least
    others = {
        "median": RobustMerge("median"),
        "average": ProjectionAverage(),
        "plain": SubspaceMerge(),
    }
    return {
        "directions": found[0],
        "mean": found[1],
        "variances": found[2],
        **{n: (errors(m.merge(sites, RANK), true) / least)[0] for n, m in others.items()},
        "named": len(robust.suspects_),
        "right": len(set(liars) & set(robust.suspects_)),
    }


def attacks(quick):
    """Means over draws for each kind of sites, number of liars and attack."""
    rows = []
    for data in ("digits, like", "power law, like", "digits, unlike"):
        for f in (0, 6) if "unlike" in data else (0, 6, 9):
            kinds = ATTACKS if quick else (*ATTACKS, *STRONGER)
            for kind in kinds if f else ("none",):
                draws = [draw(data, kind, f, seed) for seed in range(1 if quick else 10)]
                mean = {name: float(np.mean([d[name] for d in draws])) for name in draws[0]}
                named, right = mean.pop("named"), mean.pop("right")
                mean["recall"] = right / f if f else 1.0
                mean["precision"] = right / named if named else 1.0
                rows.append({"sites": data, "liars": f, "attack": kind, **mean})
    return rows


def claims(rows):
    """Print what was to be shown."""
    crude = [row for row in rows if row["attack"] in ATTACKS]
    for what in ("directions", "mean", "variances"):
        worst = max(row[what] for row in crude)
        claim(f"{what} within 1.3 of the honest sites'", worst <= 1.3, f"at most {worst:.3g}")
    for what in ("recall", "precision"):
        least = min(row[what] for row in crude if row["liars"] == 6)
        claim(f"{what} of suspects_ at least .95 for six liars", least >= 0.95, f"{least:.3g}")
    none = [row for row in rows if row["attack"] == "none"]
    worst = max(max(row["directions"], row["variances"]) for row in none)
    claim("without liars the result of all rows", worst < 1e-2, f"{worst:.1e}")


# ------------------------------------------------------------------------------------- rounds


def wrong_rows(rows, liars, kind, seed):
    """Rows of all sites, of which the liars' are wrong."""
    rng = np.random.default_rng(1000 + seed)
    d = rows[0].shape[1]
    common = random_basis(rng, d, d)
    make = {
        "scaled": lambda X: 100 * X,
        "rotated": lambda X: X @ random_basis(rng, d, d),
        "sign-flipped": lambda X: -X,
        "colluding": lambda X: X @ common,
        "mean": lambda X: X + 1e6,
        "rows": lambda X: X,
        "none": lambda X: X,
    }[kind]
    return [make(X) if i in liars else X for i, X in enumerate(rows)]


def round_draw(data, kind, f, seed):
    """Errors of one draw by rounds over those of the honest sites, and counts of suspects."""
    rows = sites_of(data, seed)
    liars = np.random.default_rng(seed).permutation(SITES)[:f].tolist()
    true = FederatedPCA(RANK).fit(np.concatenate(rows)).subspace_.truncate(RANK)
    honest = np.concatenate([X for i, X in enumerate(rows) if i not in liars])
    # without liars the errors themselves
    least = errors(FederatedPCA(RANK).fit(honest).subspace_.truncate(RANK), true) if f else 1.0
    sent = wrong_rows(rows, liars, kind, seed)
    clients = np.repeat(np.arange(SITES), [len(X) for X in sent])
    weight = np.ones(len(clients))
    if kind == "rows":
        weight[np.isin(clients, liars)] = 1e7
    pca = FederatedPowerPCA(RANK, channel=RobustSum(), random_state=seed)
    pca.fit(np.concatenate(sent), clients=clients, sample_weight=weight)
    named = pca.suspects_
    found = errors(pca.subspace_, true) / least
    return [*found, len(named), len(set(named) & set(liars))]


def rounds(quick):
    """Means over draws for each kind of sites, number of liars and attack."""
    rows = []
    for data, f in (("like", 0), ("like", 6), ("like", 9), ("unlike", 0), ("unlike", 6)):
        data = f"digits, {data}"
        for kind in ATTACKS if f else ("none",):
            draws = [round_draw(data, kind, f, seed) for seed in range(1 if quick else 5)]
            *ratios, named, right = np.mean(draws, axis=0).tolist()
            row = dict(zip(("directions", "mean", "variances"), ratios, strict=True))
            row["recall"] = right / f if f else 1.0
            row["precision"] = right / named if named else 1.0
            rows.append({"sites": data, "liars": f, "attack": kind, **row})
    return rows


# ------------------------------------------------------------------------------- honest sites


def honest_sites(X, y, kind, n_sites, seed):
    """Rows of each site."""
    if kind == "halves of a label":
        rng = np.random.default_rng(seed)
        orders = [rng.permutation(np.flatnonzero(y == label)) for label in np.unique(y)]
        return [X[half] for order in orders for half in np.array_split(order, 2)]
    method = "iid" if kind == "random" else "dirichlet"
    owner = partition_clients(y, n_sites, method=method, concentration=0.3, random_state=seed)
    return [X[owner == i] for i in np.unique(owner)]


def false_suspects(quick):
    """Shares of honest sites that are suspects."""
    data = {
        "wine": load_wine(return_X_y=True),
        "breast cancer": load_breast_cancer(return_X_y=True),
        "iris": load_iris(return_X_y=True),
        "power law": (make_power_law(1000, 50, alpha=1.0, random_state=0), np.arange(1000) % 10),
    }
    rows = []
    for name, (X, y) in data.items():
        for kind in ("random", "Dirichlet", "halves of a label"):
            named = total = 0
            for n_sites in (10,) if quick or kind == "halves of a label" else (5, 10, 20):
                for seed in range(2 if quick else 20):
                    sites = honest_sites(X, y, kind, n_sites, seed)
                    merge = RobustMerge()
                    merge.merge([Subspace.from_rows(rows) for rows in sites], 2)
                    named, total = named + len(merge.suspects_), total + len(sites)
            rows.append({"data": name, "sites": kind, "suspects": named / total, "of": total})
    return rows


def main(quick=False):
    rows = attacks(quick)
    table("byzantine", rows)
    claims(rows)
    print("\nBy rounds")
    rows = rounds(quick)
    table("byzantine_rounds", rows)
    claims(rows)
    print("\nHonest sites")
    table("byzantine_honest", false_suspects(quick))
