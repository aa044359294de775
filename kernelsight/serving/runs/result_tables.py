"""Tables of the simulation from the arrays of the scheduler's loop; times in whole ns, which SQL adds up exactly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.kernels.string_columns import strings_of
from kernelsight.serving.costs.knots import PARTS
from kernelsight.serving.engine import packed_costs, records
from kernelsight.serving.engine.served import RequestParts, Served, ServedScenario, Totals, Uses
from kernelsight.serving.engine.steps import COLUMNS, ENERGY, STAGE_WAIT
from kernelsight.serving.engine.tally import Tally
from kernelsight.serving.engine.waits import PARTS as PARTS_OF_REQUESTS
from kernelsight.serving.engine.windows import BUSY, ENERGY_IN, RUNNING_US, STEPS, SUMS, UNITS_US

NANOSECONDS = 1e3  # per microsecond
PHASES = ("prefill", "decode", "mixed")
STATUS = ("finished", "rejected_too_long", "rejected_no_memory", "rejected_earlier_turn")


class CostTables(NamedTuple):
    """A deployment's step costs as the loop reads them, and how its tables and grids map back to step shapes."""

    packed: packed_costs.PackedCosts
    axes: dict[str, tuple[np.ndarray, np.ndarray]]  # knots of each part of a step
    shape_ids: dict[str, np.ndarray]  # ids of step_shapes on the grid of these knots
    launches: int  # kernels of a forward pass, those of adapters included
    adapter_launches: int
    window_tokens: int  # width of windowed or sparse attention; 0: none
    spread: float  # factor from the median GPU time of the layers, over all knots, to an end of its 90 % interval


class Replica(NamedTuple):
    """One engine of one scenario: the rows of ``requests`` that it serves, and what the loop returned.

    ``tally``: the statistics of its requests, where no records of single requests are kept. Of replicas behind one
    client, the first has the ITL histogram of all, and the first of each deployment the uses of its step costs.
    """

    scenario: str
    deployment: str
    number: int
    rows: np.ndarray
    served: Served
    tally: Tally | None = None


def replicas_of(scenario: str, pools: list[tuple[str, int]], rows: np.ndarray, served: ServedScenario) -> list[Replica]:
    """Return a scenario's engines, each with the requests that ended there.

    ``pools``: (deployment, number of engines) of each pool, prefill before decode; the first engine of a pool has the
    uses of the pool's step costs.
    """
    replicas = []
    owners = [(pool, name, engine == 0) for pool, (name, size) in enumerate(pools) for engine in range(size)]
    for number, (totals, steps) in enumerate(zip(served.totals, served.steps, strict=True)):
        requests = np.flatnonzero(served.out.replica == number)
        out = served.out.of(requests)
        pool, deployment, is_first = owners[number]
        uses = served.uses[pool] if served.uses and is_first else None
        drafted = served.draft_uses[pool] if served.draft_uses and is_first else None
        histogram = served.histogram if number == 0 else np.zeros_like(served.histogram)
        windows = served.windows[number] if served.windows else None
        parts = served.parts and RequestParts(*(values[..., requests] for values in served.parts))
        tiers = served.tiers and served.tiers[number]
        served_by_engine = Served(out, uses, histogram, totals, steps, windows, drafted, parts, tiers)
        replicas.append(Replica(scenario, deployment, number, rows[requests], served_by_engine))
    return replicas


