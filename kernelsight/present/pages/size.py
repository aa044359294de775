"""The page of a sizing: answer, deployments, hours of the day, evidence and launch command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.present.figures.files import figures_of
from kernelsight.present.page import Figure, Page, Rows, Table
from kernelsight.present.pages.evidence import evidence_table
from kernelsight.scenario import flags

UNITS = {"cost_per_day": "$ a day", "price_per_hour": "$ an hour", "gpus": "GPUs"}
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
    costs, the_day = figures_of("size").values()
    encoding = costs.spec["encoding"]
    spec = costs.spec | {"encoding": encoding | {"x": encoding["x"] | {"title": UNITS[name]}}}
    note = f"{len(rows) - SHOWN:,} more deployments are in the table." if len(rows) > SHOWN else ""
    figures = [costs._replace(note=note, spec=spec, rows=values)]
    if day:
        note = f"Bars: instances; line: {day['unit']} asked for. {day['startup'][0].upper()}{day['startup'][1:]}."
        figures.append(the_day._replace(note=note, rows=day["hours"]))
    return figures


def _sureness(probability: float | None) -> str:
    """Return the class of a probability that all objectives hold, as the figure names it; None: it was not computed."""
    if probability is None:
        return "not asked"
    return "90 % or more" if probability >= 0.9 else "50 to 90 %" if probability >= 0.5 else "below 50 %"


MOST_SHOWN = 20
# flags that may be unset in a row: the engine's default
LIMITS_OF_ENGINE = tuple(flag.name for group in (flags.DEPLOYMENT, flags.LIMITS, flags.POLICIES) for flag in group)
# columns that a narrow terminal omits, in this order
EXPENDABLE = ("search", "if fast", "high", "low", "mean inst.", "GPUs", "load", "tier", "if slow", "$/h")


def size_page(answer: Mapping[str, Any], heads: Mapping[str, str]) -> Page:
    """Return the page of a sizing.

    ``answer``: as printed by `size --format json`; ``heads``: columns of the table of deployments with their heads.
    """
    chosen, rows, day = answer["chosen"], answer["rows"], answer["day"]
    unset = dict.fromkeys(LIMITS_OF_ENGINE, "default") | {"data_parallel_size": 1}
    shown = [
        {head: unset.get(name) if row.get(name) is None else row[name] for name, head in heads.items()} for row in rows
    ]
    not_measured: dict[str, str] = {}
    for row in rows:
        if row["not_measured"]:
            not_measured.setdefault(row["gpu"], row["not_measured"])
    counts = Counter(answer["launch"])
    launch = [
        f"{counts[command]} × {line}" if counts[command] > 1 and not number else line
        for command in counts
        for number, line in enumerate(command.split("\n"))
    ]
    reasons = Counter(_kind(row["reason"]) for row in answer["left_out"])
    left_out = [
        {"gpu": row["gpu"], "TP": row["tensor_parallel_size"], "why": row["reason"]} for row in answer["left_out"]
    ]
    return Page(
        f"{chosen['gpus']} × {chosen['gpu']}" if chosen else "No deployment keeps the objectives",
        answer,
        sentences=[sentence for sentence in (answer["answer"], answer["decides"]) if sentence],
        figures=lambda: size_figures(rows, day) if rows else (),
        tables=[
            Table(rows=shown, expendable=EXPENDABLE, most=MOST_SHOWN, more="more; -o FILE keeps all", first=True),
            Table(rows=_day_rows(day) if day else ()),
            Table("what if:", _changed_rows(answer)) if answer.get("what_if") else Table(),
            Table("not measured:" if rows else "", lines=[f"  {gpu}: {text}" for gpu, text in not_measured.items()]),
        ],
        evidence=[
            evidence_table(answer["evidence"] if rows else (), "the cheapest rests on:"),
            Table("Left out", left_out, below=left_out_sentence(reasons) if reasons else "", most=0),
        ],
        repeat=["one instance:", *launch] if launch else (),
    )


def _changed_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the first deployment of the question and of each of its changes."""
    asked = [{"change": "as asked", "rows": answer["rows"]}, *answer.get("what_if", ())]
    names = {"GPUs": "gpus", "gpu": "gpu", "TP": "tensor_parallel_size", "inst.": "instances", "$/h": "price_per_hour"}
    names |= {"prefill": "prefill_replicas", "decode": "decode_replicas", "sure": "probability"}
    best = [(one["change"], one["rows"][0] if one["rows"] else {}) for one in asked]
    shown = [head for head, name in names.items() if any(row.get(name) is not None for _, row in best)]
    return [{"change": change} | {head: row.get(names[head]) for head in shown} for change, row in best]


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
