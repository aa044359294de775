"""Replays of a log on deployments: simulation inputs are read once per deployment and reused with any corrections.

A replay with other factors has the same step shapes, memory and settings; only step costs and host time differ. They
are changed here as ``step_costs`` and ``host_settings`` change them for rows of ``corrections``, without running the
graph: costs are linear in every factor, so the cost of each kernel part is laid out for the scheduler loop once.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import KERNELS, LOAD, LONG, NO_LOAD, REPLAYED_PARTS, Replayed, Variant
from kernelsight.dataflow.session import Session
from kernelsight.kernels.step_costs import FACTORS, TIMED, corrected
from kernelsight.scenario.plan import give_plan, plan_rows
from kernelsight.serving.engine.waits import PARTS
from kernelsight.serving.runs.pools import cost_tables
from kernelsight.serving.runs.result_tables import NANOSECONDS, CostTables, Replica
from kernelsight.serving.runs.simulate import serve_replicas
from kernelsight.serving.runs.simulation_inputs import (
    SimulationInputs,
    inputs_of_session,
    load_columns,
    split_by_deployment,
)

# mallopt's parameter: allocations of this size or more are returned once freed; its initial value, in bytes
M_MMAP_THRESHOLD = -3
LARGE = 128 << 10


def return_freed_memory() -> None:
    """Return freed memory to the system now, and from now on that of long arrays as soon as they are freed.

    By default glibc raises the threshold up to 32 MB with each larger array that is freed. A call takes milliseconds,
    so call it between large tables only. It does nothing where the C library has no such function.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and hasattr(library, "malloc_trim"):
        library.mallopt(M_MMAP_THRESHOLD, LARGE)
        library.malloc_trim(0)


# up to this many requests in all replays one thread serves: starting threads takes longer
SHORT = 40_000
# column of step_costs, microseconds, that holds each of TIMED, picoseconds
COLUMN = {name: f"{'gpu' if name == 'picoseconds' else name}_us" for name in TIMED}


class _Deployment(NamedTuple):
    """Simulation inputs of one deployment.

    ``scenario``: its planned row; ``costs``, ``shapes``: its step_costs and step_shapes; ``times``: picoseconds of each
    step shape, by TIMED; ``part``: number of each step shape's kernel part, by FACTORS; ``added``: by kernel part that
    had a factor so far, indices into the loop's costs and microseconds there.
    """

    scenario: Mapping[str, Any]
    costs: pa.Table
    shapes: pa.Table
    times: Mapping[str, np.ndarray]
    part: Mapping[str, np.ndarray]
    added: dict[str, tuple[np.ndarray, np.ndarray]]


