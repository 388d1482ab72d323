"""Distributed k-means by coresets: Balcan, Ehrlich and Liang, NeurIPS 2013, Algorithms 1 and 2.

Round 1: each node clusters its own points and tells the cost. Round 2: a node draws its share of
the sample, in proportion to its cost, points in proportion to their own cost, and sends them with
its centres. The weights make the cost of any centres on the coreset that on all points, in
expectation; the centres' weights may be negative, so that the weights add up to the number of
points.
"""

import numpy as np
from sklearn.cluster import KMeans


def coreset(nodes, k, size, seed=0):
    """Points and weights: ``size`` sampled points of all nodes, up to rounding, and k a node."""
    rng = np.random.default_rng(seed)
    local = [KMeans(k, n_init=1, random_state=seed).fit(X) for X in nodes]
    costs = [model.transform(X).min(axis=1) ** 2 for model, X in zip(local, nodes, strict=True)]
    total = sum(cost.sum() for cost in costs)
    points, weights = [], []
    for X, model, cost in zip(nodes, local, costs, strict=True):
        share = round(size * cost.sum() / total)
        drawn = rng.choice(len(X), share, p=cost / cost.sum())
        drawn_weights = cost.sum() / (share * cost[drawn])
        counts = np.bincount(model.labels_, minlength=k)
        counts = counts - np.bincount(model.labels_[drawn], drawn_weights, minlength=k)
        points += [X[drawn], model.cluster_centers_]
        weights += [drawn_weights, counts]
    return np.concatenate(points), np.concatenate(weights)


def distributed_k_means(nodes, k, size, seed=0):
    """Centres from a coreset of the nodes' points."""
    points, weights = coreset(nodes, k, size, seed)
    weights = np.maximum(weights, 0)
    return KMeans(k, n_init=3, random_state=seed).fit(points, sample_weight=weights)
