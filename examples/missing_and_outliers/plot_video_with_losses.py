"""
===================================================
Background, foreground and lost pixels of a video
===================================================

A scene of 40 x 60 pixels whose light changes slowly, a disc that moves through it, and one pixel in
ten lost in each frame. `RobustSubspaceTracker` follows the light in batches of 80 frames: the disc
is an outlier, lost pixels are missing entries. What remains is the scene without the disc.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedpca_sklearn import RobustSubspaceTracker, SubspaceTracker

rng = np.random.default_rng(0)
height, width, n = 40, 60, 400
rows, columns = np.mgrid[:height, :width]
scene = 100 + 40 * (columns > 30) + 30 * (rows > 25)
places = ((8, 12), (28, 45))
lights = [np.exp(-(((rows - r) / 12) ** 2) - ((columns - c) / 18) ** 2) for r, c in places]
time = np.arange(n)
brightness = np.column_stack([np.sin(time / 23), np.sin(time / 31)]) * 25
background = scene.ravel() + brightness @ np.reshape(lights, (2, -1))
frames = background + rng.standard_normal((n, height * width))
centre = np.column_stack([20 + 12 * np.sin(time / 9), 30 + 24 * np.cos(time / 11)])
disc = [((rows - r) ** 2 + (columns - c) ** 2 < 30).ravel() for r, c in centre]
frames[disc] = 20
lost = rng.random(frames.shape) < 0.1
frames[lost] = np.nan

# %%
# Follow the light, without and with regard to outliers
# -----------------------------------------------------
# An outlier must be rare in a batch at every pixel. In 80 frames the disc goes all its way; in 40
# it stays too long at some places, and half of it is taken for background with half of the seeds.

robust = RobustSubspaceTracker(2, batch_size=80).fit(frames)
plain = SubspaceTracker(2, batch_size=80).fit(frames)
last = frames[-80:]
_, sparse = robust.decompose(last)
found, true = sparse != 0, np.array(disc[-80:]) & ~lost[-80:]
print(f"pixels of the disc found: {found[true].mean():.1%}; others: {found[~true].mean():.2%}")
scenes = {}
for name, tracker in (("robust", robust), ("plain", plain)):
    scenes[name] = tracker.inverse_transform(tracker.transform(last))
    error = np.abs(scenes[name] - background[-80:]).mean()
    print(f"{name:7} error of the background: {error:.2f}")

# %%
# Two frames of the last batch
# ----------------------------
# Without regard to outliers the disc leaves its trace all along its way. The robust tracker keeps
# it apart; of lost pixels it says nothing but what is behind them.

images = {
    "lost pixels are white": np.where(lost[-80:], 255, last),
    "robust: background": scenes["robust"],
    "robust: foreground": np.abs(sparse),
    "plain: background": scenes["plain"],
}
for frame in (-25, -1):
    fig, axes = plt.subplots(2, 2, figsize=(5, 4), layout="constrained")
    for ax, (title, pictures) in zip(axes.flat, images.items(), strict=True):
        ax.imshow(pictures[frame].reshape(height, width), cmap="gray", vmin=0, vmax=200)
        ax.set(xticks=[], yticks=[], title=title)
    fig.suptitle(f"Frame {n + frame}")
plt.show()

# sphinx_gallery_thumbnail_number = 2
