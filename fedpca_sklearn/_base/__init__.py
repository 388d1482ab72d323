"""Shells that estimators are made of."""
