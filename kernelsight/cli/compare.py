"""`kernelsight compare`: replays a production log, and prints how far and why prediction and measurement differ."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from kernelsight.cli.command_line import asked
from kernelsight.cli.options import deployment_flags, launch_line, open_session
from kernelsight.errors import InvalidInput
from kernelsight.number_format import deviation, interval, number, percent, rounded
from kernelsight.present.output import (
    Waiting,
    as_csv,
    as_json,
    check_ending,
    note,
    print_notes,
    print_page,
    table_lines,
    terminal_width,
    write_table,
)

FORMATS = (
    *("auto", "vllm-bench", "sglang-bench", "sglang-requests", "guidellm", "aiperf", "inference-perf", "litellm"),
    *("otlp", "blis", "measured-runs", "table"),
)
METRICS = ("ttft", "tpot", "e2e")
# by key of the answer of another kind of comparison: its table
BY_KEY = {"stages": "stage_vs_prediction", "changes": "log_changes"}
MOST_SHOWN = 8
# names of changes, where the column's name with spaces would not do
WORDS = {
    **{"e2e_ms": "mean E2E", "ttft_at_the_same_load": "TTFT at the same load"},
    **{"power_w": "power", "energy_per_output_token_j": "energy per output token"},
}


def run(arguments: Any) -> None:
    """Compare the log with its replay, or watch it; print the comparison, and write tables or corrections."""
    target = check_ending(arguments.output)
    flags = deployment_flags(arguments)
    line = launch_line(arguments, flags)
    if arguments.watch is not None:
        print_notes()  # now, because its output continues until it is ended
        watch_log(arguments, flags | ({"launch": arguments.launch} if line else {}))
        return
    if watch_options := [name for name in ("metrics_out", "history", "state") if getattr(arguments, name) is not None]:
        raise InvalidInput(f"--{watch_options[0].replace('_', '-')} is of a watch; give --watch SECONDS too.")
    with open_session(arguments) as session:
        question = asked(arguments, "comparisons")
        question |= {"columns": _columns(arguments.columns), "stated": _described_load(arguments.stated)}
        comparison = session.compare(deployment=flags | ({"launch": arguments.launch} if line else {}), **question)
        with Waiting("comparing"):
            answer = comparison.summary
        if arguments.format == "json":
            print(as_json(answer | ({"launch": line.as_dict()} if line else {})))
        elif arguments.format == "csv":
            rows = comparison.table(next((name for key, name in BY_KEY.items() if key in answer), "miss_by_part"))
            print(as_csv(rows.to_pylist(), rows.column_names), end="")
        else:
            print_page(_page(answer))
        if target and target.suffix == ".duckdb":
            comparison.save(target)
        elif target and target.suffix == ".parquet" and "stages" in answer:
            write_table(comparison.table("stage_corrections"), target)
        elif target and (names := [name for key, name in BY_KEY.items() if key in answer]):
            write_table(comparison.table(names[0]), target)
        elif target and target.suffix == ".parquet":
            corrections = comparison.table("fitted_corrections")
            write_table(corrections, target)
            if not corrections.num_rows:
                note(f"{target} is empty: no correction beats one factor per metric on later time")
        elif target:
            write_table(comparison.table("prediction_vs_production"), target)


def watch_log(arguments: Any, flags: dict[str, Any]) -> None:
    """Compare a growing log or a server's metrics with a deployment until the program is ended."""
    from kernelsight.comparison.watch import Targets, Watch
    from kernelsight.files.bounded_http import check_address
    from kernelsight.present.watch_windows import as_line_of_json, window_lines
    from kernelsight.scenario.launch.lines import with_launch_line

    if len(arguments.log) != 1 or arguments.baseline or arguments.output:
        raise InvalidInput("--watch compares one --log FILE or address, without --baseline and -o; see --history.")
    (source,) = arguments.log
    if "://" in source:
        check_address("--log", source)
    paths = {name: getattr(arguments, name) for name in ("state", "history")} | {"metrics": arguments.metrics_out}
    targets = Targets(**{name: Path(path) if path else None for name, path in paths.items()})
    with open_session(arguments) as session:
        how = {"log_format": arguments.log_format, "columns": _columns(arguments.columns)}
        watch = Watch(source, with_launch_line(flags), session, session.compare, targets, **how)
        with watch.locked_state():
            while True:
                for window in watch.poll():
                    lines = [as_line_of_json(window)] if arguments.format == "json" else window_lines(window)
                    print_page(lines)
                    sys.stdout.flush()
                time.sleep(arguments.watch)


