"""Launch floors of a GPU: one factor on the floors of all kernel families, from the time of an empty kernel launch.

Errors of short kernels on one GPU are correlated across families, though not fully: of the log error of the shortest
calls of some families, the share CARRIED predicts the others best, on A100, L40S, H100 and RTX PRO 6000 with fits
without their generations (benches/evaluation/lab/kernels.md). Without a measured launch the floors are those of the
fitted generations, and the intervals cover how these differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kernelsight.caches.memory_cache import memoised
from kernelsight.kernels.coefficients import Coefficient, moved
from kernelsight.kernels.kernel_constants import rows_of_part
from kernelsight.number_format import number

# family of empty launches in sweep_points and eta_coefficients, and its kernel: one empty launch in a CUDA graph
LAUNCH, IN_A_GRAPH = "launch", "graph_launch"
# coefficient of the factor on floors in eta_coefficients
FACTOR = "floor"
# time of an empty launch on a GPU whose floors are as fitted; an estimate (0.45 to 1.1 us): 0.58 us in a graph on an
# RTX 5070 Ti Laptop (github.com/ahrefs/ocannl issue 488), and 1.1 us for an addition of 1,024 numbers
# (github.com/pytorch/pytorch issue 161104); replaced by empty launches of GPUs with a sweep in the same file
EXPECTED_US = 0.7
# range of plausible empty launches, estimated from the same sources: a quarter of the shortest to more than five times
# the longest; a value outside is in another unit, or includes host time
POSSIBLE_US = 0.1, 6.0
CARRIED = 0.3
# endings of the names of coefficients that are floors
ENDINGS = ("floor_us", "floor_clocks", "start_us")
# at each knot of latency: the share of an interval's half width that remains once the floor is known (the geometric
# mean over the same GPUs is 0.98 to 1.00); and the share of a latency that is floor, on which the factor may be wrong
REMAINING = np.array([0.97, 0.97, 1.0, 1.0, 1.0])
SHARE = np.array([0.6, 0.3, 0.1, 0.02, 0.0])


def log_factor(launch_us: float, expected_us: float = EXPECTED_US) -> float:
    """Return the logarithm of the factor on floors that follows from the time of an empty launch, microseconds.

    >>> log_factor(0.7), round(log_factor(1.4), 3)
    (0.0, 0.208)
    """
    return CARRIED * float(np.log(launch_us / expected_us))


def is_floor(name: str) -> bool:
    """Return whether a coefficient is a launch floor, which every call pays whatever its size."""
    return name.endswith(ENDINGS)


def with_floors(coefficients: Sequence[Coefficient], at: Mapping[str, Any], log_by: float) -> dict[str, Any]:
    """Return the constants ``at``, by name, with floors times exp(``log_by``), within the bounds of a fit."""
    floors = {
        declared.name: declared for declared in coefficients if declared.owner != "fixed" and is_floor(declared.name)
    }
    return {name: moved(floors[name], value, log_by) if name in floors else value for name, value in at.items()}


def floor_at(pack: pa.Table, gpu: str) -> float | None:
    """Return the logarithm of a GPU's factor on floors in ``eta_coefficients``; None: no launch was measured."""

    def read() -> dict[str, float]:
        rows = rows_of_part(pack, LAUNCH, "points")
        return dict(zip(rows["gpu"].to_pylist(), np.log(rows["value"].to_numpy()).tolist(), strict=True))

    return memoised((pack,), "floors", read).get(gpu)


def floor_row(gpu: str, launch_us: float, expected_us: float) -> dict[str, Any]:
    """Return a GPU's factor on floors as a row of ``eta_coefficients``; times of empty launches in microseconds."""
    source = f"an empty launch of {gpu} takes {number(launch_us, 3)} us, {number(expected_us, 3)} are expected"
    value = float(np.exp(log_factor(launch_us, expected_us)))
    words = {"family": LAUNCH, "part": "points", "level": "gpu", "gpu": gpu, "coefficient": FACTOR}
    return {**words, "value": value, "unit": "1", "source": source}


def with_known_floor(half_widths: np.ndarray, log_by: float) -> np.ndarray:
    """Return interval half widths, (knots,), of a GPU whose floor is known: narrower as expected, wider as it moves.

    ``log_by``: logarithm of the factor on floors.
    """
    return np.hypot(half_widths * REMAINING, log_by * SHARE)
