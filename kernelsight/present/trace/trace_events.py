"""Events of Chrome's trace format as JSON texts; times in us with three decimals, that is whole nanoseconds.

A process is a replica, and a thread holds steps with their kernels inside. Steps of pipeline stages overlap, and lie on
as many threads as run at once. A kernel's slice combines its launches in all layers, in the order of the first. Names
are encoded once each, since slices of a kernel differ in numbers only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.serving.breakdown.step_kernels import PHASES, StepKernels, gpu_ns_of, phases_of

STEP_ARGS = ("prefill_tokens", "decode_tokens", "running", "waiting", "preemptions")
REQUEST_ARGS = ("prompt_tokens", "output_tokens", "cached_tokens", "preemptions")
WAIT = "wait for the next stage"
MOMENTS = (("queued", "sent_ns"), ("prefill", "scheduled_ns"), ("KV transfer", "first_token_ns"))


class Replicas(NamedTuple):
    """Replicas of a scenario: number, title and KV capacity (units) of each, and the thread of each step.

    ``gpus``: (GPUs that work on one layer together, all GPUs) of a replica; ``idle_w``, ``active_w``: of one GPU, W.
    """

    numbers: list[int]
    titles: list[str]
    capacity: list[int]
    gpus: list[tuple[int, int]]
    idle_w: list[float]
    active_w: list[float]
    thread: np.ndarray


def replicas_of(
    totals: pa.Table, settings: pa.Table, plans: pa.Table, gpu_power: pa.Table, steps: pa.Table
) -> Replicas:
    """Return the replicas of one scenario, from replica_totals, deployment_settings, memory_plan, gpu_power, steps."""
    settings_of, plan_of = ({row["deployment_id"]: row for row in table.to_pylist()} for table in (settings, plans))
    power_of = {row["gpu"]: row for row in gpu_power.to_pylist()}
    rows = totals.to_pylist()
    used = [settings_of[row["deployment_id"]] for row in rows]
    titles = []
    for row, engine in zip(rows, used, strict=True):
        titles.append(
            f"replica {row['replica']}: {engine['model']} on {engine['gpu']}, tp {engine['tp']} pp {engine['pp']}"
        )
    capacity = [plan_of[row["deployment_id"]]["capacity_units"] for row in rows]
    gpus = [(engine["tp"], engine["tp"] * engine["pp"]) for engine in used]
    power_columns = ([power_of[engine["gpu"]][name] for engine in used] for name in ("idle_w", "active_w"))
    return Replicas([row["replica"] for row in rows], titles, capacity, gpus, *power_columns, _threads(steps))


def names(replicas: Replicas) -> Iterator[str]:
    """Yield the events that name processes (replicas) and threads (steps)."""
    threads = range(1, int(replicas.thread.max(initial=1)) + 1)
    for number, title in zip(replicas.numbers, replicas.titles, strict=True):
        yield _title(number, 0, "process_name", title)
        for thread in threads:
            yield _title(number, thread, "thread_name", "steps" if len(threads) == 1 else f"steps in flight {thread}")


def slices(replicas: Replicas, steps: pa.Table, step_kernel_sets: Sequence[StepKernels]) -> Iterator[str]:
    """Yield slices of steps with their exposed host time, kernels and waits inside, by thread and start."""
    start, end, host, wait = (steps[name].to_numpy() for name in ("start_ns", "end_ns", "host_ns", "stage_wait_ns"))
    phase, numbers = phases_of(steps), steps["replica"].to_numpy()
    bounds, kernels = _kernels(steps, step_kernel_sets)
    phases, waits, hosts = (
        [_named(phase_name, "step") for phase_name in PHASES],
        _named(WAIT, "wait"),
        _named("host", "host"),
    )
    values = [steps[name].to_numpy() for name in STEP_ARGS]
    for i in np.lexsort((start, replicas.thread, numbers)).tolist():
        track = f'"pid":{numbers[i] + 1},"tid":{replicas.thread[i]}'
        step_args = ",".join(f'"{name}":{column[i]}' for name, column in zip(STEP_ARGS, values, strict=True))
        args = f',"args":{{"step":{steps["step"][i].as_py()},{step_args}}}'
        yield _slice(phases[phase[i]], track, start[i], end[i] - start[i], args)
        kernel_start = start[i]
        if host[i] > 0:
            yield _slice(hosts, track, kernel_start, host[i])
            kernel_start += host[i]
        for kernel, low, high in zip(kernels[i], bounds[i][:-1], bounds[i][1:], strict=True):
            yield _slice(kernel, track, kernel_start + low, high - low)
        if wait[i] > 0:
            yield _slice(waits, track, end[i] - wait[i], wait[i])


def counters(replicas: Replicas, steps: pa.Table) -> Iterator[str]:
    """Yield counters at each step's start: requests, KV cache in use (%), and power of the replica's GPUs (W)."""
    start, end, numbers, running, waiting, used, joules = (
        steps[name].to_numpy()
        for name in ("start_ns", "end_ns", "replica", "running", "waiting", "kv_blocks_used", "dynamic_energy_j")
    )
    capacity = dict(zip(replicas.numbers, replicas.capacity, strict=True))
    columns = (replicas.gpus, replicas.idle_w, replicas.active_w)
    power_of_replica = {
        number: power_columns for number, *power_columns in zip(replicas.numbers, *columns, strict=True)
    }
    for i in np.lexsort((start, numbers)).tolist():
        head = f'"ph":"C","pid":{numbers[i] + 1},"tid":0,"ts":{_us(start[i])}'
        yield f'{{"name":"requests",{head},"args":{{"running":{running[i]},"waiting":{waiting[i]}}}}}'
        used_percent = 100.0 * used[i] / max(capacity[numbers[i]], 1)
        yield f'{{"name":"KV cache in use (%)",{head},"args":{{"used":{used_percent:.3f}}}}}'
        (layer_gpus, gpus), idle_w, active_w = power_of_replica[numbers[i]]
        power_w = gpus * (idle_w + active_w) + layer_gpus * joules[i] * 1e9 / max(end[i] - start[i], 1)
        if np.isfinite(power_w):
            yield f'{{"name":"power (W)",{head},"args":{{"GPUs":{power_w:.1f}}}}}'


def requests(events: pa.Table, start_ns: float, end_ns: float) -> Iterator[str]:
    """Yield each request as an asynchronous slice with its phases inside, cut to the shown span, ns."""
    for row in events.to_pylist():
        moments = [(name, row[column]) for name, column in MOMENTS]
        if row["kv_received_ns"] is None:
            moments.pop()
        moments.append(("decode", row["kv_received_ns"] or row["first_token_ns"]))
        bounds = [float(np.clip(moment, start_ns, end_ns)) for _, moment in moments]
        bounds.append(float(np.clip(row["finish_ns"], start_ns, end_ns)))
        track = f'"id":"{row["request_id"]}","pid":{row["replica"] + 1},"tid":0'
        name_and_category = _named(row["external_id"] or f"request {row['request_id']}", "request")
        request_args = ",".join(f'"{name}":{row[name]}' for name in REQUEST_ARGS)
        yield f'{{{name_and_category},"ph":"b",{track},"ts":{_us(bounds[0])},"args":{{{request_args}}}}}'
        for (name, _), low, high in zip(moments, bounds[:-1], bounds[1:], strict=True):
            if high > low:
                name_of_phase = _named(name, "request")
                yield f'{{{name_of_phase},"ph":"b",{track},"ts":{_us(low)}}}'
                yield f'{{{name_of_phase},"ph":"e",{track},"ts":{_us(high)}}}'
        yield f'{{{name_and_category},"ph":"e",{track},"ts":{_us(bounds[-1])}}}'


def in_flight(events: pa.Table, start_ns: float, end_ns: float) -> pa.Table:
    """Return the finished requests of ``request_events`` that were in flight in a span, ns."""
    overlaps = pc.and_(pc.less(events["sent_ns"], end_ns), pc.greater(events["finish_ns"], start_ns))
    return events.filter(pc.and_(pc.equal(events["status"], "finished"), pc.fill_null(overlaps, False)))


def _kernels(
    steps: pa.Table, step_kernel_sets: Sequence[StepKernels]
) -> tuple[list[Sequence[int]], list[Sequence[str]]]:
    """Return the edges of each step's kernels, ns from the first one's start, and their names, from ``_named``."""
    gpu_ns = gpu_ns_of(steps)
    bounds: list[Sequence[int]] = [(0,)] * steps.num_rows
    kernels: list[Sequence[str]] = [()] * steps.num_rows
    for kernels_of_steps in step_kernel_sets:
        until = np.cumsum(np.maximum(kernels_of_steps.us, 0.0), axis=1)
        # the last kernel ends with the step's GPU time, to the nanosecond
        until *= (gpu_ns[kernels_of_steps.rows] / np.maximum(until[:, -1], 1e-300))[:, None]
        edges_ns = np.rint(np.hstack([np.zeros((kernels_of_steps.rows.size, 1)), until])).astype(np.int64)
        shown = [_named(name, family) for family, name in kernels_of_steps.kernels]
        for row, edges in zip(kernels_of_steps.rows.tolist(), edges_ns.tolist(), strict=True):
            bounds[row], kernels[row] = edges, shown
    return bounds, kernels


def _threads(steps: pa.Table) -> np.ndarray:
    """Return a thread number for each step, from 1, such that steps of one thread do not overlap."""
    start, end, replica = (steps[name].to_numpy() for name in ("start_ns", "end_ns", "replica"))
    threads = np.ones(start.size, np.int64)
    for number in np.unique(replica):
        rows = np.flatnonzero(replica == number)
        rows = rows[np.argsort(start[rows], kind="stable")]
        if np.all(start[rows][1:] >= end[rows][:-1]):
            continue
        free_at: list[int] = []
        for row in rows.tolist():
            thread = next((i for i, moment in enumerate(free_at) if moment <= start[row]), len(free_at))
            free_at[thread : thread + 1] = [end[row]]
            threads[row] = thread + 1
    return threads


def _us(nanoseconds: float) -> str:
    """Return nanoseconds as text in us with three decimals."""
    rounded_ns = round(nanoseconds)
    return f"{rounded_ns // 1000}.{rounded_ns % 1000:03d}"


def _named(name: str, category: str) -> str:
    """Return the JSON members of an event's name and category."""
    return f'"name":{json.dumps(name)},"cat":{json.dumps(category)}'


def _slice(name_and_category: str, track: str, start_ns: int, length_ns: int, args: str = "") -> str:
    """Return a complete event (slice) as JSON; ``track``: members of its process and thread."""
    return f'{{{name_and_category},"ph":"X",{track},"ts":{_us(start_ns)},"dur":{_us(length_ns)}{args}}}'


def _title(replica: int, thread: int, kind: str, title: str) -> str:
    track = f'"pid":{replica + 1},"tid":{thread}'
    return f'{{"name":"{kind}","ph":"M",{track},"ts":0,"args":{{"name":{json.dumps(title)}}}}}'
