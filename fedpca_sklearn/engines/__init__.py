"""Estimators on engines for federated learning, each an optional import."""
