"""Rows in arrays of torch, on the processor and on a GPU, beside numpy and torch's own solver.

In one process. On the processor by its clock and with one thread each, "of numpy" is the time over
that of the same fit of numpy's rows. `--device cuda` adds a large matrix made on the device: fits
of it in one array and in batches, fits of batches that come from the host, from pinned memory and
from other, torch.pca_lowrank, and cuML's IncrementalPCA if it is installed. `--device cpu` is the
same at a small size. "bytes" and "product" are what is needed in any case: the time in which the
rows are read once (on the device by a copy, whose half it is; over the bus by a copy of a batch),
and that of the product of the rows with themselves, or of all of which a part was timed. "excess"
and "distance" are from a scatter matrix in float64.
"""

import os
from time import perf_counter, process_time

import numpy as np
from sklearn import config_context

from benchmarks._tools import interleaved, table
from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    FederatedPowerPCA,
    FrequentDirections,
    OjaPCA,
    StreamingPCA,
    StreamingPowerMethod,
    make_power_law,
    on_device,
    subspace_distance,
)

SHAPE, RANK = (10_000, 2_000), 20
# Rows and features, components, rows of a batch, and rows of which a product is timed.
LARGE = (10_000_000, 1_000), 64, 500_000, 200_000
SMALL = (100_000, 400), 20, 20_000, 10_000
QUICK = (4_000, 100), 10, 1_000, 1_000
# Rows that are made, or multiplied in float64, at once.
AT_ONCE = 500_000


def models_of(r):
    """Estimators that take arrays of other libraries."""
    return [
        StreamingPCA(r),
        FederatedPCA(r, n_clients=4),
        DistributedPCA(r, n_clients=2),
        FederatedPowerPCA(r, n_rounds=3, tol=0, random_state=0),
        FrequentDirections(r),
        OjaPCA(r, random_state=0),
        StreamingPowerMethod(r, random_state=0),
    ]


def dispatched(call):
    """What a function returns while arrays are taken as they are."""
    with config_context(array_api_dispatch=True):
        return call()


class Best:
    """The best components by a scatter matrix, and what is worse about others."""

    def __init__(self, G, r):
        lam, W = np.linalg.eigh(G)
        self.G, self.components, self.explained = G, W[:, : -r - 1 : -1].T, lam[-r:].sum()

    def excess(self, V):
        """Error of reconstruction beyond the least possible one, as a share of it."""
        V = V.astype(np.float64)
        missed = self.explained - np.einsum("ij,ij->", V @ self.G, V)
        return float(max(missed, 0) / (self.G.trace() - self.explained))

    def distance(self, V):
        """Sine of the largest angle."""
        return subspace_distance(V.astype(np.float64), self.components)


def on_the_processor(torch, quick):
    """A row for each estimator: seconds of numpy's rows, of a tensor, and how far they differ."""
    n, d = (400, 300) if quick else SHAPE
    X = make_power_law(n, d, random_state=0)
    tensor, rows = torch.asarray(X), []
    V = np.random.default_rng(0).standard_normal((RANK, d))
    for model in models_of(RANK):
        calls = {
            "numpy": lambda m=model: m.fit(X).components_,
            "torch": lambda m=model: dispatched(lambda: m.fit(tensor).components_),
            "product": lambda: X @ V.T,
        }
        slow = type(model).__name__ in ("DistributedPCA", "FederatedPowerPCA")
        seconds, found = interleaved(calls, 2 if quick or slow else 5, process_time)
        least = {name: s for name, (_, s) in seconds.items()}
        rows.append({"estimator": type(model).__name__, "numpy": least["numpy"]})
        rows[-1] |= {"torch": least["torch"], "of numpy": least["torch"] / least["numpy"]}
        rows[-1]["times X @ V.T"] = least["torch"] / least["product"]
        rows[-1]["difference"] = float(np.abs(found["torch"].numpy() - found["numpy"]).max())
    best = Best(np.cov(X.T), RANK)
    calls = {"torch": lambda: torch.pca_lowrank(tensor, RANK, niter=4)[2].T.numpy()}
    seconds, found = interleaved(calls, 2 if quick else 3, process_time)
    ours = StreamingPCA(RANK).fit(X).components_
    print(f"{n:,} x {d:,}, {RANK} components, float64:")
    table("arrays", rows)
    print(
        f"torch.pca_lowrank(niter=4): {seconds['torch'][1]:.3g} s, excess error "
        f"{best.excess(found['torch']):.1e}; that of StreamingPCA {best.excess(ours):.1e}"
    )


