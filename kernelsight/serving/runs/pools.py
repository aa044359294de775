"""Pools of engines for the scheduler's loop: replicas of a deployment, and its step costs as arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.caches.memory_cache import memoised
from kernelsight.serving.costs.cuda_graphs import step_padding
from kernelsight.serving.costs.knots import PARTS
from kernelsight.serving.engine import packed_costs, replica
from kernelsight.serving.engine.inputs import Surface, Transfer
from kernelsight.serving.runs.result_tables import CostTables


def replicated(
    scenario: dict[str, Any], decode: replica.Pool, prefill: replica.Pool | None = None
) -> list[replica.Pool]:
    """Return the pools of a scenario's replicas: one, or with P/D disaggregation prefill and decode replicas."""
    if prefill is None:
        return [decode._replace(engines=decode.engines * (scenario["replicas"] or 1))]
    return [
        prefill._replace(engines=prefill.engines * (scenario["prefill_replicas"] or 1)),
        decode._replace(
            limits=replica.decode_limits(decode.limits), engines=decode.engines * (scenario["decode_replicas"] or 1)
        ),
    ]


def transfer_of(link: dict[str, Any]) -> Transfer:
    """Return the times of a KV transfer as the loop takes them; ``link``: a row of ``kv_transfers``."""
    return Transfer(*(link[name] for name in Transfer._fields))


def cost_tables(step_costs: pa.Table, step_shapes: pa.Table, deployment: dict[str, Any]) -> CostTables:
    """Return the step costs of a deployment as arrays that the loop reads, in us.

    Dense tables over tokens and sampled sequences, grids of knots for attention. ``step_costs``, ``step_shapes``: rows
    of this deployment alone.
    """
    # cached: simulations at other costs have the same knots
    axes, ids, size = memoised((step_shapes,), "axes", lambda: _laid_out(step_shapes))
    numbers = step_costs["step_shape_id"].to_numpy()
    parts_us = {}

    def by_id(name: str) -> np.ndarray:
        values = np.zeros(size)
        values[numbers] = step_costs[name].to_numpy()
        return values

    gpu_us, launches, energy_j = by_id("gpu_us"), by_id("launches"), by_id("dynamic_energy_j")
    measured_us = np.nan_to_num(by_id("measured_us"))
    tokens, stage_columns = axes["tokens"][0], ("embedding_us", "transfer_us") if deployment["pp"] > 1 else ()
    for name in (*stage_columns, "moe_us", "communication_us"):
        parts_us[name] = dense(tokens, by_id(name)[ids["tokens"][:, 0]], int(tokens[-1]))
    if ids["experts"].size:
        exchange_us = by_id("communication_us")[ids["experts"][:, 0]]
        parts_us["experts_communication_us"] = dense(tokens, exchange_us, int(tokens[-1]))
    largest_tokens, largest_sampled = int(axes["tokens"][0][-1]), int(axes["logits"][0][-1])
    logits_us = by_id("communication_us")[ids["logits"][:, 0]]
    parts_us["sampled_communication_us"] = dense(axes["logits"][0], logits_us, largest_sampled)
    padded, with_prompts = step_padding(largest_tokens, deployment)

    def surface_of(values: np.ndarray) -> Surface:
        experts = dense(tokens, values[ids["experts"][:, 0]], int(tokens[-1])) if ids["experts"].size else np.zeros(0)
        return Surface(
            dense(tokens, values[ids["tokens"][:, 0]], largest_tokens),
            padded,
            dense(axes["logits"][0], values[ids["logits"][:, 0]], largest_sampled),
            *(
                item
                for name in ("decode_attention", "decode_window", "prefill_attention", "mixed_decode")
                for item in (*axes[name], values[ids[name]])
            ),
            experts_us=experts,
            adapted_us=np.array([dense(tokens, row, largest_tokens) for row in values[ids["tokens"]].T[1:]]),
            adapter_levels=axes["tokens"][1][1:].astype(np.int64),
            padded_prompt_tokens=padded[:0] if with_prompts is padded else with_prompts,
            **parts_us,
        )

    # kernel launches of a whole forward pass: those of one knot of each part of a step
    of_a_pass = (name for name in PARTS if ids[name].size and name not in ("decode_window", "mixed_decode"))
    passes = sum(int(launches[ids[name].ravel()[-1]]) for name in of_a_pass)
    of_adapters = int(launches[ids["tokens"][-1, -1]] - launches[ids["tokens"][-1, 0]])
    # knots of windowed (or sparse) attention end at the width of the window (or of the selection)
    window = int(axes["decode_window"][1][-1]) if axes["decode_window"][1].size else 0
    # of the layers: their knots do not depend on the loads
    ends = [float(by_id(f"gpu_{end}_us")[ids["tokens"]].sum()) or 1.0 for end in ("p05", "p95")]
    spread = math.sqrt(ends[1] / ends[0])
    packed = packed_costs.pack(*map(surface_of, (gpu_us, energy_j, measured_us)))
    return CostTables(packed, axes, ids, passes, of_adapters, window, spread)


def _laid_out(
    step_shapes: pa.Table,
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], dict[str, np.ndarray], int]:
    """Return the axes of each part's knots, the step shape ids on their grid, and one more than the largest id."""
    numbers = step_shapes["step_shape_id"].to_numpy()
    part = step_shapes["part"].combine_chunks().dictionary_encode()
    x, y = step_shapes["x"].to_numpy(), step_shapes["y"].to_numpy()
    axes, ids = {}, {}
    for name in PARTS:
        rows = np.flatnonzero(part.indices.to_numpy() == pc.index(part.dictionary, name).as_py())
        axes[name] = (np.unique(x[rows]), np.unique(y[rows]))
        ids[name] = numbers[rows].reshape(axes[name][0].size, axes[name][1].size)
    return axes, ids, int(numbers.max(initial=-1)) + 1


def dense(knots: np.ndarray, values: np.ndarray, largest: int) -> np.ndarray:
    """Return values interpolated linearly between knots for every whole number from 0 (cost 0) to ``largest``."""
    table = np.interp(np.arange(largest + 1, dtype=float), knots, values)
    table[0] = 0.0
    return table
