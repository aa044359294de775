"""The page of a sizing: answer, deployments, hours of the day, evidence and launch command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.catalog.gpu_names import find_gpu
from kernelsight.files.numbers import read_number
from kernelsight.number_format import number, percent
from kernelsight.present.figures.files import figures_of
from kernelsight.present.page import Figure, Page, Rows, Table
from kernelsight.present.pages.evidence import evidence_table
from kernelsight.present.scatter import front_lines
from kernelsight.scenario import flags
from kernelsight.scenario.objectives import objectives_of, slo_of

UNITS = {"cost_per_day": "$ a day", "price_per_hour": "$ an hour", "gpus": "GPUs"}


def size_figures(by_confidence: Rows, day: Mapping[str, Any] | None) -> Sequence[Figure]:
    """Return the cost against the confidence, or the GPUs without prices, and the hours of a day."""
    name = _cost_of(by_confidence)
    costs, the_day = figures_of("size").values()
    encoding = costs.spec["encoding"]
    spec = costs.spec | {"encoding": encoding | {"y": encoding["y"] | {"title": UNITS[name]}}}
    figures = [costs._replace(spec=spec, rows=[row | {"weight": row[name]} for row in by_confidence])]
    if day:
        note = f"Bars: instances; line: {day['unit']} asked for. {day['startup'][0].upper()}{day['startup'][1:]}."
        figures.append(the_day._replace(note=note, rows=day["hours"]))
    return figures


def _cost_of(rows: Rows) -> str:
    return next((name for name in UNITS if rows[0].get(name) is not None), "gpus")


def _front_lines(rows: Rows, question: Mapping[str, Any]) -> list[str]:
    """Return the front of cost and the latency of the first objective; none where the cheapest has the least of both.

    ``rows``: the cheapest first.
    """
    latency, front = objectives_of(slo_of(question["slo"]))[0], []
    for row in rows:
        if row.get(latency.column) is not None and (not front or row[latency.column] < front[-1][latency.column]):
            front.append(row)
    if len(front) < 2:
        return []
    cost = _cost_of(rows)
    return front_lines(rows, front, {latency.column: f"{latency.column} at the highest rate", cost: UNITS[cost]})


MOST_SHOWN = 20
# columns in which deployments differ, and their costs
NAMED = (
    *"gpus gpu tensor_parallel_size data_parallel_size prefill_replicas decode_replicas".split(),
    *("max_num_batched_tokens", "instances", "served", "price_per_hour", "cost_per_day", "probability"),
)
# flags that may be unset in a row: the engine's default
LIMITS_OF_ENGINE = tuple(flag.name for group in (flags.DEPLOYMENT, flags.LIMITS, flags.POLICIES) for flag in group)
# columns that a narrow terminal omits, in this order
EXPENDABLE = ("search", "if fast", "high", "low", "mean inst.", "GPUs", "load", "tier", "if slow", "$/h")


def size_page(answer: Mapping[str, Any], columns: Sequence[str], short: Mapping[str, str]) -> Page:
    """Return the page of a sizing.

    ``answer``: as printed by `size --format json`; ``columns``: of its table; ``short``: heads of columns.
    """
    chosen, rows, day = answer["chosen"], answer["rows"], answer["day"]
    unset = dict.fromkeys(LIMITS_OF_ENGINE, "default") | {"data_parallel_size": 1}
    shown = [
        {short.get(name, name): unset.get(name) if row.get(name) is None else row[name] for name in columns}
        for row in rows
    ]
    not_measured = {row["gpu"]: row["not_measured"] for row in reversed(rows) if row["not_measured"]}
    not_measured = dict(reversed(not_measured.items()))
    counts = Counter(answer["launch"])
    launch = [
        f"{counts[command]} × {line}" if counts[command] > 1 and not place else line
        for command in counts
        for place, line in enumerate(command.split("\n"))
    ]
    reasons = Counter(_kind(row["reason"]) for row in answer["left_out"])
    left_out = [
        {"gpu": row["gpu"], "TP": row["tensor_parallel_size"], "why": row["reason"]} for row in answer["left_out"]
    ]
    by_confidence = [{**rows[row["place"] - 1], **row} for row in answer["confidences"]]
    # of confidences with the same answer the highest
    steps = {(row["place"], row["instances"], row["served"]): row for row in by_confidence}
    hidden = {"probability": None} | ({} if answer["question"].get("total_gpus") else {"served": None})
    what_if = [{"change": "as asked", "rows": rows}, *answer.get("what_if", ())]
    first_rows = {one["change"]: one["rows"][0] if one["rows"] else {} for one in what_if}
    return Page(
        f"{chosen['gpus']} × {chosen['gpu']}" if chosen else "No deployment keeps the objectives",
        answer,
        asked=asked_lines(answer["question"], answer["axes"], short),
        sentences=[answer["answer"]],
        figures=lambda: size_figures(by_confidence, day) if by_confidence else (),
        tables=[
            Table(rows=shown, expendable=EXPENDABLE, most=MOST_SHOWN, more="more; -o FILE keeps all", first=True),
            Table(
                "cost against confidence:",
                _named("up to", {percent(row["confidence"]): row | hidden for row in steps.values()}, short),
                drawn=True,
            ),
            Table("cost against latency:", lines=_front_lines(rows, answer["question"])),
            Table(rows=_day_rows(day) if day else ()),
            Table("not measured:" if rows else "", lines=[f"  {gpu}: {text}" for gpu, text in not_measured.items()]),
        ],
        evidence=[
            evidence_table(answer["evidence"] if rows else (), "the cheapest rests on:"),
            Table(
                "what would change it:",
                _named("change", first_rows, short) if len(first_rows) > 1 else (),
                lines=[f"  {sentence}" for sentence in (answer["decides"], answer["cliff"]) if sentence],
            ),
            Table("Left out", left_out, below=left_out_sentence(reasons) if reasons else "", most=0),
        ],
        repeat=["one instance:", *launch] if launch else (),
    )


def asked_lines(question: Mapping[str, Any], axes: Mapping[str, Sequence[str]], short: Mapping[str, str]) -> list[str]:
    """Return the lines on the question: model, load, objectives, confidence and prices; and on what is searched."""
    flags_set = dict(question["flags"])
    model, *lengths = (flags_set.pop(name, None) for name in ("model", "input_len", "output_len"))
    rate, users, total = (question.get(name) for name in ("rate", "users", "total_gpus"))
    unit = "users" if users else "conversations/s" if question["flags"].get("num_turns", 1) > 1 else "requests/s"
    amounts = {unit: users or rate, "GPUs": total}
    load = next(
        (f"{number(value)} {unit}" for unit, value in amounts.items() if value is not None), "the hours of a day"
    )
    if question.get("hours"):
        load = f"{number(min(question['hours']))} to {number(max(question['hours']))} {unit}"
        load += f" over the day ({question['hours_from'] or 'the stated hours'})"
    words = [f"{name} {number(value)}" for name, value in flags_set.items() if name != "launch"]
    if None not in lengths:
        words.insert(0, "{:,} prompt and {:,} output tokens".format(*lengths))
    if question["peak"] > 1.0:
        words.append(f"peak {number(question['peak'])}")
    goals = " and ".join(map(str, objectives_of(slo_of(question["slo"]))))
    prices = {row["gpu"]: row["price_per_gpu_hour"] for row in question.get("prices") or ()}
    names = [(gpu, gpu if gpu in prices else getattr(find_gpu(gpu), "gpu", gpu)) for gpu in question["gpus"]]
    costs = ", ".join(f"{gpu} {number(prices[name], 3)} $/h" if name in prices else gpu for gpu, name in names)
    costs += "" if prices else ", without prices"
    values_of = {name: [number(read_number(value)) for value in values] for name, values in axes.items()}
    searched = (f"{short.get(name, name)} {', '.join(values)}" for name, values in values_of.items() if name != "gpu")
    return [
        f"asked: {model or 'the launched model'}, {load}; {', '.join(words)}",
        f"       {goals} with {percent(question['confidence'])} probability; {costs}",
        f"searched: {'; '.join(searched)}",
    ]


def _named(head: str, rows: Mapping[str, Mapping[str, Any]], short: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return rows of deployments by name with the columns in which they differ, and their costs."""
    shown = [name for name in NAMED if any(row.get(name) is not None for row in rows.values())]
    return [
        {head: name} | {short.get(column, column): row.get(column) for column in shown} for name, row in rows.items()
    ]


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
    first, *others = reasons.items()
    counted = [f"{first[1]} configuration{'s' * (first[1] != 1)} that {first[0]}"]
    counted += [f"{count} that {why}" for why, count in others]
    return f"Not listed: {', '.join(counted)}; --format json lists them."


def _kind(reason: str) -> str:
    """Return the short form of the reason why a deployment is left out."""
    phrases = {
        **dict.fromkeys(("bounds", "it does not reach"), "cannot be cheaper"),
        "it may be cheaper": "may be cheaper, and were not looked at again",
        "no rate keeps": "keep the objectives at no rate",
    }
    return next((text for start, text in phrases.items() if reason.startswith(start)), "do not fit or cannot run")
