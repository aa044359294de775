"""Microbenchmarks on the running GPU, written into ``sweep_points``; needs numpy, pyarrow and CuPy alone."""
