"""Readers of published kernel sweeps, one per publisher, into the columns of ``sweep_points``."""
