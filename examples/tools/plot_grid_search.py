"""
============================================
Rank and forgetting, chosen by held-out rows
============================================

How many components, and how fast to forget? ``score`` of `StreamingPCA` is the mean log-likelihood
of rows that it has not seen, so that GridSearchCV can choose both. What it chooses depends on how
rows are held out: a stream that drifts asks for rows that come later, not for rows in between.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import GridSearchCV, KFold, TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import StreamingPCA, make_subspace_stream

plt.style.use("tableau-colorblind10")
stream = make_subspace_stream(
    2600,
    30,
    4,
    model="rotation",
    delta=2e-4,  # the four directions turn slowly
    variances=[4, 3, 2, 1],
    noise_std=0.7,
    missing=0,
    random_state=0,
)
past, future = stream.X[:2400], stream.X[2400:]
ranks = [1, 2, 3, 4, 5, 6, 8]
half_lives = [50, 100, 200, 400, None]
grid = {
    "streamingpca__half_life": half_lives,
    "streamingpca__n_components": ranks,
}

# %%
# Two ways to hold rows out
# -------------------------
# Each split of ``TimeSeriesSplit`` trains on the rows before a block of 100 and scores the block. A
# shuffled ``KFold`` scores rows from between the training rows. The winner of each is then scored
# on 200 rows from the future, which neither has seen.

searches = {}
for name, cv in {
    "later rows (TimeSeriesSplit)": TimeSeriesSplit(6, test_size=100),
    "rows in between (shuffled KFold)": KFold(5, shuffle=True, random_state=0),
}.items():
    search = GridSearchCV(make_pipeline(StandardScaler(), StreamingPCA()), grid, cv=cv).fit(past)
    searches[name] = search
    half_life, rank = search.best_params_.values()
    forgotten = "nothing forgotten" if half_life is None else f"half-life {half_life} rows"
    print(f"{name}: {forgotten}, {rank} components;")
    print(f"   log-likelihood held out {search.best_score_:.2f}, future {search.score(future):.2f}")

# %%
# Held-out later rows choose the four components that there are, and a half-life of a hundred rows.
# Rows in between are explained by rows after them as well as by rows before. There forgetting only
# looks like fewer rows, and all directions that the subspace ever had look like components. The
# score of that search is nearly as high, and wrong: its winner is 1.3 worse a row on what comes
# next (1.3 to 1.9 for other seeds).

for name, search in searches.items():
    fig, ax = plt.subplots(figsize=(5, 3.8), layout="constrained")
    scores = search.cv_results_["mean_test_score"].reshape(len(half_lives), len(ranks))
    image = ax.imshow(scores, cmap="cividis", aspect="auto", vmin=-42, vmax=-39.5)
    for (i, j), value in np.ndenumerate(scores):
        best = value == scores.max()
        ax.text(
            j,
            i,
            f"{value:.1f}",
            ha="center",
            va="center",
            fontsize=8,
            color="w" if image.norm(value) < 0.6 else "k",
            weight="bold" if best else "normal",
            bbox={"fc": "none", "ec": "C1", "lw": 2.5} if best else None,
        )
    ax.set_xticks(range(len(ranks)), ranks)
    ax.set_yticks(range(len(half_lives)), [*map(str, half_lives[:-1]), "none"])
    ax.set(
        xlabel="components", ylabel="half-life (rows)", title=f"Held out: {name.partition(' (')[0]}"
    )
    fig.colorbar(image, ax=ax, label="log-likelihood of a row", extend="min")
plt.show()

# sphinx_gallery_thumbnail_number = 1
