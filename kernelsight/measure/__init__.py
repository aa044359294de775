"""Microbenchmarks of kernels on the local GPU, written as ``sweep_points``; needs only numpy, pyarrow and CuPy."""
