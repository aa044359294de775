"""Host constants: host time of an engine, as columns of ``host_settings``."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa


class Constants(NamedTuple):
    """Host times of an engine, and a factor (``pace``) on the kernel times of a group of runs.

    ``eager_launch_us``: host time of each kernel launched outside CUDA graphs. It overlaps the kernels: such a step
    takes the longer of the two.
    """

    step_ms: float
    per_request_us: float
    request_ms: float
    pace: float = 1.0
    eager_launch_us: float = 0.0
    per_prompt_token_us: float = 0.0

    def host(self) -> dict[str, float]:
        """Return the columns of ``host_settings``, divided by ``pace``.

        A closed loop scales with its unit of time: kernels ``pace`` times slower with some host time are equivalent to
        kernels as predicted with 1 / pace of that host time, all resulting times multiplied by ``pace``.
        """
        return {
            "launch_gap_us": 0.0,
            "per_eager_launch_us": self.eager_launch_us / self.pace,
            "step_exposed_us": 1000.0 * self.step_ms / self.pace,
            "exposed_per_request_us": self.per_request_us / self.pace,
            "request_us": 1000.0 * self.request_ms / self.pace,
            "per_prompt_token_us": self.per_prompt_token_us / self.pace,
        }


NONE = Constants(0.0, 0.0, 0.0)


def with_host(host_settings: pa.Table, of: Callable[[str], Constants | None]) -> pa.Table:
    """Return ``host_settings`` with the constants that ``of`` returns for a deployment_id; None keeps the row."""
    rows = []
    for row in host_settings.to_pylist():
        found = of(row["deployment_id"])
        rows.append(row if found is None else {**row, **found.host()})
    return pa.Table.from_pylist(rows, schema=host_settings.schema)
