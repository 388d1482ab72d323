"""Cheung et al., Fig. 13 and 14: with a server, and with neighbours who hear each other once.

"consensus" passes vectors on until all clients have all, and is the server's; "neighbours" is
Algorithm 5, one exchange with direct neighbours in each of ten periods, after which each client has
a vector of its own. Columns: mean over clients of the sine to the leading left vector, 10 local
iterations, 5 and 10 clients. Images: cosine with the whole one, MNIST at eight clients, 100 local
iterations, medians of parts of 300 (linear, sigmoid with gamma .25 and c 1). "hubs" is the third
topology of the authors' code: two of eight clients, joined, with three others each.
"""

from itertools import product

import numpy as np

from benchmarks._columns import READINGS, agreed, error, isolated, leading, sites, structured
from benchmarks._tools import claim, load, picture, table
from benchmarks.vertical_images import FEW, cosine, images
from fedpca_sklearn import (
    Complete,
    Graph,
    Ring,
    Star,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
    VFedPCA,
    subspace_distance,
)

TOPOLOGIES = {"complete": Complete(), "ring": Ring(), "star": Star()}
WAYS = {name: READINGS[name] for name in ("as printed", "defaults")}
# What an estimator sends after the method's rounds, for components and variances.
LAST = 3


def hubs():
    """Clients 3 and 7 of eight hear each other, and three others each."""
    A = np.zeros((8, 8))
    A[3, [0, 1, 2]] = A[7, [4, 5, 6]] = A[3, 7] = 1
    return Graph(A + A.T)


def floats(pca):
    return sum(row["floats_up"] + row["floats_down"] for row in pca.communication_.table[:-LAST])


def data():
    """Name, columns and whether they are centred: sonar also as it is, as the paper writes A_i."""
    for name, X in structured():
        yield name, X, True
        if name == "sonar":
            yield "sonar, raw", X, False


def columns():
    rows, sent = [], []
    for (name, X, center), p, (way, options) in product(data(), (5, 10), WAYS.items()):
        clients = sites(X, p, center)
        truth, _ = leading(clients)

        def fitted(topology, exchange, X=X, center=center, p=p, options=options):
            pca = VerticalFederatedPCA(
                1,
                feature_groups=p,
                method=VFedPCA(10, **options, exchange=exchange),
                topology=topology,
                center=center,
                random_state=0,
            )
            return pca.fit(X)

        row = {"data": name, "p": p, "way": way, "isolated": isolated(clients, truth, 10)}
        row["server"] = error(agreed(clients, VFedPCA(10, **options)), truth)
        server = fitted("server", "consensus")
        apart, traffic = 0.0, {"p": p, "server": floats(server)}
        for topology, strategy in TOPOLOGIES.items():
            pca = fitted(strategy, "neighbours")
            row[topology] = float(np.mean([error(u[0], truth) for u in pca.client_vectors_]))
            both = fitted(strategy, "consensus")
            apart = max(apart, subspace_distance(both.components_, server.components_))
            traffic |= {f"{topology}, consensus": floats(both), f"{topology}, once": floats(pca)}
        row["consensus from server"] = apart
        rows.append(row)
        sent.append(traffic)
    if not rows:
        return
    table("vertical_topologies", rows)
    apart = max(row["consensus from server"] for row in rows)
    claim('consensus: "almost the same result"', apart < 1e-6, f"differs by at most {apart:.1g}")
    for way in WAYS:
        some = [row for row in rows if row["way"] == way]
        print(f"{way}, neighbours once: {ordered(some)}")
    ratios = {
        key: float(np.median([row[key] / row["server"] for row in sent]))
        for key in list(sent[0])[2:]
    }
    print("Floats over the server's:", ", ".join(f"{k} {v:.2g}" for k, v in ratios.items()), "\n")


def ordered(rows):
    """Where the complete topology, ring and star lie between server and isolated clients."""
    near = sum(row["complete"] <= row["server"] * 1.01 + 1e-12 for row in rows)
    parts = [f"complete is the server's in {near} of {len(rows)}"]
    for topology in ("ring", "star"):
        below = sum(row[topology] >= row["complete"] * 0.99 for row in rows)
        above = sum(row[topology] < row["isolated"] for row in rows)
        parts.append(
            f"{topology} not better than complete in {below} and better than isolated in {above}"
        )
    medians = (f"{k} {np.median([row[k] for row in rows]):.2g}" for k in MEDIANS)
    return "; ".join(parts) + "; medians: " + ", ".join(medians)


MEDIANS = ("server", "complete", "ring", "star", "isolated")


def image(X, kernel, options, topology):
    """Image of the parts that clients make of their own vectors."""
    exchange = "consensus" if topology == "server" else "neighbours"
    pca = VerticalFederatedKernelPCA(
        1,
        **kernel,
        feature_groups=8,
        aggregation=VFedPCA(100, **options, exchange=exchange),
        topology=topology,
        projection="features",
        random_state=0,
    )
    return pca.fit(X).components_[0]


def pictures(quick):
    """Fig. 14: images."""
    if (file := load("mnist_test.npz")) is None:
        return
    X = np.load(file)["X"] / 255.0
    ways = {"server": "server", **TOPOLOGIES, "hubs": hubs()}
    rows, first = [], {}
    for (title, kernel), (way, options) in product(FEW.items(), WAYS.items()):
        found = []
        for part in range(1 if quick else 5):
            Z = X[1000 * part :][:300]
            made = images(Z, kernel, 8, ())
            made |= {name: image(Z, kernel, options, t) for name, t in ways.items()}
            if not part and way == "as printed":
                first[title] = made
            found.append({name: cosine(each, made["whole"]) for name, each in made.items()})
        medians = {
            name: float(np.median([each[name] for each in found])) for name in [*ways, "isolated"]
        }
        rows.append({"kernel": title, "way": way, **medians})
    table("vertical_topologies_images", rows)
    for row in rows:
        claim(
            f"{row['kernel']}, {row['way']}: complete near the server, ring and star below it and "
            "above isolated",
            row["complete"] > row["server"] - 0.01
            and max(row["ring"], row["star"]) < row["complete"]
            and min(row["ring"], row["star"]) > row["isolated"],
            ", ".join(f"{k} {row[k]:.2f}" for k in [*ways, "isolated"]),
        )

    def draw(ax):
        fig = ax.figure
        ax.remove()
        shown = ("whole", *ways, "isolated")
        for line, (title, made) in zip(fig.subplots(2, len(shown)), first.items(), strict=True):
            for panel, name in zip(line, shown, strict=True):
                panel.imshow(np.abs(made[name]).reshape(28, 28), cmap="gray")
                panel.set_title(f"{title},\n{name}", fontsize=6)
                panel.axis("off")

    picture("vertical_topologies", draw)


def main(quick=False):
    columns()
    pictures(quick)
