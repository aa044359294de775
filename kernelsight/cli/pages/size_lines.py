"""The terminal page of `kernelsight size`: answer, deployments, hours of the day, evidence and launch command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelsight.cli.pages.formats_line import evidence_lines
from kernelsight.present.output import fitting_lines, table_lines, terminal_width
from kernelsight.scenario import flags

if TYPE_CHECKING:
    from kernelsight.sizing.answer import Sizing

MOST_SHOWN = 20
# flags that may be unset in a row: the engine's default
LIMITS_OF_ENGINE = tuple(flag.name for group in (flags.DEPLOYMENT, flags.LIMITS, flags.POLICIES) for flag in group)
# columns that a narrow terminal omits, in this order
EXPENDABLE = ("search", "if fast", "high", "low", "mean inst.", "GPUs", "load", "tier", "if slow", "$/h")


def size_lines(sizing: Sizing) -> list[str]:
    """Return the lines of a sizing for a terminal."""
    page = [sizing.answer]
    if sizing.decides:
        page.append(sizing.decides)
    if sizing.rows:
        page += ["", *_deployments(sizing.rows)]
        if sizing.day:
            page += ["", *table_lines(rows := _day_rows(sizing.day), list(rows[0]), terminal_width())]
        page += ["", "not measured:"]
        page += [f"  {gpu}: {text}" for gpu, text in _not_measured(sizing.rows).items()]
        page += ["", "the cheapest rests on:", *evidence_lines(sizing.evidence)]
        page += ["", "one instance:", *(line for command in sizing.launch for line in command.split("\n"))]
    reasons: dict[str, int] = {}
    for row in sizing.left_out:
        reasons[_kind(row["reason"])] = reasons.get(_kind(row["reason"]), 0) + 1
    return page + (["", left_out_sentence(reasons)] if reasons else [])


def _deployments(rows: list[dict[str, Any]]) -> list[str]:
    """Return the cheapest deployments as a table."""
    from kernelsight.sizing.answer import SHORT, columns_shown

    columns = columns_shown(rows)
    unset = dict.fromkeys(LIMITS_OF_ENGINE, "default") | {"data_parallel_size": 1}
    shown = [
        {SHORT.get(name, name): unset.get(name) if row.get(name) is None else row[name] for name in columns}
        for row in rows[:MOST_SHOWN]
    ]
    more = [f"... and {len(rows) - MOST_SHOWN:,} more; -o FILE keeps all"] if len(rows) > MOST_SHOWN else []
    return [*fitting_lines(shown, list(shown[0]), terminal_width(), EXPENDABLE), *more]


def _day_rows(day: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the hours of a day as rows; consecutive hours with the same number of instances are one row."""
    day_rows: list[dict[str, Any]] = []
    for hour in day["hours"]:
        span = day_rows[-1] if day_rows else None
        if span and span["inst."] == hour["instances"]:
            span["last"], span["most"] = hour["hour"], max(span["most"], hour["asked"])
        else:
            price = hour["price_per_hour"]
            day_rows.append(
                {
                    **{"first": hour["hour"], "last": hour["hour"], "most": hour["asked"]},
                    **{"inst.": hour["instances"], "started": hour["started"], "GPUs": hour["gpus"]},
                    **({} if price is None else {"$/h": price}),
                }
            )
    return [
        {
            "hours": f"{row.pop('first')}-{row.pop('last') + 1}",
            f"most {day['unit']}": row.pop("most"),
            **row,
        }
        for row in day_rows
    ]


def _not_measured(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return, by GPU, the sentence on kernels that were not measured."""
    by_gpu: dict[str, str] = {}
    for row in rows:
        if row["not_measured"]:
            by_gpu.setdefault(row["gpu"], row["not_measured"])
    return by_gpu


def left_out_sentence(reasons: Mapping[str, int]) -> str:
    """Return a sentence on deployments that are not in the table; ``reasons``: their number by reason.

    >>> left_out_sentence({"cannot be cheaper": 14, "do not fit or cannot run": 1})
    'Not listed: 14 configurations that cannot be cheaper, 1 that do not fit or cannot run; --format json lists them.'
    """
    first_count, *other_counts = (f"{count} {{}}that {why}" for why, count in reasons.items())
    counts = ", ".join([first_count.format("configurations "), *(count_text.format("") for count_text in other_counts)])
    return f"Not listed: {counts}; --format json lists them."


def _kind(reason: str) -> str:
    """Return the short form of the reason why a deployment is left out."""
    not_cheaper = "cannot be cheaper"
    phrases = {
        **dict.fromkeys(("bounds", "it does not reach", "it costs more", "it is no cheaper"), not_cheaper),
        "it keeps no lower": "are no better than with the engine's own sizes",
        "it may be cheaper": "may be cheaper, and were not looked at again",
        "no rate keeps": "keep the objectives at no rate",
    }
    return next((text for start, text in phrases.items() if reason.startswith(start)), "do not fit or cannot run")
