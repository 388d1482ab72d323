"""Engines that users already run; each is imported by those who use it."""
