"""Numerical kernels: arrays in, arrays out. They know numpy, scipy and each other."""
