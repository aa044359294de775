"""Evaluates a correction, a small neural network over call features that multiplies an expression's latency.

In numpy by blocks that fit the cache of a core, three to six times faster there than compiled XLA code; in any other
``xp`` at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from kernelsight.dataflow.blas import one_blas_thread

# largest log factor of a correction: some expressions miss measured kernels by more than a factor of two
MOST = math.log(4.0)
# octaves outside the measured sizes at which a correction has half of its effect
FADE_OCTAVES = 1.0
# rows of a block: its hidden layers fit the cache, and OpenBLAS multiplies matrices of this size without packing
NETWORK_ROWS = 768
# arrays with a row for each kernel (node)
BY_NODE = ("first_bias", "last_bias", "strength")


class Network(NamedTuple):
    """Weights of one correction; F features, H and K hidden units, N kernels (nodes)."""

    low: Any  # (F,) smallest feature of the sweep
    high: Any  # (F,) largest feature of the sweep
    matter: Any  # (F,) 1: a feature by which the distance of a call from the sweep is measured, else 0
    centre: Any  # (F,) inputs are (features - centre) / scale
    scale: Any  # (F,)
    first: Any  # (F, H)
    first_bias: Any  # (N, H)
    second: Any  # (H, K)
    second_bias: Any  # (K,)
    last: Any  # (K,)
    last_bias: Any  # (N,)
    strength: Any  # (N,) factor on the correction: the share that carries over to unmeasured sites


def network_of(rows: Iterable[Mapping[str, Any]]) -> tuple[Network, list[str]]:
    """Return the network of one family and GPU from its correction rows, and its kernels in the order of the nodes."""
    arrays: dict[tuple[str, str], np.ndarray] = {}
    for row in rows:
        kernel = "|".join(row[name] or "" for name in ("engine", "implementation", "dtype"))
        arrays[row["coefficient"], kernel] = np.array(row["array"], dtype=float)
    nodes = sorted(kernel for name, kernel in arrays if name == "last_bias")
    shared_arrays = {name: values for (name, kernel), values in arrays.items() if name not in BY_NODE}
    hidden, upper = arrays["first_bias", nodes[0]].size, shared_arrays["second_bias"].size
    shared_arrays["first"] = shared_arrays["first"].reshape(-1, hidden)
    shared_arrays["second"] = shared_arrays["second"].reshape(hidden, upper)
    shared_arrays["first_bias"] = np.stack([arrays["first_bias", kernel] for kernel in nodes])
    for name in ("last_bias", "strength"):
        shared_arrays[name] = np.concatenate([arrays[name, kernel] for kernel in nodes])
    return Network(**shared_arrays), nodes


def correction(xp: Any, features: Any, node: Any, network: Network) -> Any:
    """Return the log factor on an expression's latency, (rows,); 0 where ``node`` is -1: the sweep did not run it.

    ``features``: (rows, F); ``node``: row of the kernel in BY_NODE, int, (rows,) or one for all.
    """
    if xp is np:
        with one_blas_thread():
            return _by_blocks(features, node, network)
    inputs = scaled(xp.clip(features, network.low, network.high), network)
    hidden = xp.tanh(inputs @ network.first + network.first_bias[node])
    hidden = xp.tanh(hidden @ network.second + network.second_bias)
    net = hidden @ network.last + network.last_bias[node]
    fade = 1.0 / (1.0 + (outside(xp, features, network) / FADE_OCTAVES) ** 2)
    return xp.where(node >= 0, network.strength[node] * fade * xp.clip(net, -MOST, MOST), 0.0)


def scaled(features: Any, network: Network) -> Any:
    """Return features less the sweep's centre, in units of their variation in the sweep."""
    return (features - network.centre) / network.scale


def outside(xp: Any, features: Any, network: Network) -> Any:
    """Return how far each row lies outside of the sweep's sizes, octaves, (rows,): the largest over its sizes."""
    return (xp.abs(features - xp.clip(features, network.low, network.high)) * network.matter).max(axis=1)


def _by_blocks(features: np.ndarray, node: Any, network: Network) -> np.ndarray:
    """Return :func:`correction` in numpy, with a feature or hidden unit a row of its arrays."""
    at = np.atleast_1d(np.asarray(node))
    # most calls are of one kernel: no gather per row
    at = at[:1] if (at == at[:1]).all() else at
    net = _layers(features.T, at, network)
    net += network.last_bias[at]
    np.minimum(np.maximum(net, -MOST, out=net), MOST, out=net)
    net *= np.where(at >= 0, network.strength[at], 0.0)
    sizes = features.T[_as_slice(network.matter > 0)]
    low, high = (bound[network.matter > 0, np.newaxis] for bound in (network.low, network.high))
    if net.size and ((sizes < low).any() or (sizes > high).any()):
        outside = np.maximum(np.maximum(sizes - high, low - sizes).max(axis=0, initial=0.0), 0.0)
        net /= 1.0 + (outside / FADE_OCTAVES) ** 2
    return net


def _layers(columns: np.ndarray, at: np.ndarray, network: Network) -> np.ndarray:
    """Return the last layer without its bias, (rows,), by blocks of NETWORK_ROWS; ``at``: node of all rows, or of each.

    Centre, scale and biases are part of the matrix products: a column of each matrix multiplies a row of ones.
    """
    rows, dtype, (inputs, hidden) = columns.shape[1], columns.dtype, network.first.shape
    low, high = network.low[:, np.newaxis], network.high[:, np.newaxis]
    per_unit = network.first / network.scale[:, np.newaxis]
    biases = network.first_bias - network.centre @ per_unit
    first = np.concatenate([per_unit.T, biases[at[:1]].T if at.size == 1 else np.zeros((hidden, 1), dtype)], axis=1)
    second = np.concatenate([network.second.T, network.second_bias[:, np.newaxis]], axis=1)
    output = np.empty(rows, dtype)
    for start in range(0, rows, NETWORK_ROWS):
        block = slice(start, min(start + NETWORK_ROWS, rows))
        features = columns[:, block]
        if start == 0 or block.stop == rows:
            # inputs and first layer, each with a last row of ones for the biases
            clipped_and_ones, lower_and_ones = (
                np.ones((height + 1, features.shape[1]), dtype) for height in (inputs, hidden)
            )
            upper = np.empty((second.shape[0], features.shape[1]), dtype)
            clipped, lower = clipped_and_ones[:inputs], lower_and_ones[:hidden]
        np.minimum(np.maximum(features, low, out=clipped), high, out=clipped)
        np.matmul(first, clipped_and_ones, out=lower)
        if at.size > 1:
            lower += biases[at[block]].T
        np.tanh(lower, out=lower)
        np.matmul(second, lower_and_ones, out=upper)
        np.tanh(upper, out=upper)
        np.matmul(network.last, upper, out=output[block])
    return output


def _as_slice(mask: np.ndarray) -> Any:
    """Return a mask as a slice, which numpy reads without a copy, where its true values come first; else the mask."""
    count = int(mask.sum())
    return slice(count) if mask[:count].all() else mask
