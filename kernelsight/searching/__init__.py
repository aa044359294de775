"""Kernel autotuning by Bayesian optimisation: forecast candidates, measure the promising ones, stop without a gain."""
