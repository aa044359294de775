"""`kernelsight compare`: replays a production log, and prints how far and why prediction and measurement differ."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from kernelsight.cli.options import add_deployment, add_output, deployment_flags, launch_line, open_session
from kernelsight.errors import InvalidInput
from kernelsight.present.output import PAGE_ENDINGS, Waiting, check_ending, note, print_notes, print_page, write_table
from kernelsight.present.show import HTML, show

FORMATS = (
    *("auto", "vllm-bench", "sglang-bench", "sglang-requests", "guidellm", "aiperf", "inference-perf", "litellm"),
    *("otlp", "blis", "measured-runs", "table"),
)
# by key of the answer of another kind of comparison: its table
BY_KEY = {"stages": "stage_vs_prediction", "changes": "log_changes"}


def declare(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    log = verb.add_argument_group("log")
    log.add_argument(
        "--log",
        nargs="+",
        metavar="FILE",
        required=True,
        help="requests: of a benchmark client or server; a folder: all of its files, each as what it is",
    )
    log.add_argument(
        "--baseline",
        nargs="+",
        metavar="FILE",
        help="an earlier log, of the same form: what changed since; on a deployment, or without --model and --gpu",
    )
    log.add_argument("--log-format", choices=FORMATS, default="auto", help="format of --log (default: by its fields)")
    log.add_argument(
        "--columns", nargs="+", metavar="OURS=THEIRS", help="column names of a plain table, such as ttft_ms=first[s]"
    )
    log.add_argument("--steps", nargs="+", default=(), metavar="FILE", help="engine steps: FPM, vLLM iteration log")
    log.add_argument(
        "--metrics",
        nargs="+",
        default=(),
        metavar="FILE",
        help="Prometheus: API JSON, or two text dumps, of the server or of GPUs (DCGM); a CSV of power",
    )
    log.add_argument(
        "--kernels",
        nargs="+",
        default=(),
        metavar="FILE",
        help="kernels: vllm bench forward, Chrome trace, nsys sqlite",
    )
    how = verb.add_argument_group("comparison")
    how.add_argument(
        "--stated", metavar="FLAGS", help='the load as described, such as "--request-rate 4 --input-len 1k"'
    )
    how.add_argument("--fit", choices=("none", "host", "parts"), default="parts", help="what may be corrected")
    how.add_argument(
        "--hold-out",
        type=float,
        default=0.3,
        metavar="SHARE",
        help="last share of the time, to score on (default: 0.3)",
    )
    how.add_argument("--suspects", choices=("all", "none"), default="all", help="try settings that may differ")
    watch = verb.add_argument_group("watch")
    watch.add_argument(
        "--watch",
        type=float,
        metavar="SECONDS",
        help="go on: compare what is appended to --log, or what its address (/metrics) answers, so often",
    )
    watch.add_argument("--metrics-out", metavar="FILE", help="write expected beside measured times for Prometheus")
    watch.add_argument("--history", metavar="FOLDER", help="write a Parquet file for each window")
    watch.add_argument("--state", metavar="FILE", help="keep the state here, so that a restart goes on")
    add_deployment(verb)
    add_output(
        verb,
        "also save all tables (.duckdb), the page (.html), requests (.csv, .json), or corrections (.parquet)",
    )


def run(arguments: Any) -> None:
    """Compare the log with its replay, or watch it; print the comparison, and write tables or corrections."""
    target = check_ending(arguments.output, PAGE_ENDINGS)
    flags = deployment_flags(arguments)
    line = launch_line(arguments, flags)
    if arguments.watch is not None:
        print_notes()  # now, because its output continues until it is ended
        watch_log(arguments, flags | ({"launch": arguments.launch} if line else {}))
        return
    if watch_options := [name for name in ("metrics_out", "history", "state") if getattr(arguments, name) is not None]:
        raise InvalidInput(f"--{watch_options[0].replace('_', '-')} is of a watch; give --watch SECONDS too.")
    with open_session(arguments) as session:
        comparison = session.compare(
            deployment=flags | ({"launch": arguments.launch} if line else {}),
            log=arguments.log,
            baseline=arguments.baseline,
            log_format=arguments.log_format,
            columns=_columns(arguments.columns),
            steps=arguments.steps,
            metrics=arguments.metrics,
            kernels=arguments.kernels,
            stated=_described_load(arguments.stated),
            fit=arguments.fit,
            hold_out=arguments.hold_out,
            suspects=arguments.suspects,
        )
        with Waiting("comparing"):
            answer = comparison.summary
        page = comparison.page()
        page = page._replace(answer=answer | ({"launch": line.as_dict()} if line else {}))
        table = next((name for key, name in BY_KEY.items() if key in answer), "miss_by_part")
        rows = comparison.table(table) if arguments.format == "csv" else None
        show(page, arguments.format, target, *((rows.to_pylist(), rows.column_names) if rows else ()))
        if target and target.suffix == ".duckdb":
            comparison.save(target)
        elif target and target.suffix == ".parquet" and "stages" in answer:
            write_table(comparison.table("stage_corrections"), target)
        elif target and target.suffix != HTML and (names := [name for key, name in BY_KEY.items() if key in answer]):
            write_table(comparison.table(names[0]), target)
        elif target and target.suffix == ".parquet":
            corrections = comparison.table("fitted_corrections")
            write_table(corrections, target)
            if not corrections.num_rows:
                note(f"{target} is empty: no correction beats one factor per metric on later time")
        elif target and target.suffix != HTML:
            write_table(comparison.table("prediction_vs_production"), target)


def watch_log(arguments: Any, flags: dict[str, Any]) -> None:
    """Compare a growing log or a server's metrics with a deployment until the program is ended."""
    from kernelsight.comparison.watch import Targets, Watch
    from kernelsight.files.bounded_http import check_address
    from kernelsight.present.watch_windows import as_line_of_json, window_lines
    from kernelsight.scenario.launch.lines import with_launch_line

    if not arguments.watch > 0.0 or arguments.watch == float("inf"):
        raise InvalidInput(f"--watch is {arguments.watch:g}; give the seconds between two looks, above 0.")
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
    from kernelsight.cli.options import add_flags
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
