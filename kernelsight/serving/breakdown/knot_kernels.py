"""GPU time of every kernel at the knots of a deployment's step costs, as a matrix [knots, kernels]."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.serving.costs.knots import PARTS

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
# kernels in the order of a forward pass; a kernel that is not listed is placed by its family
ORDER = (
    *("embedding", "embedding_all_reduce", "draft_input_norm", "draft_input_proj", "stream_read", "residual_norm"),
    *("quantize_hidden", "quantize_activation", "q_a_proj", "qkv_a_proj", "q_a_norm", "kv_a_norm", "q_b_proj"),
    *("q_proj", "k_proj", "v_proj", "kv_a_proj", "qkv_proj", "in_proj", "causal_conv", "delta_rule", "linear_gate"),
    *("qk_norm", "rope", "indexer_q_proj", "indexer_k_proj", "indexer", "kv_write", "q_absorb", "kv_b_proj"),
    *("kv_b_proj_context", "prefill_attention", "mla_prefill", "decode_attention", "mla_decode", "sparse_mla"),
    *("v_absorb", "attention_gate", "quantize_attention", "o_proj", "out_proj", "attention_all_reduce"),
    *("router", "moe_dispatch", "experts", "moe_combine", "shared_gate_up_proj", "shared_activation"),
    *("shared_down_proj", "gate_up_proj", "up_proj", "ffn_activation", "quantize_ffn", "down_proj", "ffn_all_reduce"),
    *("stream_write", "final_norm", "lm_head", "logits_all_gather", "sampling", "stage_transfer"),
)
FAMILIES = (
    *(
        "embedding",
        "hyper_connection",
        "norm",
        "quantize",
        "gemm",
        "rope",
        "kv_write",
        "batched_gemm",
        "linear_attention",
    ),
    *("sparse_attention", "prefill_attention", "mla_prefill", "decode_attention", "mla_decode", "all_gather"),
    *("activation", "moe", "all_to_all", "reduce_scatter", "all_reduce", "sampling", "p2p"),
)


class KnotKernels(NamedTuple):
    """The kernels of a deployment, in order of execution, with GPU time and launches at each knot.

    ``kernels``: (part of a step, family, name) of each column; ``part``: index in PARTS, ``x``: first coordinate, shape
    [knots]; ``us``, ``calls``: GPU time and launches, shape [knots, kernels].
    """

    kernels: list[tuple[str, str, str]]
    part: np.ndarray
    x: np.ndarray
    us: np.ndarray
    calls: np.ndarray

    def spent(self, point: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return GPU time in us and launches of weighted knots, shape [kernels] each."""
        return weight @ self.us[point], weight @ self.calls[point]

    def at(self, part: str, x: np.ndarray) -> np.ndarray:
        """Return GPU time in us, interpolated at x, of a part with one coordinate; shape [x, kernels]."""
        points = np.flatnonzero(self.part == PARTS.index(part))
        gpu_us = np.zeros((x.size, len(self.kernels)))
        if points.size:
            # with adapters, of which there are knots of their own: any number of them
            points = points[np.unique(self.x[points], return_index=True)[1]]
            for column in np.flatnonzero(self.us[points].any(axis=0)):
                gpu_us[:, column] = np.where(x > 0, np.interp(x, self.x[points], self.us[points, column]), 0.0)
        return gpu_us


def place(name: str, family: str) -> tuple[float, str]:
    """Return the sort key of a kernel that gives the order of a forward pass.

    >>> sorted([("down_proj", "gemm"), ("qkv_proj", "gemm"), ("rope", "rope")], key=lambda each: place(*each))
    [('qkv_proj', 'gemm'), ('rope', 'rope'), ('down_proj', 'gemm')]
    """
    if name in ORDER:
        return float(ORDER.index(name)), name
    rank = FAMILIES.index(family) if family in FAMILIES else len(FAMILIES)
    return len(ORDER) * (rank + 0.5) / (len(FAMILIES) + 1), name


def knot_kernels(
    kernel_latencies: pa.Table, step_shapes: pa.Table, knot_corrections: pa.Table
) -> dict[str, KnotKernels]:
    """Return the kernels at the knots of each deployment, factors of ``knot_corrections`` included."""
    by_deployment = {}
    for deployment in pc.unique(step_shapes["deployment_id"]).to_pylist():
        shapes, latencies, corrections = (
            table.filter(pc.equal(table["deployment_id"], deployment))
            for table in (step_shapes, kernel_latencies, knot_corrections)
        )
        if latencies.num_rows:
            by_deployment[deployment] = _of_deployment(shapes, latencies, corrections)
    return by_deployment


def _of_deployment(shapes: pa.Table, latencies: pa.Table, corrections: pa.Table) -> KnotKernels:
    ids = shapes["step_shape_id"].to_numpy()
    part, x = np.full(ids.max() + 1, -1), np.zeros(ids.max() + 1)
    part[ids] = [PARTS.index(name) if name in PARTS else -1 for name in shapes["part"].to_pylist()]
    x[ids] = shapes["x"].to_numpy()
    point = latencies["step_shape_id"].to_numpy()
    latencies, point = latencies.filter(pa.array(part[point] >= 0)), point[part[point] >= 0]
    names = zip(latencies["family"].to_pylist(), latencies["name"].to_pylist(), part[point].tolist(), strict=True)
    rows = [(PARTS[number], family, name) for family, name, number in names]
    kernels = sorted(set(rows), key=lambda kernel: (place(kernel[2], kernel[1]), kernel))
    numbers = {kernel: number for number, kernel in enumerate(kernels)}
    cell = point * len(kernels) + np.array([numbers[row] for row in rows], np.int64)
    count = latencies["count"].to_numpy().astype(float)
    factor = _factors(kernels, corrections, part.size).ravel()[cell]
    us = count * latencies["latency_us"].to_numpy() * factor
    size = part.size * len(kernels)
    us, calls = (np.bincount(cell, values, size).reshape(part.size, len(kernels)) for values in (us, count))
    return KnotKernels(kernels, part, x, us, calls)


def _factors(kernels: list[tuple[str, str, str]], corrections: pa.Table, points: int) -> np.ndarray:
    """Return the factor on each kernel at each knot, shape [knots, kernels]; 1 without a correction."""
    factors = np.ones((points, len(kernels)))
    at = corrections["step_shape_id"].to_numpy()
    for column, (_, family, _) in enumerate(kernels):
        kind = "moe_factor" if family == "moe" else "communication_factor" if family in COLLECTIVES else "factor"
        factors[at, column] = corrections[kind].to_numpy()
    return factors
