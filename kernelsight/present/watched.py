"""Windows of a watch as metrics for Prometheus, rows of a history, and lines for people."""

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
# later than this a time is one of the unix clock: 1973
UNIX_S = 1e8


@dataclass
class Window:
    """One window of a watch: figures by metric, counts, and sentences on events, such as the begin of a drift.

    ``usual``: level of the logarithm of measured over expected, by metric; ``since``: when the drift began that has not
    ended; ``totals``: of all windows.
    """

    number: int
    metrics: Mapping[str, Mapping[str, float]]
    counts: Mapping[str, float]
    said: list[str]
    usual: Mapping[str, float]
    since: float | None
    totals: Mapping[str, float]


def as_prometheus(window: Window) -> str:
    """Return a window in Prometheus's text format; times in seconds."""
    lines = []
    for metric, figures_of in window.metrics.items():
        for origin in SIDES:
            name = f"kernelsight_{origin}_{metric}_seconds"
            values = {'statistic="mean"': figures_of[f"{origin}_mean"] / 1e3}
            values |= {
                f'quantile="{quantile}"': figures_of[f"{origin}_{quantile_name}"] / 1e3
                for quantile_name, quantile in QUANTILES.items()
                if f"{origin}_{quantile_name}" in figures_of
            }
            lines += _typed(name, "gauge", f"{metric.upper()} of the last window, {origin}.", values)
    factors = {
        f'metric="{metric}"': math.exp(figures_of["log_factor"]) for metric, figures_of in window.metrics.items()
    }
    usual = {f'metric="{metric}"': math.exp(level) for metric, level in window.usual.items()}
    drifts, end = {"": float(window.since is not None)}, {"": window.counts["end_s"]}
    gauges = {
        "measured_over_expected": ("Median of measured over expected times.", factors),
        "usual_measured_over_expected": ("Its usual level.", usual),
        "drift": ("1 while measured times have left their usual level.", drifts),
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
    shown = [f"{name}{f'{{{labels}}}' if labels else ''} {value:.12g}" for labels, value in values.items()]
    return [f"# HELP {name} {doc}", f"# TYPE {name} {kind}", *shown]


def history_rows(window: Window) -> list[dict[str, Any]]:
    """Return a row a metric: the window, its time, and measured and expected figures, ms."""
    figures = [f"{origin}_{name}" for origin in SIDES for name in ("mean", *QUANTILES)]
    return [
        {
            "window": window.number,
            "start_s": window.counts["start_s"],
            "end_s": window.counts["end_s"],
            "requests": int(window.counts["requests"]),
            "metric": f"{metric}_ms",
            **{name: figures_of.get(name) for name in figures},
            "measured_over_expected": math.exp(figures_of["log_factor"]),
            "drift": window.since is not None,
        }
        for metric, figures_of in window.metrics.items()
    ]


def window_lines(window: Window) -> Iterator[str]:
    """Yield a window for people: one line of means, measured / expected, and its events."""
    if window.metrics:
        times = "  ".join(
            f"{metric.upper()} {number(figures_of['measured_mean'])} / {number(figures_of['expected_mean'])} ms"
            for metric, figures_of in window.metrics.items()
        )
        drift = "" if window.since is None else "  drift"
        yield f"{moment(window.counts['end_s'])}  {rounded(window.counts['requests'])} requests  {times}{drift}"
    yield from window.said


def as_line_of_json(window: Window) -> str:
    """Return a window as one line of JSON."""
    drift = {"drift": window.since is not None, "said": window.said}
    return json.dumps(clean({"window": window.number, **window.counts, "metrics": window.metrics, **drift}))


def moment(seconds: float) -> str:
    """Return a time of the log's clock: of the day where it is a unix time.

    >>> moment(125.4), moment(1_790_000_000.0)
    ('125 s', '2026-09-21 14:13:20')
    """
    if seconds < UNIX_S:
        return f"{rounded(seconds)} s"
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M:%S}"
