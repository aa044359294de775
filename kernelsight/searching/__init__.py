"""Kernel search by selective forecasting: forecast candidates, measure where it pays, stop when no gain is expected."""
