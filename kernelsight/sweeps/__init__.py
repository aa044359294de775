"""Sweeps: many scenarios simulated, the highest rates within objectives, and advice on settings."""
