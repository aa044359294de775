"""Timeline of a run as a Chrome trace (for Perfetto): replicas, steps, kernels, requests and counters."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.caches.durable import durable_file
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
    """The time span of the simulation that is shown, ns."""

    start: float
    end: float

    @classmethod
    def of(cls, start_s: float | None, end_s: float | None) -> Span:
        """Return the span between two moments in seconds; InvalidInput: negative, or in the wrong order.

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
    """Write the Chrome trace of one scenario; return its numbers of steps, kernel_slices, requests and events.

    ``start_s``, ``end_s``: show steps that start in between, and requests in flight then; ``scenario``: its id, if
    there are several. InvalidInput: nothing to show, or more than ``most_events`` events.
    """
    span = Span.of(start_s, end_s)
    chosen = one_scenario(session, scenario)
    chosen.compute(*SERVED, *FACTS)
    tables = {name: chosen.table(name) for name in (*SERVED, *FACTS)}
    steps, step_kernel_sets = _steps_in_span(tables, span)
    requests_in_flight = in_flight(tables["request_events"], span.start, span.end)
    shown = {
        "steps": steps.num_rows,
        "kernel_slices": sum(kernels_of_steps.us.size for kernels_of_steps in step_kernel_sets),
        "requests": requests_in_flight.num_rows,
    }
    shown["events"] = _count_events(shown["kernel_slices"], steps, requests_in_flight)
    _check_size(shown, steps, tables["request_events"], span, most_events)
    rows = (tables[name] for name in ("replica_totals", "deployment_settings", "memory_plan", "gpu_power"))
    replicas = replicas_of(*rows, steps)
    last_ns = min(span.end, max(tables["replica_totals"]["last_ns"].to_pylist(), default=0))
    parts_of_file = (names(replicas), slices(replicas, steps, step_kernel_sets), counters(replicas, steps))
    events = itertools.chain(*parts_of_file, requests(requests_in_flight, span.start, last_ns))
    with durable_file(Path(path)) as draft, draft.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n' + next(events))
        file.writelines(f",\n{event}" for event in events)
        file.write("\n]}\n")
    return shown


def _steps_in_span(tables: dict[str, pa.Table], span: Span) -> tuple[pa.Table, list[StepKernels]]:
    """Return the steps that start in the span, and their kernels, whose ``rows`` index these steps."""
    steps = tables["steps"]
    start = steps["start_ns"].to_numpy()
    is_shown = (start >= span.start) & (start < span.end)
    new_row = np.cumsum(is_shown) - 1
    knots = knot_kernels(tables["kernel_latencies"], tables["step_shapes"], tables["knot_corrections"])
    shown_kernels = []
    for kernels_of_steps in step_kernels(
        *(steps, tables["step_cost_uses"], tables["replica_totals"], tables["deployment_settings"], knots)
    ):
        in_span = is_shown[kernels_of_steps.rows]
        shown_kernels.append(
            kernels_of_steps._replace(
                rows=new_row[kernels_of_steps.rows[in_span]],
                us=kernels_of_steps.us[in_span],
                calls=kernels_of_steps.calls[in_span],
            )
        )
    return steps.filter(pa.array(is_shown)), shown_kernels


def _count_events(kernel_slices: int, steps: pa.Table, requests_shown: pa.Table) -> int:
    """Return the approximate number of events: 5 per step (host time, counters), 8 per request (four phases)."""
    return kernel_slices + 5 * steps.num_rows + 8 * requests_shown.num_rows


def _between(span: Span) -> str:
    start = f"from {span.start / NS:g} s"
    return f"{start} on" if span.end == float("inf") else f"{start} to {span.end / NS:g} s"


def _check_size(shown: dict[str, int], steps: pa.Table, request_events: pa.Table, span: Span, most_events: int) -> None:
    """Check the number of events; InvalidInput: nothing to show, or too many events for a viewer."""
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
    """Return the first part of the steps' time whose events fit, found by halving."""
    start = steps["start_ns"].to_numpy()
    start_ns, end = float(start.min()), float(start.max()) + 1.0
    while end - start_ns > 1e3:
        end = start_ns + 0.5 * (end - start_ns)
        inside = steps.filter(pa.array(start < end))
        slices_inside = shown["kernel_slices"] * inside.num_rows // steps.num_rows
        requests_in_flight = in_flight(request_events, start_ns, end)
        if 1.1 * _count_events(slices_inside, inside, requests_in_flight) <= most_events:
            break
    return Span(start_ns, end)
