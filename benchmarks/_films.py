"""Films with planted objects, whose masks are known, over backgrounds of several kinds."""

from dataclasses import dataclass

import numpy as np

# Grey levels of the sensor's noise.
NOISE = 2.5


@dataclass(frozen=True)
class Film:
    """Frames as rows, the mask of the objects, and how many frames at first are without any."""

    X: np.ndarray
    mask: np.ndarray
    n_train: int
    shape: tuple[int, int]


def smooth(rng, shape, width):
    """A random texture of mean 0 and deviation 1, with details of some pixels."""
    frequency = [np.fft.fftfreq(n)[:, None] for n in shape]
    damping = np.exp(-((width * np.pi) ** 2) * (frequency[0] ** 2 + frequency[1].T ** 2))
    image = np.fft.ifft2(np.fft.fft2(rng.standard_normal(shape)) * damping).real
    return (image - image.mean()) / image.std()


def background(rng, kind, n, shape):
    """Frames without objects and noise."""
    t = np.arange(n)
    still = 120 + 35 * smooth(rng, shape, 6).ravel()
    if kind == "still":
        return np.tile(still, (n, 1))
    if kind == "waving":  # leaves in a part of the picture, with periods that never meet
        leaves = smooth(rng, shape, 25).ravel() > 0.3
        waves = np.zeros((n, still.size))
        for period in rng.uniform(7, 23, 2):
            for phase in (0.0, np.pi / 2):
                wave = np.sin(2 * np.pi * t / period + phase + rng.uniform(0, 0.5))
                waves += wave[:, None] * smooth(rng, shape, 2).ravel()
        return still + 14 * leaves * waves
    light = 1 + 0.25 * np.sin(2 * np.pi * t / 170 + rng.uniform(0, 6))  # "drift"
    return light[:, None] * still


def places(rng, motion, n, first, shape, size):
    """Upper left corners of an object in the frames from ``first`` on."""
    room = np.array(shape) - size
    start, end = rng.uniform(0, 1, 2) * room, rng.uniform(0, 1, 2) * room
    start[1], end[1] = (0, room[1]) if rng.random() < 0.5 else (room[1], 0)
    at = (np.arange(n - first) / 60) % 2
    path = np.minimum(at, 2 - at)  # to and fro, 60 frames each way
    if motion == "lingering":  # rests for 25 of 50 frames, then goes on
        rests, along = np.divmod(np.arange(n - first), 50)
        path = ((rests + np.maximum(along - 25, 0) / 25) * 0.3) % 2
        path = np.minimum(path, 2 - path)
    if motion == "stopping":
        path = np.minimum(np.arange(n - first) / 40, 0.6)
    return np.rint(start + path[:, None] * (end - start)).astype(int)


def make_film(
    kind="still",
    motion="moving",
    *,
    seed=0,
    shape=(60, 80),
    n_train=100,
    n=240,
    sizes=(0.3, 0.18),
    contrast=40.0,
    noise=NOISE,
):
    """A film of n frames, the first ``n_train`` of them without objects.

    Sizes are heights over that of the picture; contrasts alternate in sign.
    """
    rng = np.random.default_rng([seed, len(kind), len(motion)])
    X = background(rng, kind, n, shape).reshape(n, *shape)
    mask = np.zeros(X.shape, dtype=bool)
    for i, size in enumerate(sizes):
        height = max(2, round(size * shape[0]))
        y, x = np.mgrid[:height, :height]
        disc = (y - (height - 1) / 2) ** 2 + (x - (height - 1) / 2) ** 2 <= (height / 2) ** 2
        look = (-1) ** i * contrast + 8 * smooth(rng, disc.shape, 3)
        corners = places(rng, motion, n, n_train, shape, height)
        for t, (top, left) in enumerate(corners, n_train):
            part = np.s_[top : top + height, left : left + height]
            behind = X[0][part] if kind != "drift" else X[t][part]
            X[t][part] = np.where(disc, behind + look, X[t][part])
            mask[t][part] |= disc
    X += noise * rng.standard_normal(X.shape)
    X = np.clip(np.rint(X), 0, 255)
    return Film(X.reshape(n, -1), mask.reshape(n, -1), n_train, shape)