class LogReplayer:
    """Replays the requests of one log on deployments; each deployment is planned and its step costs read only once."""

    def __init__(self, session: Session, load: pa.Table) -> None:
        self._session, self._load = session, load
        self._deployments: dict[str, _Deployment | None] = {}
        self._inputs: SimulationInputs | None = None

    def serve(
        self, variants: Sequence[Variant], rows: np.ndarray | None = None, *, with_parts: bool = True
    ) -> list[Replayed]:
        """Return a replay of requests on every variant; one that cannot be planned or run serves none of them.

        ``rows``: increasing indices of the log's requests, None: all; ``with_parts``: keep the parts of times.
        """
        if self._load.num_rows >= LONG:
            return_freed_memory()
        names = [_name(variant.flags) for variant in variants]
        self._read(
            {
                name: variant.flags
                for name, variant in zip(names, variants, strict=True)
                if name not in self._deployments
            }
        )
        n = self._load.num_rows if rows is None else rows.size
        planned = [
            (f"v{number}", self._deployments[name], variant)
            for number, (name, variant) in enumerate(zip(names, variants, strict=True))
        ]
        served = [(name, deployment, variant) for name, deployment, variant in planned if deployment is not None]
        if not served or self._inputs is None or not n:
            return [_unserved(n, with_parts) for _ in variants]
        inputs = self._inputs_of_rows(rows)
        span = inputs.spans[LOAD]
        for name, deployment, variant in served:
            inputs = self._with_variant(inputs, name, deployment, variant, span)
        threads = 1 if n * len(served) <= SHORT else None
        replicas: dict[str, list[Replica]] = {name: [] for name, *_ in planned}
        for replica in serve_replicas(inputs, count_uses=False, split=with_parts, threads=threads):
            replicas[replica.scenario].append(replica)
        return [_replayed(n, replicas[name], span[0], with_parts) for name, *_ in planned]

    def _read(self, missing: Mapping[str, Mapping[str, Any]]) -> None:
        """Plan deployments, flags by name, and read their simulation inputs; None for one that cannot run."""
        if not missing:
            return
        with self._session.fork() as fork:
            plan = plan_rows(fork, [{**NO_LOAD, **flags} for flags in missing.values()], on_fault="collect", origin="")
            give_plan(fork, plan.deployments_of(plan.planned), plan.planned)
            names = [row["scenario_id"] for row in plan.planned]
            fork.give("scenario_loads", [{"scenario_id": name, "load_id": LOAD} for name in names])
            fork.give("load_requests", self._load, trusted=True)
            inputs = inputs_of_session(fork.table)
            costs, shapes = (split_by_deployment(fork.table(name)) for name in ("step_costs", "step_shapes"))
            knot_parts = _parts_of_knots(fork, costs)
        runnable = {row["scenario_id"]: row for row in inputs.scenarios}
        for name, scenario in zip(missing, plan.scenarios, strict=True):
            row = runnable.get(scenario["scenario_id"]) if scenario else None
            deployment_id = row and row["deployment_id"]
            if deployment_id is None:
                self._deployments[name] = None
                continue
            times = {timed: np.rint(costs[deployment_id][column].to_numpy() * 1e6) for timed, column in COLUMN.items()}
            self._deployments[name] = _Deployment(
                row, costs[deployment_id], shapes[deployment_id], times, knot_parts[deployment_id], {}
            )
        self._inputs = inputs if self._inputs is None else _merged(self._inputs, inputs)

    def _inputs_of_rows(self, rows: np.ndarray | None) -> SimulationInputs:
        """Return the simulation inputs with some of the log's requests, by index; consecutive ones are a slice."""
        shared_tables = ("deployments", "plans", "hosts", "links", "tiers", "costs")
        inputs = self._inputs._replace(
            scenarios=[], **{name: dict(getattr(self._inputs, name)) for name in shared_tables}
        )
        if rows is None:
            return inputs._replace(spans={LOAD: (0, self._load.num_rows)})
        if np.array_equal(rows, np.arange(rows[0], rows[0] + rows.size)):
            return inputs._replace(spans={LOAD: (int(rows[0]), int(rows[-1]) + 1)})
        load = self._load.take(pa.array(rows))
        return inputs._replace(requests=load, columns=load_columns(load), spans={LOAD: (0, rows.size)})

    def _with_variant(
        self, inputs: SimulationInputs, name: str, deployment: _Deployment, variant: Variant, span: tuple[int, int]
    ) -> SimulationInputs:
        """Return the simulation inputs with one more scenario: a variant with step costs and host time of its own."""
        planned_id, scenario = deployment.scenario["deployment_id"], deployment.scenario["scenario_id"]
        row = {**deployment.scenario, "scenario_id": name, "deployment_id": name, "max_concurrency": None}
        for settings in (inputs.deployments, inputs.plans):
            settings[name] = settings[planned_id]
        inputs.hosts[name] = _corrected_host(inputs.hosts[planned_id], variant)
        inputs.costs[name] = self._costs_of(planned_id, deployment, variant)
        if planned_id in inputs.tiers:
            inputs.tiers[name] = inputs.tiers[planned_id]
        if scenario in inputs.links:
            inputs.links[name] = inputs.links[scenario]
        inputs.spans[name] = span
        inputs.scenarios.append(row)
        return inputs

    def _costs_of(self, planned_id: str, deployment: _Deployment, variant: Variant) -> CostTables:
        """Return the step costs of a deployment times the factors of a variant, laid out for the scheduler loop."""
        laid_out = self._inputs.costs[planned_id]
        factors = {kernel: factor for kernel, factor in variant.factors.items() if factor != 1.0}
        if not factors:
            return laid_out
        values = laid_out.packed.values.copy()
        for kernel, factor in factors.items():
            if kernel not in deployment.added:
                deployment.added[kernel] = self._added(planned_id, deployment, kernel)
            indices, microseconds = deployment.added[kernel]
            values[indices] += (factor - 1.0) * microseconds
        return laid_out._replace(packed=laid_out.packed._replace(values=values))

    def _added(self, planned_id: str, deployment: _Deployment, kernel: str) -> tuple[np.ndarray, np.ndarray]:
        """Return indices of the loop's costs that a kernel part contributes to, and its microseconds there.

        They are the difference between costs with twice its time and costs as planned.
        """
        doubled = np.array([np.nan, *(2.0 if name == kernel else np.nan for name in KERNELS)])
        longer = corrected(
            deployment.times, *(pa.array(doubled[deployment.part[name]], from_pandas=True) for name in FACTORS)
        )
        costs = deployment.costs
        for name, column in COLUMN.items():
            costs = costs.set_column(costs.column_names.index(column), column, pa.array(longer[name] / 1e6))
        laid_out = cost_tables(costs, deployment.shapes, self._inputs.deployments[planned_id])
        added = laid_out.packed.values - self._inputs.costs[planned_id].packed.values
        indices = np.flatnonzero(added)
        return indices, added[indices]


