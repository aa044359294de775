"""Forecasts of kernel latency by a language model, as one source of a search."""
