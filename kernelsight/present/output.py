"""Tables and JSON on stdout or in a file, by its extension; notes and progress on stderr."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.dataflow.durable import draft_of, durable_file
from kernelsight.dataflow.rows import python_rows
from kernelsight.errors import InvalidInput
from kernelsight.escape import json_for_terminals, visible
from kernelsight.number_format import number, rounded

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("table", "json", "csv")
ENDINGS = (".parquet", ".csv", ".json", ".duckdb")


# how much is said on stderr beside results and errors: nothing, notes, or every computed table
QUIET, USUAL, VERBOSE = range(3)
_said = USUAL
# notes that follow the answer
_afterwards: list[str] = []
# seconds between lines of progress where stderr is no terminal
LINES_EVERY_S = 10.0


def say(how_much: int) -> None:
    """Set how much is said on stderr: QUIET, USUAL or VERBOSE."""
    global _said
    _said = how_much
    _afterwards.clear()


def note(text: str) -> None:
    """Write a line to stderr, unless nothing is to be said."""
    if _said > QUIET:
        print(visible(text), file=sys.stderr)


def note_afterwards(texts: Iterable[str]) -> None:
    """Keep lines for stderr until the answer is printed."""
    _afterwards.extend(texts)


def say_notes() -> None:
    """Write the notes that were kept, once."""
    texts = _afterwards[:]
    _afterwards.clear()
    for text in texts:
        note(text)


def is_verbose() -> bool:
    """Whether everything is to be said."""
    return _said == VERBOSE


def status(text: str = "", end: str = "") -> None:
    """Write over the line of a terminal's stderr on which the cursor is."""
    print(f"\r\033[K{visible(text)}", end=end, file=sys.stderr, flush=True)


def print_page(lines: Iterable[str]) -> None:
    """Print lines for people on stdout; names in them that hold control characters cannot drive the terminal.

    On a terminal sentences that are too long for a line are broken between words.
    """
    width = terminal_width()
    print("\n".join(piece for line in map(visible, lines) for piece in wrapped(line, width)))


