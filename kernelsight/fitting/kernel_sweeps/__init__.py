"""Readers of published kernel sweeps into the columns of ``sweep_points``."""
