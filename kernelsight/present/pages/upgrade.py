"""The page of an upgrade: answer, metrics with the interval of their change, kernels, settings, flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelsight.present.figures.files import figures_of
from kernelsight.present.page import Page, Table

# kernels that a terminal shows
MOST_SHOWN = 16
# columns that a narrow terminal omits, in this order
MEASURED = "measured on this GPU"
EXPENDABLE = ("high", "low", "kernel before", MEASURED)
CHANGE = ("change", "low", "high")


def upgrade_page(answer: Mapping[str, Any]) -> Page:
    """Return the page of an upgrade; ``answer``: as printed by `upgrade --format json`."""
    metrics = [
        {"metric": name, "before": row["from"], "after": row["to"]} | {column: row[column] for column in CHANGE}
        for name, row in answer["metrics"].items()
    ]
    kernels = [
        {
            "step": row["phase"],
            "family": row["family"],
            "kernel before": row["from"],
            "kernel after": row["to"] if row["to"] != row["from"] else "the same",
            "ms before": row["ms_per_step_from"],
            "ms after": row["ms_per_step_to"],
            MEASURED: _measured(row),
        }
        for row in sorted(answer["kernels"], key=lambda row: -abs(row["ms_per_step_to"] - row["ms_per_step_from"]))
        if row["from"] != row["to"] or row["ms_per_step_from"] != row["ms_per_step_to"]
    ]
    settings = [{"setting": row["name"], "before": row["from"], "after": row["to"]} for row in answer["settings"]]
    drawn = [
        {"what": f"{row['family']}, {row['step']}", "when": when, "ms": row[f"ms {when}"]}
        for row in kernels[:MOST_SHOWN]
        for when in ("before", "after")
    ]
    return Page(
        f"{answer['from']} to {answer['to']}",
        answer,
        figures=lambda: [figures_of("changes")["Kernels before and after"]._replace(rows=drawn)],
        sentences=[answer["answer"], *(f"Beyond its limit: {sentence}." for sentence in answer["failed"])],
        tables=[
            Table("Metrics, and the 90 % interval of the change", metrics, expendable=EXPENDABLE, first=True),
            Table("Kernels that change, in a step", kernels, expendable=EXPENDABLE, most=MOST_SHOWN),
            Table("Settings that change", settings),
            Table("Flags that undo what is slower", answer["flags"]),
        ],
    )


def _measured(row: Mapping[str, Any]) -> str:
    """Return in which versions the kernels before and after were measured on this GPU: as asked, others, or in none."""
    words = [
        "yes" if row[f"measured_{end}"] else f"in {row[f'sweep_{end}']}" if row[f"sweep_{end}"] else "no"
        for end in ("from", "to")
    ]
    return words[0] if words[0] == words[1] else f"{words[0]}; after: {words[1]}"
