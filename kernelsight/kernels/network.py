"""Evaluates a correction, a small neural network over call features that multiplies an expression's latency."""

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
# rows that numpy evaluates together: their hidden layers fit the cache, and OpenBLAS multiplies them without packing
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
    if xp is np and len(features) > NETWORK_ROWS:
        node = np.broadcast_to(node, len(features))
        blocks = (slice(start, start + NETWORK_ROWS) for start in range(0, len(features), NETWORK_ROWS))
        with one_blas_thread():
            return np.concatenate([correction(np, features[block], node[block], network) for block in blocks])
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
