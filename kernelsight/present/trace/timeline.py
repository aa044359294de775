"""A run as a trace in Chrome's format, which Perfetto opens: replicas, steps, kernels, requests and counters."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.dataflow.durable import durable_file
from kernelsight.errors import InvalidInput
from kernelsight.present.trace.trace_events import counters, in_flight, names, replicas_of, requests, slices
from kernelsight.serving.breakdown.knot_kernels import knot_kernels
from kernelsight.serving.breakdown.one_scenario import one_scenario
from kernelsight.serving.breakdown.step_kernels import StepKernels, step_kernels

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

# about 200 MB of JSON
MOST_EVENTS = 1_500_000
SERVED = ("steps", "step_cost_uses", "replica_totals", "request_events")
FACTS = ("kernel_latencies", "knot_corrections", "step_shapes", "deployment_settings", "memory_plan", "gpu_power")
NS = 1e9


class Span(NamedTuple):
    """The part of the simulation that is shown, in ns of its clock."""

    start: float
    end: float

    @classmethod
    def of(cls, start_s: float | None, end_s: float | None) -> Span:
        """Return the span from two moments in seconds; InvalidInput: negative, or no time between them.

        >>> Span.of(None, 2.5)
        Span(start=0.0, end=2500000000.0)
        """
        start, end = 0.0 if start_s is None else start_s, float("inf") if end_s is None else end_s
        if not 0.0 <= start < end:
            raise InvalidInput(
                f"there is no time from {start:g} s to {end:g} s; give seconds since the start of the run, the smaller "
                "first (start_s in table cache_over_time is the same clock)."
            )
        return cls(start * NS, end * NS)


def write_timeline(
    session: Session,
    path: str | Path,
    start_s: float | None = None,
    end_s: float | None = None,
    scenario: str | None = None,
    most_events: int = MOST_EVENTS,
) -> dict[str, int]:
    """Write the trace of one scenario; return how many steps, kernel slices, requests and events it shows.

    ``start_s``, ``end_s``: steps that start in between, and requests in flight there; ``scenario``: which of several.
    InvalidInput: nothing to show, or more than ``most_events`` events, and what to do.
    """
    span = Span.of(start_s, end_s)
    chosen = one_scenario(session, scenario)
    chosen.compute(*SERVED, *FACTS)
    tables = {name: chosen.table(name) for name in (*SERVED, *FACTS)}
    steps, step_kernel_sets = _shown(tables, span)
    moving = in_flight(tables["request_events"], span.start, span.end)
    shown = {
        "steps": steps.num_rows,
        "kernel_slices": sum(kernels_of_steps.us.size for kernels_of_steps in step_kernel_sets),
        "requests": moving.num_rows,
    }
    shown["events"] = _count_events(shown["kernel_slices"], steps, moving)
    _check_size(shown, steps, tables["request_events"], span, most_events)
    rows = (tables[name] for name in ("replica_totals", "deployment_settings", "memory_plan", "gpu_power"))
    replicas = replicas_of(*rows, steps)
    last_ns = min(span.end, max(tables["replica_totals"]["last_ns"].to_pylist(), default=0))
    parts_of_file = (names(replicas), slices(replicas, steps, step_kernel_sets), counters(replicas, steps))
    events = itertools.chain(*parts_of_file, requests(moving, span.start, last_ns))
    with durable_file(Path(path)) as draft, draft.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n' + next(events))
        file.writelines(f",\n{event}" for event in events)
        file.write("\n]}\n")
    return shown


def _shown(tables: dict[str, pa.Table], span: Span) -> tuple[pa.Table, list[StepKernels]]:
    """Return the steps that start in the span, and their kernels, whose rows count these steps."""
    steps = tables["steps"]
    start = steps["start_ns"].to_numpy()
    inside = (start >= span.start) & (start < span.end)
    number = np.cumsum(inside) - 1
    knots = knot_kernels(tables["kernel_latencies"], tables["step_shapes"], tables["knot_corrections"])
    shown_kernels = []
    for kernels_of_steps in step_kernels(
        *(steps, tables["step_cost_uses"], tables["replica_totals"], tables["deployment_settings"], knots)
    ):
        in_span = inside[kernels_of_steps.rows]
        shown_kernels.append(
            kernels_of_steps._replace(
                rows=number[kernels_of_steps.rows[in_span]],
                us=kernels_of_steps.us[in_span],
                calls=kernels_of_steps.calls[in_span],
            )
        )
    return steps.filter(pa.array(inside)), shown_kernels


def _count_events(kernel_slices: int, steps: pa.Table, requests_shown: pa.Table) -> int:
    """Return about how many events are written: with a step host time and three counters, in a request four phases."""
    return kernel_slices + 5 * steps.num_rows + 8 * requests_shown.num_rows


def _between(span: Span) -> str:
    start = f"from {span.start / NS:g} s"
    return f"{start} on" if span.end == float("inf") else f"{start} to {span.end / NS:g} s"


def _check_size(shown: dict[str, int], steps: pa.Table, request_events: pa.Table, span: Span, most_events: int) -> None:
    """Raise InvalidInput where there is nothing to show, or too much for a viewer."""
    if not shown["steps"]:
        raise InvalidInput(
            f"no engine step starts {_between(span)}; start_s in cache_over_time shows when the engine is busy."
        )
    if shown["events"] > most_events:
        fits = _span_that_fits(shown, steps, request_events, most_events)
        raise InvalidInput(
            f"the timeline would hold {shown['events']:,} events, and a viewer opens {most_events:,}; show less time, "
            f"such as --from {fits.start / NS:.6g} --to {fits.end / NS:.6g}."
        )


def _span_that_fits(shown: dict[str, int], steps: pa.Table, request_events: pa.Table, most_events: int) -> Span:
    """Return the first part of the steps' time that is small enough, found by halving."""
    start = steps["start_ns"].to_numpy()
    start_ns, end = float(start.min()), float(start.max()) + 1.0
    while end - start_ns > 1e3:
        end = start_ns + 0.5 * (end - start_ns)
        inside = steps.filter(pa.array(start < end))
        slices_inside = shown["kernel_slices"] * inside.num_rows // steps.num_rows
        moving = in_flight(request_events, start_ns, end)
        if 1.1 * _count_events(slices_inside, inside, moving) <= most_events:
            break
    return Span(start_ns, end)
