"""Measured end-to-end runs replayed: as which scenarios, how far off, and which part of the model carries the miss."""
