"""The network of a correction, evaluated: by numpy in blocks that stay in the cache of a core, or by any ``xp``.

On one core numpy multiplies and bends the hidden values of a row three to six times faster than compiled XLA code, as
long as they lie in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from kernelsight.dataflow.blas import one_blas_thread

# physics misses some measured kernels by more than a factor of two, and their sweep shows by how much
MOST = math.log(4.0)
# octaves outside the measured range at which a correction has lost half of its effect
FADE_OCTAVES = 1.0
# hidden layers of that many rows lie in the cache, and their products take OpenBLAS's path without packing
NETWORK_ROWS = 768
# numbers that each kernel has of its own
BY_NODE = ("first_bias", "last_bias", "strength")


class Network(NamedTuple):
    """The numbers of one correction; F features, H and K hidden units, N kernels (nodes)."""

    low: Any  # (F,) range of the sweep, in units of the features
    high: Any  # (F,)
    matter: Any  # (F,) 1: counts for how far a call lies from the sweep
    centre: Any  # (F,) features are taken from here,
    scale: Any  # (F,) in these units
    first: Any  # (F, H)
    first_bias: Any  # (N, H)
    second: Any  # (H, K)
    second_bias: Any  # (K,)
    last: Any  # (K,)
    last_bias: Any  # (N,)
    strength: Any  # (N,) share of the correction that holds at sites that were not measured


def network_of(rows: Iterable[Mapping[str, Any]]) -> tuple[Network, list[str]]:
    """Return the network that correction rows of one (family, GPU) hold, and its kernels in the order of its nodes."""
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
    """Return delta, the logarithm of the factor on an expression's latency; 0 where ``node`` is -1 (no sweep ran it).

    ``features``: (rows, F); ``node``: int, one a row or one for all.
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
    """Return features from the sweep's centre, in units of how much they vary in it."""
    return (features - network.centre) / network.scale


def outside(xp: Any, features: Any, network: Network) -> Any:
    """Return the octaves by which each row lies outside of the measured sizes, in the size where they are most."""
    return (xp.abs(features - xp.clip(features, network.low, network.high)) * network.matter).max(axis=1)


def _by_blocks(features: np.ndarray, node: Any, network: Network) -> np.ndarray:
    """The same in numpy, a feature or hidden unit a row of its arrays."""
    at = np.atleast_1d(np.asarray(node))
    # most calls are of one kernel: no gather per row
    at = at[:1] if (at == at[:1]).all() else at
    net = _layers(features.T, at, network)
    net += network.last_bias[at]
    np.minimum(np.maximum(net, -MOST, out=net), MOST, out=net)
    net *= np.where(at >= 0, network.strength[at], 0.0)
    sizes = features.T[_as_slice(network.matter > 0)]
    low, high = (part[network.matter > 0, np.newaxis] for part in (network.low, network.high))
    if net.size and ((sizes < low).any() or (sizes > high).any()):
        outside = np.maximum(np.maximum(sizes - high, low - sizes).max(axis=0, initial=0.0), 0.0)
        net /= 1.0 + (outside / FADE_OCTAVES) ** 2
    return net


def _layers(columns: np.ndarray, at: np.ndarray, network: Network) -> np.ndarray:
    """Return the last layer, less its bias, NETWORK_ROWS rows at a time; ``at``: node of all rows, or of each.

    Centre, scale and biases are taken into the products: a column of each layer meets a row of ones.
    """
    rows, kind, (inputs, hidden) = columns.shape[1], columns.dtype, network.first.shape
    low, high = network.low[:, np.newaxis], network.high[:, np.newaxis]
    per_unit = network.first / network.scale[:, np.newaxis]
    biases = network.first_bias - network.centre @ per_unit
    first = np.concatenate([per_unit.T, biases[at[:1]].T if at.size == 1 else np.zeros((hidden, 1), kind)], axis=1)
    second = np.concatenate([network.second.T, network.second_bias[:, np.newaxis]], axis=1)
    output = np.empty(rows, kind)
    for start in range(0, rows, NETWORK_ROWS):
        block = slice(start, min(start + NETWORK_ROWS, rows))
        seen = columns[:, block]
        if start == 0 or block.stop == rows:
            held, lower = (np.ones((height + 1, seen.shape[1]), kind) for height in (inputs, hidden))
            upper = np.empty((second.shape[0], seen.shape[1]), kind)
            within, under = held[:inputs], lower[:hidden]
        np.minimum(np.maximum(seen, low, out=within), high, out=within)
        np.matmul(first, held, out=under)
        if at.size > 1:
            under += biases[at[block]].T
        np.tanh(under, out=under)
        np.matmul(second, lower, out=upper)
        np.tanh(upper, out=upper)
        np.matmul(network.last, upper, out=output[block])
    return output


def _as_slice(chosen: np.ndarray) -> Any:
    """Return a slice where the chosen come first, which numpy reads in place, else the mask itself."""
    count = int(chosen.sum())
    return slice(count) if chosen[:count].all() else chosen
