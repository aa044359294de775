"""Host constants fitted to measured runs: time of a step, between kernels, and of a request; never on scored runs.

Every fitting run is simulated on a grid of exposed host time of a step and of host time of a request; between its
points TTFT and TPOT are interpolated, so that any choice of constants costs no further simulation.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernelsight.replay.scores import GROUP
from kernelsight.replay.serve import partitions, plan_runs

if TYPE_CHECKING:
    from kernelsight.bulk import Partition
    from kernelsight.session import Session

# where fitting runs are simulated
STEP_GRID_MS = (0.0, 0.4, 1.0, 2.0, 4.0, 8.0)
REQUEST_GRID_MS = (0.0, 15.0, 50.0, 120.0)
# what the fit chooses from
GAPS_US = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5)
STEPS_MS = (0.0, 0.15, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 4.5, 6.0)
REQUESTS_MS = (0.0, 3.0, 6.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0)
# an error beyond this factor says nothing about host time
LARGEST_LOG_ERROR = 0.7
FEWEST_RUNS = 4
LEVELS = ("shipped", "none", "engine", "group", "transfer")


class Response(NamedTuple):
    """What a run's means do as host time grows: shape [steps, requests] in ms, and the kernels of a step."""

    ttft_ms: np.ndarray
    tpot_ms: np.ndarray
    launches: float


class Constants(NamedTuple):
    """Host time of an engine."""

    launch_gap_us: float
    step_ms: float
    request_ms: float

    def host(self) -> dict[str, float]:
        """Return the columns of ``host_settings`` that they stand for."""
        return {
            "launch_gap_us": self.launch_gap_us,
            "step_exposed_us": 1000.0 * self.step_ms,
            "request_us": 1000.0 * self.request_ms,
        }


NONE = Constants(0.0, 0.0, 0.0)


def responses(session: Session, flags: Sequence[Mapping[str, Any]]) -> list[Response | None]:
    """Simulate each run's flags on the grid; None for a run that cannot be simulated. In the order of the flags."""
    deployments, scenarios, _ = plan_runs(session, flags)
    found: dict[str, Response] = {}
    for part in partitions(deployments, scenarios):
        with session.fork() as fork:
            fork.progress = None
            found |= _responses(fork, part)
    return [found.get(scenario["scenario_id"]) if scenario else None for scenario in scenarios]


def _responses(session: Session, part: Partition) -> dict[str, Response]:
    from kernelsight.bulk import draw_alike, draw_loads, give_scenarios
    from kernelsight.bulk_costs import put_step_costs
    from kernelsight.serving.results import event_rows
    from kernelsight.serving.simulate import by_key, read_inputs, serve_replicas

    able = give_scenarios(session, part)
    if not able.num_rows:
        return {}
    session.put("requests", draw_alike(able))
    put_step_costs(session, able, draw_loads(able))
    inputs = {name: session.table(name) for name in session.graph.node("request_events").inputs} | {"scenarios": able}
    world = read_inputs(*inputs.values())
    shape = (len(STEP_GRID_MS), len(REQUEST_GRID_MS))
    means: dict[str, np.ndarray] = {}
    for (row, step), (column, request) in itertools.product(enumerate(STEP_GRID_MS), enumerate(REQUEST_GRID_MS)):
        everywhere = dict.fromkeys(able["deployment_id"].to_pylist(), Constants(0.0, step, request))
        host = with_host(inputs["host_settings"], everywhere.get)
        replicas = serve_replicas(world._replace(hosts=by_key(host, "deployment_id")), count_uses=False)
        for name, ttft_ms, tpot_ms in client_means(event_rows(replicas, inputs["requests"])):
            held = means.setdefault(name, np.full((2, *shape), np.nan))
            held[:, row, column] = ttft_ms, tpot_ms
    owners = dict(zip(able["scenario_id"].to_pylist(), able["deployment_id"].to_pylist(), strict=True))
    return {name: Response(*both, float(world.costs[owners[name]].launches)) for name, both in means.items()}


def client_means(request_events: Any) -> list[tuple[str, float, float]]:
    """Return (scenario_id, mean TTFT, mean TPOT) in ms of the scenarios that served a request of two tokens or more."""
    import polars as pl

    gaps = pl.col("output_tokens") - 1
    means = (
        pl.from_arrow(request_events)
        .lazy()
        .filter(pl.col("status") == "finished")
        .group_by("scenario_id")
        .agg(
            ((pl.col("first_token_ns") - pl.col("sent_ns")) / 1e6).mean().alias("ttft_ms"),
            ((pl.col("finish_ns") - pl.col("first_token_ns")) / 1e6 / gaps).filter(gaps > 0).mean().alias("tpot_ms"),
        )
        .drop_nulls()
    )
    return means.collect().rows()


def with_host(host_settings: Any, of: Any) -> Any:
    """Return ``host_settings`` with the constants that ``of`` gives for a deployment_id; None leaves it as it is."""
    import pyarrow as pa

    rows = []
    for row in host_settings.to_pylist():
        found = of(row["deployment_id"])
        rows.append(row if found is None else {**row, **found.host()})
    return pa.Table.from_pylist(rows, schema=host_settings.schema)


