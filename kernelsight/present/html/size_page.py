"""HTML page of a sizing: the chosen deployment and why, costs of all, instances by hour of day, rejected ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelsight.caches.durable import durable_file
from kernelsight.number_format import percent
from kernelsight.present.html.page import (
    CONFIG,
    HEIGHT,
    Card,
    Chart,
    Grid,
    Head,
    Part,
    Tiles,
    page,
    plain,
    table,
    text_of,
)

# colours by the probability that all objectives hold; it is not computed for deployments far from the best
SURENESS = {"90 % or more": "#2c8a57", "50 to 90 %": "#e0b43b", "below 50 %": "#c8553d", "not asked": "#b8c0c8"}
COSTS = {
    "transform": [{"filter": "isValid(datum.weight)"}],
    "mark": "bar",
    "encoding": {
        "x": {"field": "weight", "type": "quantitative", "title": None},
        "y": {"field": "name", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 320}},
        "color": {
            "field": "holds",
            "type": "nominal",
            "title": "probability",
            "sort": list(SURENESS),
            "scale": {"domain": list(SURENESS), "range": list(SURENESS.values())},
        },
        "tooltip": [
            {"field": "name"},
            *({"field": name, "format": ".3g"} for name in ("weight", "probability", "load")),
            {"field": "instances"},
        ],
    },
}
HOURS = {
    "layer": [
        {
            "mark": {"type": "bar", "color": "#9dbbd8"},
            "encoding": {"y": {"field": "instances", "type": "quantitative", "title": "instances"}},
        },
        {
            "mark": {"type": "line", "color": "#e07b39", "interpolate": "monotone"},
            "encoding": {"y": {"field": "asked", "type": "quantitative", "title": "asked for"}},
        },
    ],
    "resolve": {"scale": {"y": "independent"}},
    "encoding": {
        "x": {"field": "hour", "type": "ordinal", "title": "hour of the day"},
        "tooltip": [{"field": name} for name in ("hour", "instances", "started", "gpus")]
        + [{"field": "asked", "format": ".4g"}],
    },
}
SHOWN = 20


def write_size_page(answer: Mapping[str, Any], columns: Sequence[str], path: Path) -> None:
    """Write the self-contained HTML page of a sizing.

    ``answer``: as ``size --format json`` prints it; ``columns``: of the table of deployments. InvalidInput: the extra
    ``report`` is not installed.
    """
    with durable_file(path) as draft:
        draft.write_text(size_page(answer, columns), encoding="utf-8")


def size_page(answer: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return the page of a sizing as HTML; see ``write_size_page``."""
    chosen, rows = answer["chosen"], answer["rows"]
    title = f"{chosen['gpus']} × {chosen['gpu']}" if chosen else "No deployment keeps the objectives"
    sentences = [sentence for sentence in (answer["answer"], answer["decides"]) if sentence]
    parts: list[Part] = [Head(title, "the cheapest deployment that keeps every objective surely enough", sentences)]
    if chosen:
        shown = [{name: row.get(name) for name in columns} for row in rows]
        day = [_day(answer["day"])] if answer["day"] else []
        launch = Card("One instance", text="\n".join(answer["launch"]), wide=True)
        all_deployments = Card("Deployments", table=table(shown), wide=True)
        rests_on = Card("What the cheapest rests on", table=table(answer["evidence"]), wide=True)
        parts += [Tiles(_figures(chosen)), Grid([_costs(rows), *day, launch, rests_on, all_deployments])]
    if answer["left_out"]:
        left_out = [
            {"gpu": row["gpu"], "TP": row["tensor_parallel_size"], "why": row["reason"]} for row in answer["left_out"]
        ]
        parts.append(Grid([Card("Left out", table=table(left_out), wide=True)]))
    return page(f"{title}: sizing", parts)


def _figures(chosen: Mapping[str, Any]) -> dict[str, str]:
    """Return the key figures of the chosen deployment: instances, GPUs, costs, load, probability."""
    tiles = {"instances": text_of(chosen["instances"]), "GPUs": text_of(chosen["gpus"])}
    if chosen["price_per_hour"] is not None:
        tiles |= {"$ an hour": text_of(chosen["price_per_hour"])}
        tiles |= {"$ a million tokens": text_of(chosen["cost_per_million_tokens"])}
    if chosen.get("cost_per_day") is not None:
        tiles |= {"$ a day": text_of(chosen["cost_per_day"])}
    tiles |= {"load": percent(chosen["load"])}
    if chosen["probability"] is not None:
        tiles |= {"probability": percent(chosen["probability"])}
    return tiles


def _costs(rows: Sequence[Mapping[str, Any]]) -> Card:
    """Return the bar chart of the first deployments' costs, or of their GPUs if prices are unknown."""
    name = next((name for name in ("cost_per_day", "price_per_hour") if rows[0].get(name) is not None), "gpus")
    titles = {"cost_per_day": "$ a day", "price_per_hour": "$ an hour", "gpus": "GPUs"}
    values = [
        {
            "name": f"{row['instances']} × {row['gpu']}, TP {row['tensor_parallel_size']} ({rank})",
            "weight": row[name],
            "holds": _sureness(row["probability"]),
            **{field: row[field] for field in ("probability", "load", "instances")},
        }
        for rank, row in enumerate(rows[:SHOWN], start=1)
    ]
    hidden = len(rows) - len(values)
    note = f"{hidden} more deployments are in the table." if hidden else ""
    spec = {"data": {"values": [plain(row) for row in values]}, **COSTS, "config": CONFIG, "width": "container"}
    spec["encoding"] = {**COSTS["encoding"], "x": {**COSTS["encoding"]["x"], "title": titles[name]}}
    return Card("What they cost", chart=Chart("figure-0", spec), below=note)


def _sureness(probability: float | None) -> str:
    """Return the class of SURENESS of a probability; None: it was not computed."""
    names = list(SURENESS)
    if probability is None:
        return names[3]
    return names[0] if probability >= 0.9 else names[1] if probability >= 0.5 else names[2]


def _day(day: Mapping[str, Any]) -> Card:
    """Return the chart of instances and load by hour of the day."""
    values = [plain(hour) for hour in day["hours"]]
    spec = {"data": {"values": values}, **HOURS, "config": CONFIG, "width": "container", "height": HEIGHT}
    note = f"Bars: instances; line: {day['unit']} asked for. {day['startup'][0].upper()}{day['startup'][1:]}."
    return Card("The day", note, chart=Chart("figure-1", spec))
