"""CUDA graph sizes: the token counts for which an engine captures a graph, as it chooses them by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def captured_sizes(largest: int, spacing: str = "steps") -> np.ndarray:
    """Return the captured sizes in tokens up to ``largest``: 1, 2, 4, then multiples of 8.

    ``spacing``, a column of ``engine_presets``: in "steps" they go on beyond 256 in multiples of 16; with "doubling"
    beyond 128 in powers of two, and end with ``largest``.

    >>> captured_sizes(24).tolist(), captured_sizes(512).size
    ([1, 2, 4, 8, 16, 24], 51)
    >>> captured_sizes(300, "doubling")[-3:].tolist()
    [128, 256, 300]
    """
    if spacing == "doubling":
        sizes = np.array([1, 2, 4, *range(8, 129, 8), *(2**i for i in range(8, 32))])
        return np.append(sizes[sizes < largest], largest if largest > 0 else [])
    sizes = np.array([1, 2, 4, *range(8, 257, 8), *range(272, largest + 1, 16)])
    return sizes[sizes <= largest]


def padded_tokens(largest: int, graph_max_tokens: int, spacing: str = "steps") -> np.ndarray:
    """Return, for every token count from 0, the captured size that serves it, or itself beyond the largest capture."""
    sizes = np.append(0, captured_sizes(min(graph_max_tokens, largest), spacing)).astype(np.int64)
    tokens = np.arange(largest + 1)
    if sizes.size == 1:
        return tokens
    position = np.searchsorted(sizes, tokens)
    return np.where(position < sizes.size, sizes[np.minimum(position, sizes.size - 1)], tokens)


def step_padding(largest: int, settings: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens that a step's kernels get, for every token count from 0 to ``largest``: padded to its graph.

    First of steps that only decode, then of steps with prompts, which some engines run without graphs.
    ``settings``: a row of ``deployment_settings``.

    >>> graphs = {"graph_max_tokens": 8, "graph_spacing": "steps", "prompt_graphs": "none"}
    >>> [padded.tolist() for padded in step_padding(9, graphs)]
    [[0, 1, 2, 4, 4, 8, 8, 8, 8, 9], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]
    """
    padded = padded_tokens(largest, settings["graph_max_tokens"], settings["graph_spacing"])
    return padded, np.arange(largest + 1) if settings["prompt_graphs"] == "none" else padded