def means_at(response: Response, at: Constants) -> tuple[float, float]:
    """Return TTFT and TPOT in ms at constants, bilinear between the points of the grid, flat beyond them."""
    means = _means(np.stack([response.ttft_ms, response.tpot_ms])[None], np.array([response.launches]), at)
    return float(means[0, 0]), float(means[0, 1])


def _means(values: np.ndarray, launches: np.ndarray, at: Constants) -> np.ndarray:
    """Return (runs, 2) means in ms of ``values`` of shape (runs, 2, steps, requests)."""
    i, u = _place(STEP_GRID_MS, at.step_ms + at.launch_gap_us * launches / 1000.0)
    j, v = _place(REQUEST_GRID_MS, np.array(at.request_ms))
    run = np.arange(launches.size)
    low, high = (values[run, :, row, j] * (1 - v) + values[run, :, row, j + 1] * v for row in (i, i + 1))
    return low * (1 - u)[:, None] + high * u[:, None]


def _place(grid: Sequence[float], value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the interval of the grid that a value lies in, and where in it, between 0 and 1."""
    points = np.array(grid)
    i = np.clip(np.searchsorted(points, value, side="right") - 1, 0, points.size - 2)
    return i, np.clip((value - points[i]) / (points[i + 1] - points[i]), 0.0, 1.0)


def loss(pairs: Sequence[tuple[Mapping[str, Any], Response]], at: Constants) -> float:
    """Return the mean absolute log error of TTFT and TPOT together, each cut off at ``LARGEST_LOG_ERROR``."""
    return _loss(*_stacked(pairs), at) if pairs else 0.0


def _stacked(pairs: Sequence[tuple[Mapping[str, Any], Response]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return responses (runs, 2, steps, requests), kernels of a step, and the measured means (runs, 2)."""
    values = np.stack([np.stack([response.ttft_ms, response.tpot_ms]) for _, response in pairs])
    measured = np.array([(run["ttft_ms"], run["tpot_ms"]) for run, _ in pairs])
    return values, np.array([response.launches for _, response in pairs]), measured


def _loss(values: np.ndarray, launches: np.ndarray, measured: np.ndarray, at: Constants) -> float:
    errors = np.abs(np.log(_means(values, launches, at) / measured))
    return float(np.minimum(errors, LARGEST_LOG_ERROR).sum(axis=1).mean())


def fit(pairs: Sequence[tuple[Mapping[str, Any], Response]], gap_us: float | None = None) -> Constants:
    """Return the constants of least loss: at each gap (``gap_us`` holds it), step and request in turn until none moves.

    No run at all: no host time. Where all runs have about as many kernels a step, gap and step are hardly told apart.
    """
    if not pairs:
        return NONE
    stacked = _stacked(pairs)
    found = [_fit_at(stacked, gap) for gap in (GAPS_US if gap_us is None else (gap_us,))]
    return min(found, key=lambda at: _loss(*stacked, at))


def _fit_at(stacked: tuple[np.ndarray, np.ndarray, np.ndarray], gap_us: float) -> Constants:
    best = Constants(gap_us, 0.3, 10.0)
    for _ in range(6):
        before = best
        for name, values in (("step_ms", STEPS_MS), ("request_ms", REQUESTS_MS)):
            best = min((best._replace(**{name: value}) for value in values), key=lambda at: _loss(*stacked, at))
        if best == before:
            break
    return best


def constants_of(
    level: str,
    runs: Sequence[Mapping[str, Any]],
    fitting: Sequence[Mapping[str, Any]],
    found: Sequence[Response | None],
) -> dict[tuple, Constants]:
    """Return the constants of each group of ``runs``, fitted on ``fitting`` runs, whose responses are ``found``.

    engine: one fit an engine. group: a group's own step and request, where it has four fitting runs or more, else its
    engine's. transfer: its engine's, fitted without the group. none: no exposed host time at all.
    """
    groups = dict.fromkeys(group_of(run) for run in runs)
    if level == "none":
        return dict.fromkeys(groups, NONE)
    pairs = [(run, response) for run, response in zip(fitting, found, strict=True) if response is not None]
    engines = {
        engine: fit([pair for pair in pairs if pair[0]["engine"] == engine]) for engine in {g[2] for g in groups}
    }
    chosen = {}
    for group in groups:
        engine = group[2]
        own = [pair for pair in pairs if group_of(pair[0]) == group]
        chosen[group] = engines[engine]
        if level == "group" and len(own) >= FEWEST_RUNS:
            chosen[group] = fit(own, engines[engine].launch_gap_us)
        elif level == "transfer" and own:
            chosen[group] = fit([pair for pair in pairs if pair[0]["engine"] == engine and group_of(pair[0]) != group])
    return chosen


def group_of(run: Mapping[str, Any]) -> tuple:
    """Return the names of a run's group: model, GPU, engine, precision."""
    return tuple(run[name] for name in GROUP)