def event_rows(replicas: list[Replica], requests: pa.Table, spans: dict[str, tuple[int, int]]) -> pa.Table:
    """Return ``request_events``, sorted by scenario, then as the requests of the scenario are.

    ``requests``: ``load_requests``; ``spans``: (first row, row after the last) of each scenario's requests in it.
    """
    scenarios = list(dict.fromkeys(replica.scenario for replica in replicas))
    ends = np.cumsum([0, *(spans[name][1] - spans[name][0] for name in scenarios)])
    # from a row of ``requests`` to its row of the result: an offset for each scenario
    shift = {name: end - spans[name][0] for name, end in zip(scenarios, ends, strict=False)}
    rows = _joined((replica.rows for replica in replicas), np.int64)
    event_row = _joined((replica.rows + shift[replica.scenario] for replica in replicas), np.int64)
    order = np.empty(rows.size, np.int64)
    order[event_row] = np.arange(rows.size)
    request_rows = rows[order]
    served = requests
    if not np.array_equal(
        request_rows, np.arange(requests.num_rows)
    ):  # copying a table takes longer than simulating it
        served = requests.take(pa.array(request_rows))
    engine = _repeated(replicas, (replica.number for replica in replicas), lambda replica: replica.rows.size)[order]

    def outcome(name: str) -> np.ndarray:
        return _joined((getattr(replica.served.out, name) for replica in replicas), np.float64)[order]

    def whole_outcome(name: str) -> np.ndarray:
        return outcome(name).astype(np.int64)

    def time_ns(name: str) -> pa.Array:
        times = outcome(name)
        return pa.array(np.rint(times * NANOSECONDS).astype(np.int64), mask=times < 0.0)

    status, prefill = whole_outcome("status"), whole_outcome("prefill_replica")
    return pa.table(
        {
            "scenario_id": _repeated_names(scenarios, np.diff(ends).tolist()),
            "request_id": served["request_id"],
            "external_id": served["external_id"],
            "warmup": pc.fill_null(served["warmup"], False),
            "replica": engine,
            "prefill_replica": pa.array(prefill, mask=prefill < 0),
            "status": strings_of(STATUS, status),
            "prompt_tokens": served["prompt_tokens"],
            "output_tokens": np.where(status == records.FINISHED, served["output_tokens"].to_numpy(), 0),
            "sent_ns": time_ns("sent_us"),
            "scheduled_ns": time_ns("scheduled_us"),
            "first_token_ns": time_ns("first_token_us"),
            "kv_received_ns": time_ns("received_us"),
            "finish_ns": time_ns("finish_us"),
            "cached_tokens": whole_outcome("cached_tokens"),
            "tier_tokens": whole_outcome("tier_tokens"),
            "kv_load_ns": np.rint(outcome("load_us") * NANOSECONDS).astype(np.int64),
            "preemptions": whole_outcome("preemptions"),
            "requeued_ns": np.rint(outcome("requeued_us") * NANOSECONDS).astype(np.int64),
            "recomputed_ns": np.rint(outcome("recomputed_us") * NANOSECONDS).astype(np.int64),
        }
    )


