"""Numerical functions of arrays; they import numpy, scipy and each other only."""
