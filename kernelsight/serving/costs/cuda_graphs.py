"""CUDA graph sizes: the token counts for which an engine captures a graph, as vLLM chooses them by default."""

from __future__ import annotations

import numpy as np


def captured_sizes(largest: int) -> np.ndarray:
    """Return the captured sizes in tokens up to ``largest``: 1, 2, 4, then multiples of 8 up to 256, then of 16.

    >>> captured_sizes(24).tolist(), captured_sizes(512).size
    ([1, 2, 4, 8, 16, 24], 51)
    """
    sizes = np.array([1, 2, 4, *range(8, 257, 8), *range(272, largest + 1, 16)])
    return sizes[sizes <= largest]


def padded_tokens(largest: int, graph_max_tokens: int) -> np.ndarray:
    """Return, for every token count from 0, the captured size that serves it, or itself beyond the largest capture.

    >>> padded_tokens(10, 8).tolist()
    [0, 1, 2, 4, 4, 8, 8, 8, 8, 9, 10]
    """
    sizes = np.append(0, captured_sizes(min(graph_max_tokens, largest)))
    tokens = np.arange(largest + 1)
    if sizes.size == 1:
        return tokens
    position = np.searchsorted(sizes, tokens)
    return np.where(position < sizes.size, sizes[np.minimum(position, sizes.size - 1)], tokens)
