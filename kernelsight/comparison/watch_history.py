"""History of a watch: a folder with one Parquet file per window, which holds the windows of one log or server alone."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.caches.durable import durable_file
from kernelsight.comparison.watch_state import State
from kernelsight.errors import InvalidInput
from kernelsight.files.parquet_files import read_schema
from kernelsight.present.watch_windows import Window, history_rows

SOURCE = b"kernelsight.source"  # key of the file's metadata
_WINDOW = re.compile(r"(\d{8,})\.parquet")
_ADVICE = "give --state FILE to continue a watch, or another folder"


def check_history(folder: Path, state: State, repeated: int | None) -> None:
    """Check that a watch can continue in a folder; InvalidInput: it would overwrite windows of another watch.

    ``repeated``: the number of a window that may be there, written by an interrupted poll; None: none may.
    """
    numbers = [int(match[1]) for path in folder.glob("*.parquet") if (match := _WINDOW.fullmatch(path.name))]
    others = [number for number in numbers if number >= state.windows]
    if others == [repeated] and _source_of(_path(folder, state.windows)) == state.source:
        return
    if others:
        raise InvalidInput(
            f"--history {folder} holds {len(numbers):,} windows of an earlier watch, and window {min(others):,} would "
            f"be overwritten; {_ADVICE}."
        )


def write_window(folder: Path, state: State, window: Window, repeated: int | None) -> None:
    """Write a window; InvalidInput: its file is there, and is not the ``repeated`` window of the same source."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, window.number)
    if path.exists() and not (window.number == repeated and _source_of(path) == state.source):
        raise InvalidInput(f"--history {folder}: {path.name} is a window of another watch; {_ADVICE}.")
    table = pa.Table.from_pylist(history_rows(window)).replace_schema_metadata({SOURCE: state.source.encode()})
    with durable_file(path) as draft:
        pq.write_table(table, draft)


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.parquet"


def _source_of(path: Path) -> str:
    """Return the log or address of a window's file, "" if it does not say; InvalidInput: it is no Parquet file."""
    schema = read_schema(path, lambda problem: InvalidInput(f"{path} of --history {problem}; give another folder."))
    return (schema.metadata or {}).get(SOURCE, b"").decode("utf-8", "replace")
