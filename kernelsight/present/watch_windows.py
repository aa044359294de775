"""Windows of a watch, written as Prometheus metrics, rows of a history, JSON lines, and lines for people."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kernelsight.number_format import number, rounded
from kernelsight.present.output import clean

QUANTILES = {"p50": "0.5", "p90": "0.9", "p99": "0.99"}
SIDES = ("measured", "expected")
# times above this (1973) are unix times
UNIX_S = 1e8


@dataclass
class Window:
    """One window of a watch: figures by metric, counts, and notes on events, such as the start of a drift.

    ``metrics``: measured_* and expected_*, ms, and log_factor, by metric; ``counts``: requests, failed, start_s, end_s;
    ``usual``: usual logarithm of measured over expected, by metric; ``since``: start of the drift that has not ended,
    s; ``totals``: over all windows.
    """

    number: int
    metrics: Mapping[str, Mapping[str, float]]
    counts: Mapping[str, float]
    notes: list[str]
    usual: Mapping[str, float]
    since: float | None
    totals: Mapping[str, float]


def as_prometheus(window: Window) -> str:
    """Return the last window and the totals in Prometheus's text format; times in seconds."""
    lines = []
    for metric, figures in window.metrics.items():
        for origin in SIDES:
            name = f"kernelsight_{origin}_{metric}_seconds"
            values = {'statistic="mean"': figures[f"{origin}_mean"] / 1e3}
            values |= {
                f'quantile="{quantile}"': figures[f"{origin}_{quantile_name}"] / 1e3
                for quantile_name, quantile in QUANTILES.items()
                if f"{origin}_{quantile_name}" in figures
            }
            lines += _typed(name, "gauge", f"{metric.upper()} of the last window, {origin}.", values)
    factors = {f'metric="{metric}"': math.exp(figures["log_factor"]) for metric, figures in window.metrics.items()}
    usual_factors = {f'metric="{metric}"': math.exp(level) for metric, level in window.usual.items()}
    drift, end = {"": float(window.since is not None)}, {"": window.counts["end_s"]}
    gauges = {
        "measured_over_expected": ("Median of measured over expected times.", factors),
        "usual_measured_over_expected": ("Its usual level.", usual_factors),
        "drift": ("1 while measured times have left their usual level.", drift),
        "drift_since_seconds": ("When that began, by the log's clock; 0: it has not.", {"": window.since or 0.0}),
        "window_end_seconds": ("End of the last window, by the log's clock.", end),
    }
    for name, (doc, values) in gauges.items():
        lines += _typed(f"kernelsight_{name}", "gauge", doc, values)
    for name, value in window.totals.items():
        lines += _typed(f"kernelsight_{name}_total", "counter", TOTALS[name], {"": value})
    return "\n".join(lines) + "\n"


TOTALS = {
    "requests": "Requests that were compared.",
    "failed": "Requests among them that failed.",
    "refused": "Lines of the log that could not be used.",
}


def _typed(name: str, kind: str, doc: str, values: Mapping[str, float]) -> list[str]:
    """Return the lines of a metric, with HELP and TYPE; ``values``: by labels."""
    shown = [f"{name}{f'{{{labels}}}' if labels else ''} {value:.12g}" for labels, value in values.items()]
    return [f"# HELP {name} {doc}", f"# TYPE {name} {kind}", *shown]


def history_rows(window: Window) -> list[dict[str, Any]]:
    """Return one row per metric of a window: its time, s, and measured and expected figures, ms."""
    names = [f"{origin}_{name}" for origin in SIDES for name in ("mean", *QUANTILES)]
    return [
        {
            "window": window.number,
            "start_s": window.counts["start_s"],
            "end_s": window.counts["end_s"],
            "requests": int(window.counts["requests"]),
            "metric": f"{metric}_ms",
            **{name: figures.get(name) for name in names},
            "measured_over_expected": math.exp(figures["log_factor"]),
            "drift": window.since is not None,
        }
        for metric, figures in window.metrics.items()
    ]


def window_lines(window: Window) -> Iterator[str]:
    """Yield a window as lines for people: one with means, measured / expected, and one per note."""
    if window.metrics:
        times = "  ".join(
            f"{metric.upper()} {number(figures['measured_mean'])} / {number(figures['expected_mean'])} ms"
            for metric, figures in window.metrics.items()
        )
        drift = "" if window.since is None else "  drift"
        yield f"{moment(window.counts['end_s'])}  {rounded(window.counts['requests'])} requests  {times}{drift}"
    yield from window.notes


def as_line_of_json(window: Window) -> str:
    """Return a window as one line of JSON."""
    drift = {"drift": window.since is not None, "said": window.notes}
    return json.dumps(clean({"window": window.number, **window.counts, "metrics": window.metrics, **drift}))


def moment(seconds: float) -> str:
    """Return a time of the log's clock as text: date and time in UTC if it is a unix time, else seconds.

    >>> moment(125.4), moment(1_790_000_000.0)
    ('125 s', '2026-09-21 14:13:20')
    """
    if seconds < UNIX_S:
        return f"{rounded(seconds)} s"
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M:%S}"
