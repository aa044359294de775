"""Figures of a sizing: what the deployments cost, and the hours of a day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.present.figures.chart import amount, chart, kind, tips
from kernelsight.present.page import Figure, Rows

# colours by the probability that all objectives hold; it is not computed for deployments far from the best
SURENESS = {"90 % or more": "#2c8a57", "50 to 90 %": "#e0b43b", "below 50 %": "#c8553d", "not asked": "#b8c0c8"}
UNITS = {"cost_per_day": "$ a day", "price_per_hour": "$ an hour", "gpus": "GPUs"}
HOURS = {
    "layer": [
        chart({"type": "bar", "color": "#9dbbd8"}, y=amount("instances", "instances")),
        chart({"type": "line", "color": "#e07b39", "interpolate": "monotone"}, y=amount("asked", "asked for")),
    ],
    "resolve": {"scale": {"y": "independent"}},
    "encoding": {
        "x": {"field": "hour", "type": "ordinal", "title": "hour of the day"},
        "tooltip": tips("hour", "instances", "started", "gpus", asked=".4g"),
    },
}
SHOWN = 20


def size_figures(rows: Rows, day: Mapping[str, Any] | None) -> Sequence[Figure]:
    """Return the bars of the first deployments' costs, or of their GPUs without prices, and the hours of a day."""
    name = next((name for name in UNITS if rows[0].get(name) is not None), "gpus")
    values = [
        {
            "name": f"{row['instances']} × {row['gpu']}, TP {row['tensor_parallel_size']} ({rank})",
            "weight": row[name],
            "holds": _sureness(row["probability"]),
            **{field: row[field] for field in ("probability", "load", "instances")},
        }
        for rank, row in enumerate(rows[:SHOWN], start=1)
    ]
    spec = chart(
        "bar",
        {"filter": "isValid(datum.weight)"},
        x=amount("weight", UNITS[name]),
        y=kind("name", sort=None, axis={"labelLimit": 320}),
        color=kind(
            "holds",
            "probability",
            sort=list(SURENESS),
            scale={"domain": list(SURENESS), "range": list(SURENESS.values())},
        ),
        tooltip=tips("name", "instances", weight=".3g", probability=".3g", load=".3g"),
    )
    note = f"{len(rows) - SHOWN:,} more deployments are in the table." if len(rows) > SHOWN else ""
    figures = [Figure("What they cost", note, spec=spec, rows=values)]
    if day:
        note = f"Bars: instances; line: {day['unit']} asked for. {day['startup'][0].upper()}{day['startup'][1:]}."
        figures.append(Figure("The day", note, spec=HOURS, rows=day["hours"]))
    return figures


def _sureness(probability: float | None) -> str:
    """Return the class of SURENESS of a probability; None: it was not computed."""
    names = list(SURENESS)
    if probability is None:
        return names[3]
    return names[0] if probability >= 0.9 else names[1] if probability >= 0.5 else names[2]
