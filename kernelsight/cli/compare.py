"""`kernelsight compare`: replays a production log, and prints how far and why prediction and measurement differ."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from kernelsight.cli.command_line import asked
from kernelsight.cli.options import columns, deployment_flags, launch_line, open_session
from kernelsight.errors import InvalidInput
from kernelsight.present.output import (
    PAGE_ENDINGS,
    check_ending,
    csv_of,
    note,
    print_notes,
    print_page,
    write_table,
)
from kernelsight.present.progress import Waiting
from kernelsight.present.show import HTML, show

# by key of the answer of another kind of comparison: its table
BY_KEY = {"stages": "stage_vs_prediction", "changes": "log_changes"}


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
        question = asked(arguments, "comparisons")
        question |= {"columns": columns(arguments.columns), "stated": _described_load(arguments.stated)}
        comparison = session.compare(deployment=flags | ({"launch": arguments.launch} if line else {}), **question)
        with Waiting("comparing"):
            answer = comparison.summary
        table = next((name for key, name in BY_KEY.items() if key in answer), "miss_by_part")
        show(comparison.page, arguments.format, target, lambda: csv_of(comparison.table(table)), line)
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
    from kernelsight.scenario.launch.deployments import with_launch_line

    if len(arguments.log) != 1 or arguments.baseline or arguments.output:
        raise InvalidInput("--watch compares one --log FILE or address, without --baseline and -o; see --history.")
    (source,) = arguments.log
    if "://" in source:
        check_address("--log", source)
    paths = {name: getattr(arguments, name) for name in ("state", "history")} | {"metrics": arguments.metrics_out}
    targets = Targets(**{name: Path(path) if path else None for name, path in paths.items()})
    with open_session(arguments) as session:
        how = {"log_format": arguments.log_format, "columns": columns(arguments.columns)}
        watch = Watch(source, with_launch_line(flags), session, session.compare, targets, **how)
        with watch.locked_state():
            while True:
                for window in watch.poll():
                    lines = [as_line_of_json(window)] if arguments.format == "json" else window_lines(window)
                    print_page(lines)
                    sys.stdout.flush()
                time.sleep(arguments.watch)


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
