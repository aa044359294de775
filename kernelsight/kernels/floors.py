"""What an empty launch says of a GPU: one factor on the floors of all kernel families.

Short kernels of one GPU err alike, but not in every family: of the logarithm by which the shortest calls of some
families lie off, CARRIED is what serves the others best, on A100, L40S, H100 and RTX PRO 6000 by fits without their
generations (docs/lab/kernels.md). Without an empty launch the floors are those of the generations that were fitted, and
the intervals hold how these differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kernelsight.dataflow.cache import remembered
from kernelsight.kernels.forms import Coefficient, moved
from kernelsight.kernels.resolve import rows_of_part
from kernelsight.number_format import number

# of rows in sweep_points and eta_coefficients, and the kernel of it whose time is that of one empty launch in a graph
LAUNCH, IN_A_GRAPH = "launch", "graph_launch"
FACTOR = "floor"
# an empty launch where floors are as fitted, estimated (0.45 to 1.1 us): 0.58 us in a graph on an RTX 5070 Ti Laptop
# (github.com/ahrefs/ocannl issue 488), and 1.1 us for an addition of 1,024 numbers (github.com/pytorch/pytorch issue
# 161104); empty launches of GPUs with a sweep in the same file stand in its place
EXPECTED_US = 0.7
# what one can take, estimated from the same: a quarter of the shortest to five times the longest and more; what lies
# outside is in another unit, or holds the time of the host
POSSIBLE_US = 0.1, 6.0
CARRIED = 0.3
# coefficients that are floors, by their endings
ENDINGS = ("floor_us", "floor_clocks", "start_us")
# of an interval's half width, what knowing the floor leaves at the knots of latency: the geometric mean over the same
# GPUs and 0.98 to 1.00; and the share of a latency that is floor, by which what is carried may be wrong as a whole
LEFT = np.array([0.97, 0.97, 1.0, 1.0, 1.0])
SHARE = np.array([0.6, 0.3, 0.1, 0.02, 0.0])


def log_factor(launch_us: float, expected_us: float = EXPECTED_US) -> float:
    """Return the logarithm of the factor on floors that an empty launch of so many microseconds says.

    >>> log_factor(0.7), round(log_factor(1.4), 3)
    (0.0, 0.208)
    """
    return CARRIED * float(np.log(launch_us / expected_us))


def is_floor(name: str) -> bool:
    """Return whether a coefficient is a launch that is paid whatever the kernel does.

    >>> is_floor("prompt_floor_us"), is_floor("gap_us")
    (True, False)
    """
    return name.endswith(ENDINGS)


def with_floors(coefficients: Sequence[Coefficient], at: Mapping[str, Any], log_by: float) -> dict[str, Any]:
    """Return constants with their floors times exp(``log_by``), within the bounds of a fit."""
    known = {one.name: one for one in coefficients if one.owner != "fixed" and is_floor(one.name)}
    return {name: moved(known[name], value, log_by) if name in known else value for name, value in at.items()}


def floor_at(pack: pa.Table, gpu: str) -> float | None:
    """Return the logarithm of a GPU's factor on floors that ``eta_coefficients`` hold; None: no launch was measured."""

    def read() -> dict[str, float]:
        rows = rows_of_part(pack, LAUNCH, "points")
        return dict(zip(rows["gpu"].to_pylist(), np.log(rows["value"].to_numpy()).tolist(), strict=True))

    return remembered((pack,), "floors", read).get(gpu)


def floor_row(gpu: str, launch_us: float, expected_us: float) -> dict[str, Any]:
    """Return a GPU's factor on floors as a row of ``eta_coefficients``."""
    source = f"an empty launch of {gpu} takes {number(launch_us, 3)} us, {number(expected_us, 3)} are expected"
    value = float(np.exp(log_factor(launch_us, expected_us)))
    words = {"family": LAUNCH, "part": "points", "level": "gpu", "gpu": gpu, "coefficient": FACTOR}
    return {**words, "value": value, "unit": "1", "source": source}


def with_known_floor(half_widths: np.ndarray, log_by: float) -> np.ndarray:
    """Return half widths (knots,) of calls without points where the floor is known: narrower where it is as expected,
    wider the more it moves."""
    return np.hypot(half_widths * LEFT, log_by * SHARE)
