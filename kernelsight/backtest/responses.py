"""What TTFT and TPOT of measured runs do as host time grows: each run simulated on a grid of it.

Between the points of the grid TTFT and TPOT are interpolated, so that any choice of constants costs no simulation more.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernelsight.backtest.host_constants import Constants, with_host
from kernelsight.backtest.serve import Planned, partitions

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session
    from kernelsight.sweep.summarise import Partition

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
    from kernelsight.serving.results import event_rows
    from kernelsight.serving.simulate import by_key, read_inputs, serve_replicas
    from kernelsight.sweep.step_costs import put_step_costs
    from kernelsight.sweep.summarise import draw_alike, draw_loads, give_scenarios

    able = give_scenarios(session, part)
    if not able.num_rows:
        return {}
    session.put("requests", draw_alike(able))
    put_step_costs(session, able, draw_loads(able))
    inputs = {name: session.table(name) for name in session.graph.node("request_events").inputs} | {"scenarios": able}
    world = read_inputs(*inputs.values())
    shape = tuple(len(points) for points in GRID)
    means: dict[str, np.ndarray] = {}
    loads: dict[str, tuple[float, float]] = {}
    for place in itertools.product(*(range(size) for size in shape)):
        step_ms, request_ms, launch_us = (points[i] for points, i in zip(GRID, place, strict=True))
        constants = Constants(step_ms, 0.0, request_ms, eager_launch_us=launch_us)
        everywhere = dict.fromkeys(able["deployment_id"].to_pylist(), constants)
        host = with_host(inputs["host_settings"], everywhere.get)
        replicas = serve_replicas(world._replace(hosts=by_key(host, "deployment_id")), count_uses=False)
        for name, ttft_ms, tpot_ms, *load in client_means(event_rows(replicas, inputs["requests"])):
            loads.setdefault(name, tuple(load))
            held = means.setdefault(name, np.full((2, *shape), np.nan))
            held[:, *place] = ttft_ms, tpot_ms
    return {name: Response(*both, *loads[name]) for name, both in means.items()}


def client_means(request_events: Any) -> list[tuple[str, float, float, float, float]]:
    """Return (scenario_id, mean TTFT in ms, mean TPOT in ms, requests that decode at a time, mean prompt in tokens).

    Of the scenarios that served a request of two tokens or more.
    """
    import polars as pl

    gaps = pl.col("output_tokens") - 1
    decoding_ns = pl.col("finish_ns") - pl.col("first_token_ns")
    means = (
        pl.from_arrow(request_events)
        .lazy()
        .filter(pl.col("status") == "finished")
        .group_by("scenario_id")
        .agg(
            ((pl.col("first_token_ns") - pl.col("sent_ns")) / 1e6).mean().alias("ttft_ms"),
            (decoding_ns / 1e6 / gaps).filter(gaps > 0).mean().alias("tpot_ms"),
            (decoding_ns.sum() / (pl.col("finish_ns").max() - pl.col("sent_ns").min())).alias("running"),
            pl.col("prompt_tokens").mean(),
        )
        .drop_nulls()
    )
    return means.collect().rows()


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
