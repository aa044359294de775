"""Microbenchmarks on the local GPU, written into ``sweep_points``; needs only numpy, pyarrow and CuPy."""