def wrapped(line: str, width: int | None) -> list[str]:
    """Return a line in parts no longer than a terminal is wide, later ones below the first word; rows of tables whole.

    >>> wrapped("  - a sentence that is long", 18), wrapped("a row  of columns  is whole", 18)
    (['  - a sentence', '    that is long'], ['a row  of columns  is whole'])
    """
    import textwrap

    if not width or len(line) <= width or "  " in line.strip():
        return [line]
    indent = " " * min(len(line) - len(line.lstrip(" -")), width // 2)
    wrap = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
    return wrap.wrap(line)


def progress(names: str, seconds: float) -> None:
    """Report which table has just been computed: on a terminal if it took more than half a second; all when verbose."""
    if _said == VERBOSE or (seconds > 0.5 and sys.stderr.isatty()):
        note(f"  {names}: {number(seconds, 3)} s")


class Waiting:
    """Counts the seconds of a long computation: a line on the terminal, or a line every 10 s where stderr is none."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._on_terminal = sys.stderr.isatty()

    def __enter__(self) -> Waiting:
        import threading

        self._done = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True)
        if _said > QUIET:
            self._thread.start()
        return self

    def _count(self) -> None:
        started = time.monotonic()
        begin, end, every_s = ("\r", "", 0.5) if self._on_terminal else ("", "\n", LINES_EVERY_S)
        while not self._done.wait(every_s):
            print(f"{begin}{self.text} {rounded(time.monotonic() - started)} s", end=end, file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
            if self._on_terminal:
                status()


def clean(value: Any) -> Any:
    """Return a JSON-serialisable value: NaN and infinities become null, decimals numbers, other types text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if value is None or isinstance(value, str | int | bool):
        return value
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


def as_json(value: Any) -> str:
    """Return indented JSON."""
    return json_for_terminals(json.dumps(clean(value), indent=1, ensure_ascii=False, allow_nan=False))


def as_csv(rows: Iterable[Mapping[str, Any]], columns: list[str]) -> str:
    r"""Return rows as CSV with a header; structs as JSON.

    >>> as_csv([{"name": "a\rb", "n": 1}, {"name": "a,b", "n": None}], ["name", "n"])
    'name,n\n"a\rb",1\n"a,b",\n'
    """
    lines = _Lines()
    writer = csv.writer(lines)
    writer.writerow(columns)
    for row in rows:
        writer.writerow(
            [
                json.dumps(clean(value)) if isinstance(value, dict | list) else value
                for value in (row.get(name) for name in columns)
            ]
        )
    return "".join(lines)


class _Lines(list[str]):
    """Lines of CSV, ended with a line feed; csv.writer quotes a lone \\r only where its own line end holds one."""

    def write(self, line: str) -> None:
        self.append(f"{line[:-2]}\n")


def as_text(rows: list[Mapping[str, Any]], columns: list[str], width: int | None = None) -> str:
    """Return rows as aligned columns, as ``table_lines``."""
    return "\n".join(table_lines(rows, columns, width))


def table_lines(rows: list[Mapping[str, Any]], columns: list[str], width: int | None = None) -> list[str]:
    """Return rows as aligned columns, numbers right-aligned; cells too wide for the line end in an ellipsis."""
    if not columns:
        return []
    heads = [visible(name) for name in columns]
    cells = [[visible(number(row.get(name)).replace("\n", " ")) for name in columns] for row in rows]
    right = [
        any(isinstance(row.get(name), int | float) and not isinstance(row.get(name), bool) for row in rows)
        for name in columns
    ]
    widths = [max([len(name), *(len(line[i]) for line in cells)]) for i, name in enumerate(heads)]
    if width:
        while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > 24:
            widths[widths.index(max(widths))] -= 1

    def line(texts: list[str]) -> str:
        cells_cut = []
        for text, size, to_right in zip(texts, widths, right, strict=True):
            cut = text if len(text) <= size else text[: size - 1] + "…"
            cells_cut.append(cut.rjust(size) if to_right else cut.ljust(size))
        return "  ".join(cells_cut).rstrip()

    return [line(heads), line(["-" * size for size in widths]), *(line(texts) for texts in cells)]


def fitting_lines(
    rows: list[Mapping[str, Any]], columns: list[str], width: int | None, expendable: Iterable[str]
) -> list[str]:
    """Return rows as ``table_lines``; without as many of the ``expendable`` columns as do not fit, which are named.

    >>> rows = [{"gpu": "l4", "high": 1.0, "low": 2.0}]
    >>> fitting_lines(rows, ["gpu", "high", "low"], 10, ["low", "high"])
    ['gpu  high', '---  ----', 'l4      1', 'not shown: low; --format json has all columns']
    """
    hidden, shown = [], list(columns)
    lines = table_lines(rows, shown, width)
    for name in expendable:
        if not width or len(lines[1]) <= width:
            break
        if name in shown:
            shown.remove(name)
            hidden.append(name)
            lines = table_lines(rows, shown, width)
    return [*lines, f"not shown: {', '.join(hidden)}; --format json has all columns"] if hidden else lines


def terminal_width() -> int | None:
    """Return the terminal's width, or None if stdout is not a terminal and nothing is truncated."""
    if not sys.stdout.isatty():
        return None
    return os.get_terminal_size().columns


def print_rows(rows: list[dict[str, Any]], columns: list[str], form: str) -> None:
    """Print rows on stdout as a table, JSON or CSV."""
    if form == "json":
        print(as_json(rows))
    elif form == "csv":
        print(as_csv(rows, columns), end="")
    else:
        print(as_text(rows, columns, terminal_width()))


def check_ending(path: str | None, allowed: tuple[str, ...] = ENDINGS, flag: str = "-o") -> Path | None:
    """Return the path of a flag; InvalidInput for an unknown extension, or a folder that is missing or read-only."""
    if path is None:
        return None
    target = Path(path)
    folder = target.resolve().parent
    if target.suffix not in allowed:
        ending = f"ends in {target.suffix!r}" if target.suffix else "has no file extension"
        raise InvalidInput(f"{flag} {path!r} {ending}; use one of {', '.join(allowed)}.")
    if not folder.is_dir():
        raise InvalidInput(f"{flag} {path!r} cannot be written: folder {folder} does not exist.")
    with contextlib.suppress(OSError):  # a name that is too long is refused below
        if target.is_dir():
            raise InvalidInput(f"{flag} {path!r} is a folder; give a file name.")
    if not os.access(folder, os.W_OK):
        raise InvalidInput(f"{flag} {path!r} cannot be written: folder {folder} is read-only.")
    try:
        with draft_of(target, keep=False) as draft:
            draft.touch(exist_ok=False)
    except OSError as error:
        raise InvalidInput(
            f"{flag} {path!r:.300} cannot be written: {error.strerror or error}; use another name or folder."
        ) from None
    return target


def write_table(table: pa.Table, target: Path) -> None:
    """Write an Arrow table atomically as Parquet, CSV or JSON, by the path's extension."""
    columns = table.column_names
    if target.suffix == ".csv":
        write_text(as_csv(python_rows(table), columns), target)
    elif target.suffix == ".json":
        write_text(as_json(python_rows(table)) + "\n", target)
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with durable_file(target) as draft:
                pq.write_table(table, draft)
        except pa.ArrowException as error:
            raise InvalidInput(
                f"{target}: Parquet cannot store these columns ({str(error).splitlines()[0]}); cast them, or use .csv "
                "or .json."
            ) from None


def write_text(text: str, target: Path) -> None:
    """Write a text file in UTF-8; whole or not at all."""
    with durable_file(target) as draft:
        draft.write_text(text, encoding="utf-8")
