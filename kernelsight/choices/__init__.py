"""Kernel choices: the fastest implementation at each shape of a GPU, from sweeps of others and few of its own."""