def _columns(words: list[str] | None) -> dict[str, str] | None:
    for word in words or []:
        if "=" not in word:
            raise InvalidInput(f"--columns {word!r} is not valid; give OURS=THEIRS, such as ttft_ms=first_token_ms.")
    return dict(word.split("=", 1) for word in words) if words else None


def _described_load(text: str | None) -> dict[str, Any] | None:
    """Return the load flags in the text of --stated."""
    if text is None:
        return None
    from kernelsight.cli.command_line import add_flags
    from kernelsight.files.redaction import redacted_words
    from kernelsight.scenario.flags import LENGTHS, LOAD, LOAD_FLAGS

    reader = argparse.ArgumentParser(prog="--stated", add_help=False, exit_on_error=False)
    add_flags(reader, (*LOAD, *LENGTHS))
    try:
        load_arguments, unknown_words = reader.parse_known_args(redacted_words(shlex.split(text)))
    except (argparse.ArgumentError, ValueError) as error:
        raise InvalidInput(f"--stated cannot be read: {error}.") from None
    if unknown_words:
        raise InvalidInput(
            f"--stated has {unknown_words[0]!r}, which is no flag of a load; `simulate --help` lists them."
        )
    return {name: value for name in LOAD_FLAGS if (value := getattr(load_arguments, name, None)) is not None}


def _page(answer: dict[str, Any]) -> list[str]:
    """Return the lines of a comparison for a terminal: verdict, errors, parts, suspects, corrections."""
    page = [answer["verdict"][0].upper() + answer["verdict"][1:], ""]
    page.append(f"{answer['requests']:,} requests compared")
    for row in answer["dropped"]:
        first = f", first {row['example']}" if row["example"] and row["rows"] != "noted" else ""
        page.append(f"  {row['rows']}: {row['n']:,} x {row['reason']}{first}")
    page += _files(answer["files"])
    if answer.get("cached_tokens"):
        measured, predicted = (answer["cached_tokens"][name] for name in ("measured", "predicted"))
        page.append(f"cached tokens: {measured:,} reported, {predicted:,} predicted")
    if "changes" in answer:
        return page + _changes(answer)
    rows = [{"": name.upper(), **answer[f"{name}_ms"]} for name in METRICS if answer[f"{name}_ms"]["n"]]
    shown = [
        {
            "": row[""],
            "measured (ms)": row["measured"],
            "predicted (ms)": row["predicted"],
            "median error": percent(row["median_ape"], 1),
            "bias": deviation(row["bias"]),
            "within 90 % interval": percent(row["coverage_90"], 1),
        }
        for row in rows
    ]
    if shown:
        page += ["", *table_lines(shown, list(shown[0]), terminal_width())]
    if "stages" in answer:
        return [*page, *_stages(answer)]
    page += _power(answer["power_w"])
    page += _percentiles(answer["percentiles"])
    miss_rows = [row for row in answer["parts"] if abs(row["miss_ms"]) >= 0.005][:MOST_SHOWN]
    if miss_rows:
        part_rows = [{"part of the E2E miss": row["part"], "ms a request": row["miss_ms"]} for row in miss_rows]
        page += ["", *table_lines(part_rows, list(part_rows[0]), terminal_width())]
    if sentences := answer["not_separated"] + _evidence(answer["evidence"]):
        page += ["", *sentences]
    if answer["suspects"]:
        columns = ["setting", "stated", "value", "gain", "evidence"]
        page += ["", *table_lines(answer["suspects"][:MOST_SHOWN], columns, terminal_width())]
    if answer["fit"]:
        page += ["", f"median error on the last {answer['fit']['held_out']:,} requests"]
        table = [
            {"": name.replace("_", " ")}
            | {metric.upper(): percent(answer["fit"][name][metric]["median_ape"], 1) for metric in METRICS}
            for name in ("uncorrected", "one_factor", "corrected")
        ]
        page += table_lines(table, list(table[0]), terminal_width())
    return page


