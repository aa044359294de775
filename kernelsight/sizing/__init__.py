"""Sizing: the cheapest deployments that serve a rate within objectives, with their evidence and probabilities."""
