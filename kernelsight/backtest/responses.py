"""What TTFT and TPOT of measured runs do as host time grows: each run simulated on a grid of it.

Between the points of the grid TTFT and TPOT are interpolated, so that any choice of constants costs no simulation more.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kernelsight.backtest.host_constants import Constants, with_host
from kernelsight.backtest.serve import Planned, partitions
from kernelsight.scenario.scenarios import give_plan

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session
    from kernelsight.sweeps.partitions import Partition

# host time at which runs are simulated: exposed of a step, of a request, of a kernel that no CUDA graph holds
STEP_GRID_MS = (0.0, 0.5, 1.5, 4.0)
REQUEST_GRID_MS = (0.0, 15.0, 50.0, 250.0)
LAUNCH_GRID_US = (0.0, 40.0, 130.0)
GRID = (STEP_GRID_MS, REQUEST_GRID_MS, LAUNCH_GRID_US)


class Response(NamedTuple):
    """What a run's means do as host time grows: shape [steps, requests, launches], in ms.

    Beside them how many requests run at a time, and how long their prompts are, both on the mean.
    """

    ttft_ms: np.ndarray
    tpot_ms: np.ndarray
    running: float
    prompt_tokens: float


def responses(session: Session, planned: Sequence[Planned]) -> list[Response | None]:
    """Simulate each plan on the grid; None for a run that cannot be simulated. In the order of the plans."""
    found: dict[str, Response] = {}
    for part in partitions(planned):
        with session.fork() as fork:
            fork.progress = None
            found |= _responses(fork, part)
    return [found.get(plan.scenario["scenario_id"]) if plan.scenario else None for plan in planned]


def _responses(session: Session, part: Partition) -> dict[str, Response]:
    give_plan(session, part.deployments, part.scenarios)
    session.compute("step_costs", "load_requests")
    host_settings = session.table("host_settings")
    names = session.table("deployments")["deployment_id"].to_pylist()
    shape = tuple(len(points) for points in GRID)
    means: dict[str, np.ndarray] = {}
    loads: dict[str, tuple[float, float]] = {}
    for place in itertools.product(*(range(size) for size in shape)):
        step_ms, request_ms, launch_us = (points[i] for points, i in zip(GRID, place, strict=True))
        everywhere = dict.fromkeys(names, Constants(step_ms, 0.0, request_ms, eager_launch_us=launch_us))
        with session.fork() as fork:
            fork.give("host_settings", with_host(host_settings, everywhere.get), trusted=True)
            for row in fork.table("request_statistics").to_pylist():
                if row["tpot_mean_ms"] is None:
                    continue
                name = row["scenario_id"]
                running = row["decode_ns"] / 1e9 / row["duration_s"]
                loads.setdefault(name, (running, row["prompt_tokens"] / row["completed"]))
                held = means.setdefault(name, np.full((2, *shape), np.nan))
                held[:, *place] = row["ttft_mean_ms"], row["tpot_mean_ms"]
    return {name: Response(*both, *loads[name]) for name, both in means.items()}


def means_of(values: np.ndarray, running: np.ndarray, prompt_tokens: np.ndarray, at: Constants) -> np.ndarray:
    """Return (runs, 2) means in ms of ``values`` of shape (runs, 2, steps, requests, launches).

    Time per running request is that of the mean batch, in every step; time per token that of the mean prompt.
    """
    step_ms = at.step_ms + at.per_request_us * running / 1000.0
    request_ms = at.request_ms + at.per_prompt_token_us * prompt_tokens / 1000.0
    i, u = _place(STEP_GRID_MS, step_ms / at.pace)
    j, v = _place(REQUEST_GRID_MS, request_ms / at.pace)
    k, w = _place(LAUNCH_GRID_US, np.array(at.eager_launch_us / at.pace))
    launches = values[..., k] * (1 - w) + values[..., k + 1] * w
    run, share = np.arange(running.size), v[:, None]
    low, high = (launches[run, :, row, j] * (1 - share) + launches[run, :, row, j + 1] * share for row in (i, i + 1))
    return at.pace * (low * (1 - u)[:, None] + high * u[:, None])


def _place(grid: Sequence[float], value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of the grid that a value lies in, and where in it: from 0 to 1, beyond the grid more."""
    points = np.array(grid)
    i = np.clip(np.searchsorted(points, value, side="right") - 1, 0, points.size - 2)
    return i, (value - points[i]) / (points[i + 1] - points[i])