def _parts_of_knots(session: Session, costs: Mapping[str, pa.Table]) -> dict[str, dict[str, np.ndarray]]:
    """Return by deployment and FACTORS the number in KERNELS (from 1) of each step shape, in the order of its costs.

    Read from ``knot_corrections``, which is run with each kernel part's number as its factor.
    """
    numbers = [
        {"deployment_id": name, "part": kernel, "factor": float(number), "exposed_us": 0.0}
        for name in costs
        for number, kernel in enumerate(KERNELS, 1)
    ]
    session.give("corrections", numbers)
    numbers_of_knots = {}
    for name, table in split_by_deployment(session.table("knot_corrections")).items():
        if name in costs:
            row_of_shape = np.zeros(max(_largest_id(table), _largest_id(costs[name])) + 1, np.int64)
            row_of_shape[table["step_shape_id"].to_numpy()] = np.arange(table.num_rows)
            rows = row_of_shape[costs[name]["step_shape_id"].to_numpy()]
            numbers_of_knots[name] = {factor: table[factor].to_numpy().astype(np.int64)[rows] for factor in FACTORS}
    return numbers_of_knots


def _largest_id(table: pa.Table) -> int:
    """Return the largest step_shape_id, 0 without rows."""
    return int(table["step_shape_id"].to_numpy().max(initial=0))


def _corrected_host(host: Mapping[str, Any], variant: Variant) -> dict[str, Any]:
    """Return the host times of a deployment, us, with a variant's corrections added as ``host_settings`` adds them."""
    step, request = host["step_exposed_us"] + variant.step_us, host["request_us"] + variant.request_us
    return {**host, "step_exposed_us": step, "request_us": max(request, 0.0)}


def _merged(earlier: SimulationInputs, later: SimulationInputs) -> SimulationInputs:
    """Return the simulation inputs of both; the requests are the earlier one's."""
    mappings = ("deployments", "plans", "hosts", "links", "tiers", "layers", "costs")
    return earlier._replace(**{name: getattr(earlier, name) | getattr(later, name) for name in mappings})


def _name(flags: Mapping[str, Any]) -> str:
    """Return the cache key of a deployment: its flags in sorted order."""
    return repr(sorted(flags.items(), key=lambda item: item[0]))


def _replayed(n: int, replicas: Sequence[Replica], start: int, with_parts: bool) -> Replayed:
    """Return the replay of ``n`` requests from the replicas' results; ``start``: row of the first request."""
    replayed = _unserved(n, with_parts)
    moments = (replayed.sent_ns, replayed.scheduled_ns, replayed.first_ns, replayed.finish_ns)
    for replica in replicas:
        rows, outputs = replica.rows - start, replica.served.out
        replayed.cached_tokens[rows] = outputs.cached_tokens
        for values, name in zip(moments, ("sent_us", "scheduled_us", "first_token_us", "finish_us"), strict=True):
            seconds = getattr(outputs, name)
            values[rows] = np.where(seconds < 0.0, -1, np.rint(seconds * NANOSECONDS).astype(np.int64))
        if with_parts and replica.served.parts is not None:
            for values, name in zip(replayed.parts_ns, REPLAYED_PARTS, strict=True):
                values[:, rows] = replica.served.parts.nanoseconds[:, PARTS.index(name)]
            replayed.steps[:, rows] = replica.served.parts.steps[:, 0]
    return replayed


def _unserved(n: int, with_parts: bool) -> Replayed:
    """Return a replay of ``n`` requests in which none was served."""
    phases, size = 2, n if with_parts else 0
    parts_ns = [np.zeros((phases, size), np.int64) for _ in (REPLAYED_PARTS if with_parts else ())]
    moments = (np.full(n, -1, np.int64) for _ in range(4))
    return Replayed(np.zeros(n, np.int64), *moments, parts_ns, np.zeros((phases, size), np.int64))


class Sample(NamedTuple):
    """Consecutive requests of a log, and their replays; ``rows``: their indices in the log."""

    replayer: LogReplayer
    log_measured: Measured
    rows: np.ndarray

    @property
    def measured(self) -> Measured:
        """The measured times of these requests."""
        return Measured(*(value[self.rows] if isinstance(value, np.ndarray) else value for value in self.log_measured))

    def serve(self, variants: Sequence[Variant], *, with_parts: bool = True) -> list[Replayed]:
        """Return a replay of these requests on every variant."""
        return self.replayer.serve(variants, self.rows, with_parts=with_parts)
