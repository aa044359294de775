"""`kernelsight search evaluate`: replays searches on every GPU of a file, and scores the search policies."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from typing import Any

from kernelsight.errors import InvalidInput
from kernelsight.number_format import number, percent

SHOWN = (
    *("space", "gpu", "policy", "runs", "within_5", "within_2", "n_to_5", "n_to_2"),
    *("regret_10", "regret_20", "regret_50", "regret_100", "score"),
)


def run(arguments: argparse.Namespace) -> None:
    """Replay the searches, and print the report as JSON or its scores as a table or CSV."""
    import pyarrow as pa

    from kernelsight.caches.durable import locked
    from kernelsight.caches.journal import journal_path
    from kernelsight.laboratory.searches.evaluate import SPLITS, evaluate
    from kernelsight.present.output import as_json, check_ending, note, print_rows, write_table, write_text
    from kernelsight.present.progress import Waiting
    from kernelsight.searching.space_files import read_spaces

    target = check_ending(arguments.output, (".json", ".csv", ".parquet"))
    if arguments.resume and target is None:
        raise InvalidInput("--resume needs -o FILE, beside which the journal of the evaluation lies.")
    splits = _words(arguments.splits, "--splits")
    unknown_splits = [name for name in splits if name not in SPLITS]
    if unknown_splits:
        raise InvalidInput(f"--splits has {unknown_splits[0]!r}; use {' or '.join(SPLITS)}.")
    gpus, policies = _words(arguments.gpus, "--gpus"), _words(arguments.policies, "--policies")
    journal = None if target is None else journal_path(target)
    with Waiting("replaying searches"), nullcontext() if target is None else locked(target):
        tables = read_spaces(arguments.space)
        options = (arguments.seeds, arguments.budget, arguments.batch, splits, journal, arguments.resume)
        report = evaluate(tables, gpus, policies, *options)
    rows = [{"space": "all", "gpu": "all"} | row for row in report["policies"]] + report["spaces"]
    if arguments.format == "json":
        print(as_json(report))
    else:
        print_rows(rows, _shown(arguments), arguments.format)
        for line in _sentences(report):
            note(line)
    if target and target.suffix == ".json":
        write_text(as_json(report) + "\n", target)
    elif target:
        write_table(pa.Table.from_pylist([{name: row.get(name) for name in SHOWN} for row in rows]), target)
    if journal:
        journal.unlink()


def _shown(arguments: argparse.Namespace) -> list[str]:
    """Return the columns to print; a table has no regret beyond the budget of measurements."""
    beyond = {f"regret_{n}" for n in (20, 50, 100) if n > arguments.budget} if arguments.format == "table" else set()
    return [name for name in SHOWN if name not in beyond]


def _words(text: str, flag: str) -> list[str]:
    words = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise InvalidInput(f"{flag} is empty; name at least one.")
    return words


def _sentences(report: dict[str, Any]) -> list[str]:
    lines = [
        f"after {count} measurements 90 % intervals cover {percent(row['coverage_90'])} of the other candidates, "
        f"calibration error of the speed-up bins {number(row['ece'], 2)}"
        for count, row in report["calibration"].items()
    ]
    stops = report["stops"]
    if stops["n"]:
        lines.append(
            f"{stops['n']} searches found nothing left to gain after {number(stops['median_measurements'])} "
            f"measurements (median); {percent(stops['within_2'])} of them were within 2 % of the optimum"
        )
    for row in report.get("without_nearest", {}).get("policies", ()):
        lines.append(
            f"without the most similar GPU, {row['policy']}: {percent(row['within_2'])} of the searches within 2 % at "
            "the end of the budget"
        )
    return lines + report["notes"]
