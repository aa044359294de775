"""Elasticities under a power limit: of the latency of kernels whose clock the limit lowers, by the facts of a GPU.

A fact moves three things: the latency without the limit, the time of the work at full rate, and, where the fact is the
board's power limit, the power that work draws. The clock within the limit is found by bisection; its derivative is a
central difference with a step far above the bisection's precision.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.array_expressions import in_one_piece
from kernelsight.kernels.energy import POWER_COLUMNS, Work, drawn_by, has_limit, limits_of, under_limit, work_on

# step of the central difference, in the logarithm of a fact
STEP = 1e-4


class CallFacts(NamedTuple):
    """Pairs of a call and a fact, without a power limit: latency at the fact, above and below it, and elasticity."""

    call: np.ndarray  # (pairs,) row of the call
    fact: np.ndarray  # (pairs,) position of the fact
    latency_us: np.ndarray  # (pairs, 3)
    elasticity: np.ndarray  # (pairs,) d log latency / d log fact
    hardware_row: np.ndarray  # (pairs, 3) row of the moved hardware


class PowerLimits(NamedTuple):
    """Calls of a family with their power limits, and the power constants of their GPUs."""

    family: str
    calls: pa.Table
    limit_w: np.ndarray  # (calls,), infinite: no limit
    drawn: dict[str, np.ndarray]  # the columns POWER_COLUMNS of gpu_power, (GPUs,) in the order of the moved hardware
    scales: dict[str, np.ndarray]  # (GPUs, facts): 1 where the column is a share of the fact, else 0

    def take(self, rows: np.ndarray) -> PowerLimits:
        """Return some of the calls."""
        return self._replace(calls=self.calls.take(pa.array(rows)), limit_w=self.limit_w[rows])

    def key(self) -> list[np.ndarray]:
        """Return the columns, (calls,) each, by which calls differ beside those that their expressions read."""
        if "format" not in self.calls.column_names:
            return [self.limit_w]
        words = in_one_piece(self.calls["format"])
        words = words if pa.types.is_dictionary(words.type) else pc.dictionary_encode(words)
        return [self.limit_w, words.indices.to_numpy().astype(float)]

    def elasticities(
        self, pairs: CallFacts, columns: dict[str, np.ndarray], tangents: dict[str, np.ndarray], step: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return elasticities under the limits, (pairs,), and latency above and below over at the fact, (pairs, 2).

        ``columns``, ``tangents``: moved hardware columns, and their derivatives by the logarithm of their row's fact;
        ``step``: share of the fact by which the sides lie above and below it.
        """
        moved = {name: values * STEP for name, values in tangents.items()}
        at_fact, log_us = pairs.hardware_row[:, 0], np.log(pairs.latency_us[:, 0])
        upper, lower = (
            self._latency_us(
                pairs,
                np.exp(log_us + sign * STEP * pairs.elasticity),
                columns | {name: columns[name] + sign * values for name, values in moved.items()},
                at_fact,
                sign * STEP,
            )
            for sign in (1.0, -1.0)
        )
        logs = (0.0, np.log1p(step), np.log1p(-step))
        limited = [
            self._latency_us(pairs, pairs.latency_us[:, side], columns, pairs.hardware_row[:, side], log)
            for side, log in enumerate(logs)
        ]
        return np.log(upper / lower) / (2.0 * STEP), np.stack(limited[1:], axis=1) / limited[0][:, None]

    def _latency_us(
        self, pairs: CallFacts, latency_us: np.ndarray, columns: dict[str, np.ndarray], row: np.ndarray, log: float
    ) -> np.ndarray:
        """Return latencies under the limits on hardware ``row``, (pairs,); ``log``: move of the fact's logarithm."""
        fact_count = next(iter(self.scales.values())).shape[1]
        gpu = pairs.hardware_row[:, 0] // (3 * fact_count)
        work: Work = work_on(self.family, self.calls.take(pa.array(pairs.call)), columns, row)
        constants = {
            name: values[gpu] * np.exp(self.scales[name][gpu, pairs.fact] * log) for name, values in self.drawn.items()
        }
        drawn = drawn_by(work, latency_us, constants)
        return under_limit(work, latency_us, drawn, self.limit_w[pairs.call], constants)[0]


def power_limits(
    family: str, calls: pa.Table, settings: pa.Table, gpus: pa.Table, gpu_power: pa.Table, facts: tuple[str, ...]
) -> PowerLimits | None:
    """Return the power limits of a family's calls, or None where no deployment has one.

    ``settings``: ``deployment_settings``; ``gpus``: rows in the order of the moved hardware; ``facts``: names of facts.
    """
    if not has_limit(settings):
        return None
    power_row = pc.index_in(gpus["gpu"], gpu_power["gpu"].combine_chunks())
    drawn = {name: gpu_power[name].take(power_row).to_numpy() for name in POWER_COLUMNS}
    is_board_limit = np.array([name == "tdp_w" for name in facts], float)
    has_idle_w = pc.is_valid(gpus["idle_w"]).to_numpy(zero_copy_only=False)

    def scale(name: str) -> np.ndarray:
        is_share = np.full(gpus.num_rows, float(name.endswith("_w")))
        return np.outer(np.where(has_idle_w, 0.0, 1.0) if name == "idle_w" else is_share, is_board_limit)

    return PowerLimits(family, calls, limits_of(calls, settings), drawn, {name: scale(name) for name in drawn})
