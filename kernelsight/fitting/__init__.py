"""Fitting: from measured kernel sweeps to a pack of constants, corrections, points and prediction intervals."""
