"""Derivatives under a power limit: how the latency of a kernel whose clock the limit lowers goes with the facts.

A fact moves three things: the latency without the limit, the work over its rates, and, of the board's own limit, what
work draws. The clock that fits is found by halving; its derivative is a central difference of a step far above the
precision of the halving.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.dataflow.columns import in_one_piece
from kernelsight.kernels.energy import DRAWN, Work, drawn_by, has_limit, limits_of, under_limit, work_on

# of the logarithm of a fact, over which the clock that fits is differentiated
STEP = 1e-4


class Sides(NamedTuple):
    """Pairs of a call and a fact: latency without a limit at the fact, above and below; hardware rows of these.

    ``latency_us`` and ``hardware_row`` have the shape (pairs, 3), ``fact`` and ``elasticity`` (pairs,).
    """

    call: np.ndarray
    fact: np.ndarray
    latency_us: np.ndarray
    elasticity: np.ndarray
    hardware_row: np.ndarray


class PowerLimits(NamedTuple):
    """Calls with the power limit of each, W (infinite: none), and what their GPUs draw.

    ``drawn``: DRAWN of ``gpu_power`` for each GPU, in the order of the moved hardware; ``scales``: how each goes with
    the facts, shape (GPUs, facts): 1 where it is a share of the fact.
    """

    family: str
    calls: pa.Table
    limit_w: np.ndarray
    drawn: dict[str, np.ndarray]
    scales: dict[str, np.ndarray]

    def take(self, rows: np.ndarray) -> PowerLimits:
        """Return some of the calls."""
        return self._replace(calls=self.calls.take(pa.array(rows)), limit_w=self.limit_w[rows])

    def key(self) -> list[np.ndarray]:
        """Return what distinguishes calls beside what their expressions read."""
        if "format" not in self.calls.column_names:
            return [self.limit_w]
        words = in_one_piece(self.calls["format"])
        words = words if pa.types.is_dictionary(words.type) else pc.dictionary_encode(words)
        return [self.limit_w, words.indices.to_numpy().astype(float)]

    def elasticities(
        self, sides: Sides, columns: dict[str, np.ndarray], tangents: dict[str, np.ndarray], step: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return elasticities of latencies under the limits, and ratios of both sides to the latency at the fact.

        ``columns``, ``tangents``: hardware columns and how they go with the logarithm of the fact of their row;
        ``step``: of the fact, between its sides.
        """
        moved = {name: values * STEP for name, values in tangents.items()}
        at_fact, log_us = sides.hardware_row[:, 0], np.log(sides.latency_us[:, 0])
        upper, lower = (
            self._latency_us(
                sides,
                np.exp(log_us + sign * STEP * sides.elasticity),
                columns | {name: columns[name] + sign * values for name, values in moved.items()},
                at_fact,
                sign * STEP,
            )
            for sign in (1.0, -1.0)
        )
        logs = (0.0, np.log1p(step), np.log1p(-step))
        limited = [
            self._latency_us(sides, sides.latency_us[:, side], columns, sides.hardware_row[:, side], log)
            for side, log in enumerate(logs)
        ]
        return np.log(upper / lower) / (2.0 * STEP), np.stack(limited[1:], axis=1) / limited[0][:, None]

    def _latency_us(
        self, sides: Sides, latency_us: np.ndarray, columns: dict[str, np.ndarray], row: np.ndarray, log: float
    ) -> np.ndarray:
        """Return latencies under the limits on hardware ``row``; ``log``: by how much the fact is moved."""
        facts = next(iter(self.scales.values())).shape[1]
        gpu = sides.hardware_row[:, 0] // (3 * facts)
        work: Work = work_on(self.family, self.calls.take(pa.array(sides.call)), columns, row)
        at = {
            name: values[gpu] * np.exp(self.scales[name][gpu, sides.fact] * log) for name, values in self.drawn.items()
        }
        drawn = drawn_by(work, latency_us, at)
        return under_limit(work, latency_us, drawn, self.limit_w[sides.call], at)[0]


def power_limits(
    family: str, calls: pa.Table, settings: pa.Table, gpus: pa.Table, gpu_power: pa.Table, facts: tuple[str, ...]
) -> PowerLimits | None:
    """Return the power limits of calls; None: there are none. ``gpus``: of the moved hardware, in its order."""
    if not has_limit(settings):
        return None
    power_row = pc.index_in(gpus["gpu"], gpu_power["gpu"].combine_chunks())
    drawn = {name: gpu_power[name].take(power_row).to_numpy() for name in DRAWN}
    board = np.array([name == "tdp_w" for name in facts], float)
    states_idle = pc.is_valid(gpus["idle_w"]).to_numpy(zero_copy_only=False)

    def scale(name: str) -> np.ndarray:
        follows = np.full(gpus.num_rows, float(name.endswith("_w")))
        return np.outer(np.where(states_idle, 0.0, 1.0) if name == "idle_w" else follows, board)

    return PowerLimits(family, calls, limits_of(calls, settings), drawn, {name: scale(name) for name in drawn})
