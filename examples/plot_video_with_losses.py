"""
===================================================
Background, foreground and lost pixels of a video
===================================================

A scene of 40 x 60 pixels whose light changes slowly, a disc that moves through it, and one pixel in
ten lost in each frame. `RobustSubspaceTracker` follows the light in batches of 40 frames: the disc
is an outlier, lost pixels are missing entries. What remains is the scene without the disc.
"""

from pathlib import Path

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
robust = RobustSubspaceTracker(2, center=True).fit(frames)
plain = SubspaceTracker(2, center=True).fit(frames)
last = frames[-40:]
low_rank, sparse = robust.decompose(last)
found, true = sparse != 0, np.array(disc[-40:]) & ~lost[-40:]
print(f"pixels of the disc found: {found[true].mean():.1%}; others: {found[~true].mean():.2%}")
for name, filled in (("robust", low_rank), ("plain", plain.impute(last))):
    print(f"{name:7} error of the background: {np.abs(filled - background[-40:]).mean():.2f}")

# %%
# The last frame
# --------------
fig, axes = plt.subplots(1, 4, figsize=(11, 2.4), layout="constrained")
images = {
    "frame, lost pixels white": np.where(lost[-1], 255, frames[-1]),
    "background": low_rank[-1],
    "foreground": np.abs(sparse[-1]),
    "without regard to outliers": plain.inverse_transform(plain.transform(last))[-1],
}
for ax, (title, image) in zip(axes, images.items(), strict=True):
    ax.imshow(image.reshape(height, width), cmap="gray", vmin=0, vmax=200)
    ax.set_title(title, fontsize=9)
    ax.axis("off")
fig.savefig(Path(__file__).with_suffix(".png"), dpi=110)
