"""Responses of TTFT and TPOT of measured runs to host time: each run simulated on a grid of it.

Between the points of the grid TTFT and TPOT are interpolated, so that any choice of constants costs no simulation more.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernelsight.evaluation.runs.host_constants import LATE_EXPERTS, REQUESTS_HALF, Constants, with_host
from kernelsight.evaluation.runs.simulate_runs import Planned, partitions
from kernelsight.scenario.scenarios import give_plan

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session
    from kernelsight.sweeps.partitions import Partition

# host time at which runs are simulated: exposed of a step, of a request, of a kernel that no CUDA graph holds
STEP_GRID_MS = (0.0, 0.5, 1.5, 4.0)
REQUEST_GRID_MS = (0.0, 15.0, 60.0, 250.0)
LAUNCH_GRID_US = (0.0, 25.0, 60.0, 130.0)
GRID = (STEP_GRID_MS, REQUEST_GRID_MS, LAUNCH_GRID_US)
# kernels of a whole forward pass: one knot of each part that it visits
LAUNCHES_QUERY = """
select deployment_id, sum(launches) as launches
from (select deployment_id, part, arg_max(launches, x * 1e8 + y) as launches from step_costs
      where part <> 'decode_window' group by all)
group by deployment_id
"""


class Response(NamedTuple):
    """What a run's means do as host time grows: shape [steps, requests, launches], in ms; or those of many runs.

    Beside them how many requests run at a time, how long their prompts are (0: prose, which tokenises in no time that
    is seen), the gaps between the kernels of a forward pass in ms, and what class of model it is.
    """

    ttft_ms: np.ndarray
    tpot_ms: np.ndarray
    running: float | np.ndarray
    prompt_tokens: float | np.ndarray
    gaps_ms: float | np.ndarray
    latent: float | np.ndarray = 0.0
    late: float | np.ndarray = 0.0

    @classmethod
    def together(cls, responses: Sequence[Response]) -> Response:
        """Return the responses of runs as one, with a first axis of the runs."""
        return cls(
            *(np.stack([np.asarray(value, dtype=float) for value in values]) for values in zip(*responses, strict=True))
        )


def responses(session: Session, planned: Sequence[Planned], prose: Sequence[bool]) -> list[Response | None]:
    """Simulate each plan on the grid; None for a run that cannot be simulated. In the order of the plans.

    ``prose``: whether a run's prompts are prose.
    """
    by_scenario: dict[str, Response] = {}
    for part in partitions(planned):
        with session.fork() as fork:
            fork.progress = None
            by_scenario |= _responses(fork, part)
    answers = [by_scenario.get(plan.scenario["scenario_id"]) if plan.scenario else None for plan in planned]
    return [
        answer._replace(prompt_tokens=0.0) if answer is not None and plain else answer
        for answer, plain in zip(answers, prose, strict=True)
    ]


def _responses(session: Session, part: Partition) -> dict[str, Response]:
    give_plan(session, part.deployments, part.scenarios)
    session.compute("step_costs", "load_requests")
    host_settings = session.table("host_settings")
    launches = {row["deployment_id"]: float(row["launches"]) for row in session.query(LAUNCHES_QUERY).to_pylist()}
    traits = {row["deployment_id"]: _traits(row, launches) for row in host_settings.to_pylist()}
    deployment_of = {row["scenario_id"]: row["deployment_id"] for row in part.scenarios}
    shape = tuple(len(points) for points in GRID)
    means: dict[str, np.ndarray] = {}
    loads: dict[str, tuple[float, float]] = {}
    for grid_point in itertools.product(*(range(size) for size in shape)):
        step_ms, request_ms, launch_us = (points[i] for points, i in zip(GRID, grid_point, strict=True))
        everywhere = Constants(0.0, request_ms, gap=0.0, eager_launch_us=launch_us)
        with session.fork() as fork:
            grid_host = with_host(
                host_settings, lambda row, at=everywhere, ms=step_ms: {**at.host(row), "step_exposed_us": 1000.0 * ms}
            )
            fork.give("host_settings", grid_host, trusted=True)
            for row in fork.table("request_statistics").to_pylist():
                if row["tpot_mean_ms"] is None:
                    continue
                name = row["scenario_id"]
                running = row["decode_ns"] / 1e9 / row["duration_s"]
                loads.setdefault(name, (running, row["prompt_tokens"] / row["completed"]))
                held = means.setdefault(name, np.full((2, *shape), np.nan))
                held[:, *grid_point] = row["ttft_mean_ms"], row["tpot_mean_ms"]
    return {name: Response(*both, *loads[name], *traits[deployment_of[name]]) for name, both in means.items()}


def _traits(row: dict[str, Any], launches: dict[str, float]) -> tuple[float, float, float]:
    """Return the gaps of a forward pass in ms, and 1 or 0 for latent attention and experts whose answers come late."""
    late = row["experts"] and row["engine"] == LATE_EXPERTS
    gaps_ms = row["launch_gap_us"] * launches.get(row["deployment_id"], 0.0) / 1000.0
    return gaps_ms, float(row["latent_attention"]), float(late)


def means_of(runs: Response, at: Constants) -> np.ndarray:
    """Return (runs, 2) means in ms of the responses of runs (see ``Response.together``).

    Time per running request is that of the mean batch, in every step; time per token that of the mean prompt.
    """
    values = np.stack([runs.ttft_ms, runs.tpot_ms], axis=1)
    seen = runs.running / (1.0 + runs.running / REQUESTS_HALF)
    step_ms = at.gap * runs.gaps_ms + at.per_request_us * seen / 1000.0
    request_ms = (
        at.request_ms + at.experts_request_ms * runs.late + at.per_prompt_token_us * runs.prompt_tokens / 1000.0
    )
    launch_us = at.eager_launch_us + at.latent_launch_us * runs.latent
    shares = [_place(grid, value / at.pace) for grid, value in zip(GRID, (step_ms, request_ms, launch_us), strict=True)]
    run, means = np.arange(values.shape[0]), 0.0
    for corner in itertools.product((0, 1), repeat=3):
        weight = np.prod([u if up else 1 - u for up, (_, u) in zip(corner, shares, strict=True)], axis=0)
        places = (i + up for up, (i, _) in zip(corner, shares, strict=True))
        means = means + values[run, :, *places] * weight[:, None]
    return at.pace * means


def _place(grid: Sequence[float], value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of the grid that a value lies in, and where in it: from 0 to 1, beyond the grid more."""
    points = np.array(grid)
    i = np.clip(np.searchsorted(points, value, side="right") - 1, 0, points.size - 2)
    return i, (value - points[i]) / (points[i + 1] - points[i])
