"""Measured kernel sweeps of several publishers, read into the rows of ``sweep_points``."""