def part_rows(replicas: list[Replica], requests: pa.Table) -> pa.Table:
    """Return ``request_parts`` of the finished requests, engine after engine: two rows each, prefill and decode."""
    numbers = requests["request_id"].to_numpy()
    served = [
        (replica.rows, replica.served.parts, replica.served.out.status == records.FINISHED) for replica in replicas
    ]
    sizes = [2 * int(done.sum()) for _, _, done in served]

    def phases(parts: Iterable[np.ndarray]) -> np.ndarray:
        # one column at a time: a million requests are not in memory twice
        return _joined((values[:, done].ravel() for values, (_, _, done) in zip(parts, served, strict=True)), np.int64)

    table = {
        "scenario_id": _repeated_names((replica.scenario for replica in replicas), sizes),
        "request_id": _joined((np.tile(numbers[rows[done]], 2) for rows, _, done in served), np.int64),
        "phase": strings_of(PHASES[:2], _joined((np.repeat([0, 1], size // 2) for size in sizes), np.int64)),
    }
    for number, name in enumerate(PARTS_OF_REQUESTS):
        table[f"{name}_ns"] = phases(parts.nanoseconds[:, number] for _, parts, _ in served)
    for number, name in enumerate(("steps", "prompt_steps")):
        table[name] = phases(parts.steps[:, number] for _, parts, _ in served)
    return pa.table(table)


def use_rows(replicas: list[Replica], costs: dict[str, CostTables], deployments: dict[str, dict[str, Any]]) -> pa.Table:
    """Return ``step_cost_uses``: how often each knot was used, by scenario, deployment and phase.

    Counts over dense tables become weights on their knots; replicas of a scenario are added up. ``deployments``: rows
    of ``deployment_settings``, which name the deployments of draft models.
    """
    groups, phases, ids, weights = [], [], [], []
    used: dict[tuple[str, str], list[Uses]] = {}
    for replica in replicas:
        draft = deployments[replica.deployment]["draft_deployment_id"]
        for deployment, uses in ((replica.deployment, replica.served.uses), (draft, replica.served.draft_uses)):
            if uses is not None:
                used.setdefault((replica.scenario, deployment), []).append(uses)
    for (scenario, deployment), uses_of_deployment in used.items():
        cost = costs[deployment]
        levels = np.moveaxis(sum(uses.tokens for uses in uses_of_deployment), 2, 0)
        uses_of_part = {
            "tokens": np.stack([_to_knots(cost.axes["tokens"][0], at_level) for at_level in levels], axis=2),
            "logits": _to_knots(cost.axes["logits"][0], sum(uses.sampled for uses in uses_of_deployment)),
            "decode_attention": sum(uses.decode for uses in uses_of_deployment),
            "decode_window": sum(uses.window for uses in uses_of_deployment),
            "prefill_attention": sum(uses.prefill for uses in uses_of_deployment),
            "mixed_decode": sum(uses.mixed for uses in uses_of_deployment),
            "experts": _to_knots(cost.axes["experts"][0], sum(uses.experts for uses in uses_of_deployment)),
        }
        shapes = np.concatenate([cost.shape_ids[name].ravel() for name in PARTS])
        weight = np.concatenate([uses_of_part[name].reshape(3, -1) for name in PARTS], axis=1)
        phase, column = np.nonzero(weight)
        groups.append((scenario, deployment))
        phases.append(phase)
        ids.append(shapes[column])
        weights.append(weight[phase, column])
    counts = [each.size for each in ids]
    return pa.table(
        {
            "scenario_id": _repeated_names((scenario for scenario, _ in groups), counts),
            "phase": strings_of(PHASES, _joined(phases, np.int64)),
            "deployment_id": _repeated_names((deployment for _, deployment in groups), counts),
            "step_shape_id": _joined(ids, np.int64),
            "weight": _joined(weights, np.float64),
        }
    )


def _to_knots(knots: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return weights on knots, shape [phases, knots], from counts of 0, 1, 2, ...: interpolation, transposed."""
    values = np.flatnonzero(counts.any(axis=0))
    values = values[values > 0]
    below = np.clip(np.searchsorted(knots, values, side="right") - 1, 0, max(knots.size - 2, 0))
    above = np.minimum(below + 1, knots.size - 1)
    gap = np.where(above > below, knots[above] - knots[below], 1.0)
    share = np.where(above > below, (values - knots[below]) / gap, 0.0)
    weights = np.zeros((counts.shape[0], knots.size))
    for phase in range(counts.shape[0]):
        np.add.at(weights[phase], below, counts[phase, values] * (1.0 - share))
        np.add.at(weights[phase], above, counts[phase, values] * share)
    return weights


def histogram_rows(replicas: list[Replica]) -> pa.Table:
    """Return ``itl_histogram``: inter-token latencies of each scenario by bin."""
    names, bins, gaps = [], [], []
    for group in _grouped(replicas):
        histogram = sum((replica.served.histogram for replica in group[1:]), group[0].served.histogram)
        names.append(group[0].scenario)
        bins.append(np.flatnonzero(histogram != 0))
        gaps.append(histogram[bins[-1]])
    return histogram_table(names, [each.size for each in bins], bins, gaps)


def histogram_table(names: list[str], filled: list[int], bins: list[np.ndarray], gaps: list[np.ndarray]) -> pa.Table:
    """Return ``itl_histogram``; ``filled``: number of bins of each scenario in ``bins`` and ``gaps``, in this order."""
    return pa.table(
        {"scenario_id": _repeated_names(names, filled), "bin": _joined(bins, np.int64), "gaps": _joined(gaps, np.int64)}
    )


def total_rows(replicas: list[Replica]) -> pa.Table:
    """Return ``replica_totals``: steps, times, preemptions, tokens and energy of each engine."""
    totals = (
        Totals(*zip(*(replica.served.totals for replica in replicas), strict=True))
        if replicas
        else Totals(*[()] * len(Totals._fields))
    )
    return total_table(
        [replica.scenario for replica in replicas],
        [replica.number for replica in replicas],
        [replica.deployment for replica in replicas],
        totals,
    )


def total_table(scenarios: list[str], numbers: list[int], deployments: list[str], totals: Totals) -> pa.Table:
    """Return ``replica_totals``; each field of ``totals`` is a sequence with a value for each replica."""

    def whole(values: Iterable[int]) -> pa.Array:
        return pa.array(values, pa.int64())

    def nanoseconds(values: Iterable[float]) -> np.ndarray:
        return np.rint(np.array(values, dtype=float) * NANOSECONDS).astype(np.int64)

    return pa.table(
        {
            "scenario_id": pa.array(scenarios, pa.string()),
            "replica": whole(numbers),
            "deployment_id": pa.array(deployments, pa.string()),
            "steps": whole(totals.steps),
            "gpu_ns": nanoseconds(totals.gpu_us),
            "measured_ns": nanoseconds(totals.measured_us),
            "host_ns": nanoseconds(totals.host_us),
            "idle_ns": nanoseconds(totals.idle_us),
            "first_ns": nanoseconds(totals.first_us),
            "last_ns": nanoseconds(totals.last_us),
            "preemptions": whole(totals.preemptions),
            "peak_kv_units": whole(totals.peak_units),
            "itl_sum_ns": nanoseconds(totals.gap_sum_us),
            "scheduled_prompt_tokens": whole(totals.prompt_tokens),
            "draft_tokens": whole(totals.draft_tokens),
            "accepted_draft_tokens": whole(totals.accepted_tokens),
            "dynamic_energy_j": _nullable_joules(np.array(totals.energy_j, dtype=float)),
        }
    )


def step_rows(replicas: list[Replica]) -> pa.Table:
    """Return ``steps``: each step of each engine."""
    rows = np.concatenate([replica.served.steps for replica in replicas]) if replicas else np.zeros((0, COLUMNS))
    numbers = _joined((np.arange(len(replica.served.steps)) for replica in replicas), np.int64)
    counts = ("prefill_tokens", "decode_tokens", "running", "waiting", "kv_blocks_used")
    count_columns = {name: rows[:, column].astype(np.int64) for column, name in enumerate(counts, start=2)}
    sizes = [len(replica.served.steps) for replica in replicas]
    return pa.table(
        {
            "scenario_id": _repeated_names((replica.scenario for replica in replicas), sizes),
            "replica": _repeated(
                replicas, (replica.number for replica in replicas), lambda replica: len(replica.served.steps)
            ),
            "step": numbers,
            "start_ns": np.rint(rows[:, 0] * NANOSECONDS).astype(np.int64),
            "end_ns": np.rint(rows[:, 1] * NANOSECONDS).astype(np.int64),
            **count_columns,
            "host_ns": np.rint(rows[:, 7] * NANOSECONDS).astype(np.int64),
            **{
                name: rows[:, column].astype(np.int64)
                for column, name in enumerate(("cached_tokens", "looked_up_tokens", "preemptions"), start=8)
            },
            "stage_wait_ns": np.rint(rows[:, STAGE_WAIT] * NANOSECONDS).astype(np.int64),
            "dynamic_energy_j": _nullable_joules(rows[:, ENERGY]),
        }
    )


def window_rows(replicas: list[Replica]) -> pa.Table:
    """Return ``serving_windows``: sums of each engine over windows of time, which follow each other without gaps."""
    replicas = [replica for replica in replicas if replica.served.windows is not None]
    windows = [replica.served.windows for replica in replicas]
    sizes = [each.peak_units.size for each in windows]
    sums = np.concatenate([each.sums for each in windows]) if windows else np.zeros((0, SUMS))
    edges = [np.rint(each.edges_us * NANOSECONDS).astype(np.int64) for each in windows]
    names = ("steps", "prefill_tokens", "decode_tokens", "cached_tokens", "looked_up_tokens", "preemptions")
    return pa.table(
        {
            "scenario_id": _repeated_names((replica.scenario for replica in replicas), sizes),
            "replica": _repeated(
                replicas,
                (replica.number for replica in replicas),
                lambda replica: replica.served.windows.peak_units.size,
            ),
            "deployment_id": _repeated_names((replica.deployment for replica in replicas), sizes),
            "window": _joined((np.arange(size) for size in sizes), np.int64),
            "start_ns": _joined((each[:-1] for each in edges), np.int64),
            "end_ns": _joined((each[1:] for each in edges), np.int64),
            "busy_us": sums[:, BUSY],
            "kv_block_us": sums[:, UNITS_US],
            "running_us": sums[:, RUNNING_US],
            "dynamic_energy_j": _nullable_joules(sums[:, ENERGY_IN]),
            "in_flight_us": _joined((each.in_flight_us for each in windows), np.float64),
            "kv_blocks_used_max": _joined((each.peak_units for each in windows), np.int64),
            "running_max": _joined((each.peak_running for each in windows), np.int64),
            **{name: sums[:, column].astype(np.int64) for column, name in enumerate(names, start=STEPS)},
        }
    )


def _nullable_joules(joules: np.ndarray) -> pa.Array:
    """Return energies; null (nan in ``joules``) where kernel latencies were given without energies."""
    return pa.array(joules, mask=np.isnan(joules))


def _grouped(replicas: list[Replica]) -> Iterable[list[Replica]]:
    """Return the replicas of each scenario, in order."""
    groups: dict[str, list[Replica]] = {}
    for replica in replicas:
        groups.setdefault(replica.scenario, []).append(replica)
    return groups.values()


def _joined(arrays: Iterable[np.ndarray], dtype: type) -> np.ndarray:
    arrays = list(arrays)
    if len(arrays) == 1:
        return arrays[0].astype(dtype, copy=False)  # no copy: a million rows may be here
    return np.concatenate(arrays).astype(dtype) if arrays else np.zeros(0, dtype)


def _repeated(replicas: list[Replica], values: Iterable[int], size: Any) -> np.ndarray:
    """Return each replica's value once for each of its rows; ``size``: function from a replica to its rows."""
    return np.repeat(np.array(list(values), dtype=np.int64), [size(replica) for replica in replicas])


def _repeated_names(names: Iterable[str], counts: list[int]) -> pa.Array:
    """Return each name repeated by its count, in one call: pyarrow takes 0.1 ms a call to look for pandas."""
    return strings_of(tuple(names), np.repeat(np.arange(len(counts)), counts))