class Device:
    """A device of torch, whose work is waited for before a clock is read."""

    def __init__(self, torch, name):
        self.torch, self.name = torch, name
        self.is_cuda = name.startswith("cuda")

    def timed(self, call, repeats=3):
        """Least seconds of several calls, and the last result."""
        seconds = []
        for _ in range(repeats):
            self.wait()
            start = perf_counter()
            result = call()
            self.wait()
            seconds.append(perf_counter() - start)
        return min(seconds), result

    def wait(self):
        """Until all that was asked is done."""
        if self.is_cuda:
            self.torch.cuda.synchronize()

    def rows(self, n, d):
        """Float32 rows whose columns have variances 1 / i, about a mean of 1."""
        generator = self.torch.Generator(self.name).manual_seed(0)
        X = self.torch.empty((n, d), device=self.name)
        scale = self.torch.arange(1, d + 1, device=self.name) ** -0.5
        for at in range(0, n, AT_ONCE):
            X[at : at + AT_ONCE].normal_(generator=generator).mul_(scale).add_(1)
        return X

    def scatter(self, X):
        """Scatter matrix in float64, added up block by block; numpy's."""
        blocks = X.split(AT_ONCE // 5)
        mean, G = sum(block.double().sum(0) for block in blocks) / len(X), 0
        for block in blocks:
            Z = block.double() - mean
            G = G + Z.T @ Z
        return G.cpu().numpy()


def ways_to_fit(device, X, r, block):
    """What is timed, by name: whether the rows come over a bus, and the call."""
    torch = device.torch
    plain = X[:block].cpu().numpy()
    pinned = torch.empty((block, X.shape[1]), pin_memory=device.is_cuda)
    pinned.copy_(X[:block])

    def from_the_host(rows):  # the first batch, again and again
        batches = (rows for _ in range(len(X) // block))
        return StreamingPCA(r).fit(on_device(batches, torch, device.name))

    ways = {
        "StreamingPCA, one array": (None, lambda: StreamingPCA(r).fit(X)),
        "StreamingPCA, batches": (None, lambda: StreamingPCA(r).fit(iter(X.split(block)))),
        "StreamingPCA, pinned memory of the host": (pinned, lambda: from_the_host(pinned)),
        "StreamingPCA, memory of the host": (plain, lambda: from_the_host(plain)),
        "torch.pca_lowrank(niter=4)": (None, lambda: torch.pca_lowrank(X, r, niter=4)[2].T),
    }
    try:
        from cuml.decomposition import IncrementalPCA
    except ImportError:
        print("cuML is not installed")
    else:
        cuml = IncrementalPCA(n_components=r, batch_size=block)
        ways["cuML's IncrementalPCA"] = (None, lambda: cuml.fit(X))
    return ways


def on_a_device(torch, name, quick):
    """A row for each way to the components of a large matrix on the device."""
    device = Device(torch, name)
    (n, d), r, block, part = QUICK if quick else LARGE if device.is_cuda else SMALL
    X = device.rows(n, d)
    there, first = Best(device.scatter(X), r), Best(device.scatter(X[:block]), r)
    some = X[:block].cpu().numpy().astype(np.float64)
    G = np.cov(some.T) * (block - 1)
    apart = np.linalg.norm(first.G - G) / np.linalg.norm(G)
    copy = device.timed(lambda: X[:part].clone())[0] * n / part / 2
    product = device.timed(lambda: X[:part].T @ X[:part])[0] * n / part
    some = X[: min(n, 4 * part)].cpu().numpy()
    cpu = device.timed(lambda: StreamingPCA(r).fit(some), 1)[0] * n / len(some)
    rows = []
    for way, (host, call) in ways_to_fit(device, X, r, block).items():
        try:
            seconds, found = device.timed(lambda call=call: dispatched(call))
        except torch.OutOfMemoryError:
            print(f"{way}: out of memory")
            continue
        least, best = copy, there
        if host is not None:
            sent = torch.as_tensor(host)
            least = device.timed(lambda sent=sent: sent.to(name, copy=True))[0] * n / block
            best = first
        components = getattr(found, "components_", found)
        components = components.cpu().numpy() if hasattr(components, "cpu") else components.get()
        rows.append({"way": way, "seconds": seconds, "bytes": least, "product": product})
        rows[-1]["of the bound"] = seconds / max(least, product)
        rows[-1] |= {"excess": best.excess(components), "distance": best.distance(components)}
        rows[-1]["numpy, as so many"] = cpu / seconds
    print(f"\n{n:,} x {d:,}, {r} components, float32, batches of {block:,}, on {name}:")
    print(f"{4e-9 * n * d:.3g} GB, {2e-12 * n * d * d:.3g} TFlop")
    table("arrays_device", rows)
    print(f"scatter matrix of a batch in float64, on {name} from the host's: {apart:.0e}")
    return rows


def main(quick=False, device=None):
    try:
        import torch
    except ImportError:
        print("skipped: torch is not installed")
        return
    os.environ.setdefault("SCIPY_ARRAY_API", "1")
    torch.set_num_threads(1)
    on_the_processor(torch, quick)
    if device is None and torch.cuda.is_available():
        device = "cuda"
    if device is None:
        print("no GPU: nothing was measured on one")
    else:
        on_a_device(torch, device, quick)