def _power(power: dict[str, Any]) -> list[str]:
    """Return a line on measured and predicted power of the GPUs."""
    if not power:
        return []
    error = "" if power["error"] is None else f", {deviation(power['error'])}"
    measured = f"{number(power['measured'])} W measured over {rounded(power['seconds'])} s"
    predicted = f"{number(power['predicted'])} W predicted (90 %: {interval(power['low'], power['high'])} W)"
    return ["", f"power of GPUs: {measured}, {predicted}{error}"]


def _changes(answer: dict[str, Any]) -> list[str]:
    """Return the lines on changes since the earlier log: latencies, then load, speed and settings."""
    page = [f"{answer['baseline']['requests']:,} requests of the earlier log"]
    page += _percentiles(answer["percentiles"], "ms, now / before")
    shown = [
        {
            "what changed": WORDS.get(row["what"], row["what"].replace("_", " ")),
            "unit": row["unit"] or "",
            "before": _shown(row["before"], row["before_word"]),
            "now": _shown(row["after"], row["after_word"]),
            "factor": number(row["factor"], missing="-"),
            "beyond chance": "yes" if row["certain"] else "no",
        }
        for row in answer["changes"]
    ]
    return [*page, "", *table_lines(shown, list(shown[0]), terminal_width())]


def _shown(value: float | None, word: str | None) -> str:
    return word if word is not None else number(value, missing="-")


def _percentiles(percentiles: dict[str, Any], title: str = "ms, measured / predicted") -> list[str]:
    """Return a table of the percentiles of each metric, measured / predicted."""
    rows = [
        {title: metric.removesuffix("_ms").upper()}
        | {
            name: f"{number(pair['measured'], missing='-')} / {number(pair['predicted'], missing='-')}"
            for name, pair in pairs.items()
        }
        for metric, pairs in percentiles.items()
    ]
    return ["", *table_lines(rows, list(rows[0]), terminal_width())] if rows else []


def _evidence(evidence: dict[str, Any]) -> list[str]:
    """Return sentences on the evidence for factors besides requests, and on evidence that could not be used."""
    counts = [f"{evidence[name]:,} {noun}" for name, noun in (("steps", "engine steps"), ("kernels", "kernel times"))
              if evidence.get(name)]  # fmt: skip
    sentences = [f"causes and factors rest on {' and '.join(counts)} of the log too"] if counts else []
    return sentences + evidence.get("not_used", [])


def _files(rows: list[dict[str, Any]]) -> list[str]:
    """Return the role and format of each file of a folder, and the files that were not read, with the reason."""
    in_folders = [row for row in rows if row["folder"]]
    read = [row for row in in_folders if row["role"]]
    unread = [f"{Path(row['path']).name} ({row['not_read']})" for row in in_folders if not row["role"]]
    page = [f"  {row['role']}: {Path(row['path']).name} ({row['format']})" for row in read]
    return page + ([f"  not read: {len(unread):,} x {', '.join(unread)}"] if unread else [])


def _stages(answer: dict[str, Any]) -> list[str]:
    """Return the means of each stage as a table, and the findings on them."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in answer["stages"]:
        if row["statistic"] == "mean":
            stage_row = rows.setdefault((row["log_id"], row["part"]), {"stage": row["part"]})
            stage_row["loop"] = "open" if row["open_loop"] else "full"
            name = "req/s" if row["metric"] == "request_throughput" else f"{row['metric'].split('_')[0].upper()} (ms)"
            stage_row[name] = f"{number(row['measured'])} / {number(row['predicted'])}  {deviation(row['error'])}"
    columns = list(dict.fromkeys(name for stage_row in rows.values() for name in stage_row))
    table = table_lines(list(rows.values()), columns, terminal_width())
    hint = "-o FILE.parquet writes corrections for the deployment's other loads, bounded, from these means"
    return ["", "means of each stage, measured / predicted, and the error:", *table, "", *answer["findings"], hint]
