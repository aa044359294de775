"""Responses of measured runs' TTFT and TPOT to host time: each run simulated on a grid, then interpolated.

Interpolation gives TTFT and TPOT at any host constants without further simulations.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kernelsight.evaluation.runs.simulate_runs import Planned, partitions, with_host
from kernelsight.laboratory.runs.host_constants import REQUESTS_HALF, Constants
from kernelsight.scenario.plan import give_plan

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session
    from kernelsight.sweeps.partitions import Partition

# grid of host times: exposed per step, per request, per kernel launched outside CUDA graphs
STEP_GRID_MS = (0.0, 0.5, 1.5, 4.0)
REQUEST_GRID_MS = (0.0, 15.0, 60.0, 250.0)
LAUNCH_GRID_US = (0.0, 25.0, 60.0, 130.0)
GRID = (STEP_GRID_MS, REQUEST_GRID_MS, LAUNCH_GRID_US)
# kernels of a whole forward pass: of the largest step shape of each part of step_costs
LAUNCHES_QUERY = """
select deployment_id, sum(launches) as launches
from (select deployment_id, part, arg_max(launches, x * 1e8 + y) as launches from step_costs
      where part <> 'decode_window' group by all)
group by deployment_id
"""


class Response(NamedTuple):
    """Mean TTFT and TPOT of a run on the grid of host times, ms, shape [steps, requests, launches].

    ``running``: mean number of running requests; ``prompt_tokens``: mean prompt length (0: natural text, whose
    tokenisation time is 0); ``gaps_ms``: gaps between the kernels of a forward pass. Of many runs, every field has a
    first axis of runs.
    """

    ttft_ms: np.ndarray
    tpot_ms: np.ndarray
    running: float | np.ndarray
    prompt_tokens: float | np.ndarray
    gaps_ms: float | np.ndarray

    @classmethod
    def together(cls, responses: Sequence[Response]) -> Response:
        """Return the responses of several runs stacked, with a first axis of runs."""
        return cls(
            *(np.stack([np.asarray(value, dtype=float) for value in values]) for values in zip(*responses, strict=True))
        )


def responses(session: Session, planned: Sequence[Planned], prose: Sequence[bool]) -> list[Response | None]:
    """Return the response of each plan, in their order; None for a run that cannot be simulated.

    ``prose``: whether each run's prompts are natural text.
    """
    by_scenario: dict[str, Response] = {}
    for part in partitions(planned):
        with session.fork() as fork:
            fork.progress = None
            by_scenario |= _responses(fork, part)
    by_plan = [by_scenario.get(plan.scenario["scenario_id"]) if plan.scenario else None for plan in planned]
    return [
        response._replace(prompt_tokens=0.0) if response is not None and is_prose else response
        for response, is_prose in zip(by_plan, prose, strict=True)
    ]


def _responses(session: Session, part: Partition) -> dict[str, Response]:
    """Return the responses of some scenarios, by scenario_id."""
    give_plan(session, part.deployments, part.scenarios)
    session.compute("step_costs", "load_requests")
    host_settings = session.table("host_settings")
    launches = {row["deployment_id"]: float(row["launches"]) for row in session.query(LAUNCHES_QUERY).to_pylist()}
    gaps_ms = {
        row["deployment_id"]: row["launch_gap_us"] * launches.get(row["deployment_id"], 0.0) / 1000.0
        for row in host_settings.to_pylist()
    }
    deployment_of = {row["scenario_id"]: row["deployment_id"] for row in part.scenarios}
    shape = tuple(len(points) for points in GRID)
    means: dict[str, np.ndarray] = {}
    loads: dict[str, tuple[float, float]] = {}
    for grid_point in itertools.product(*(range(size) for size in shape)):
        step_ms, request_ms, launch_us = (points[i] for points, i in zip(GRID, grid_point, strict=True))
        grid_constants = Constants(0.0, request_ms, gap=0.0, eager_launch_us=launch_us)
        with session.fork() as fork:
            grid_host = with_host(
                host_settings,
                lambda row, constants=grid_constants, ms=step_ms: {
                    **constants.host(row),
                    "step_exposed_us": 1000.0 * ms,
                },
            )
            fork.give("host_settings", grid_host, trusted=True)
            for row in fork.table("request_statistics").to_pylist():
                if row["tpot_mean_ms"] is None:
                    continue
                name = row["scenario_id"]
                running = row["decode_ns"] / 1e9 / row["duration_s"]
                loads.setdefault(name, (running, row["prompt_tokens"] / row["completed"]))
                run_means = means.setdefault(name, np.full((2, *shape), np.nan))
                run_means[:, *grid_point] = row["ttft_mean_ms"], row["tpot_mean_ms"]
    return {
        name: Response(*metric_means, *loads[name], gaps_ms[deployment_of[name]])
        for name, metric_means in means.items()
    }


def means_of(runs: Response, constants: Constants) -> np.ndarray:
    """Return mean TTFT and TPOT at some constants, ms, shape [runs, 2]: trilinear interpolation on the grid.

    ``runs``: of ``Response.together``. Time per running request is taken at the mean batch, in every step; time per
    prompt token at the mean prompt.
    """
    values = np.stack([runs.ttft_ms, runs.tpot_ms], axis=1)
    running = runs.running / (1.0 + runs.running / REQUESTS_HALF)
    step_ms = constants.gap * runs.gaps_ms + constants.per_request_us * running / 1000.0
    request_ms = constants.request_ms + constants.per_prompt_token_us * runs.prompt_tokens / 1000.0
    launch_us = np.full_like(running, constants.eager_launch_us)
    intervals = [
        _grid_interval(grid, value / constants.pace)
        for grid, value in zip(GRID, (step_ms, request_ms, launch_us), strict=True)
    ]
    run, means = np.arange(values.shape[0]), 0.0
    for corner in itertools.product((0, 1), repeat=3):
        weight = np.prod([u if up else 1 - u for up, (_, u) in zip(corner, intervals, strict=True)], axis=0)
        indices = (i + up for up, (i, _) in zip(corner, intervals, strict=True))
        means = means + values[run, :, *indices] * weight[:, None]
    return constants.pace * means


def _grid_interval(grid: Sequence[float], value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of the grid interval that contains each value, and the position in it, 0 to 1 (or beyond)."""
    points = np.array(grid)
    index = np.clip(np.searchsorted(points, value, side="right") - 1, 0, points.size - 2)
    return index, (value - points[index]) / (points[index + 1] - points[index])
