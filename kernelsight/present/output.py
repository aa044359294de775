"""Output of the command line: tables, CSV and JSON on stdout or in files; notes and progress on stderr."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.caches.durable import draft_of, durable_file
from kernelsight.dataflow.rows import python_rows
from kernelsight.errors import InvalidInput
from kernelsight.escape import json_for_terminals, visible
from kernelsight.number_format import number
from kernelsight.version import VERSION

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("table", "json", "csv")
ENDINGS = (".parquet", ".csv", ".json", ".duckdb")
# of verbs whose answer is a page
PAGE_ENDINGS = (*ENDINGS, ".html")


# verbosity on stderr, beside errors: nothing, notes, or also every computed table
QUIET, NORMAL, VERBOSE = range(3)
_verbosity = NORMAL
# notes that are printed after the answer
_notes: list[str] = []


def set_verbosity(level: int) -> None:
    """Set the verbosity on stderr: QUIET, NORMAL or VERBOSE; forgets kept notes."""
    global _verbosity
    _verbosity = level
    _notes.clear()


def note(text: str) -> None:
    """Print a line on stderr, unless QUIET."""
    if _verbosity > QUIET:
        print(visible(text), file=sys.stderr)


def note_afterwards(texts: Iterable[str]) -> None:
    """Keep lines for stderr until ``print_notes``, which follows the answer."""
    _notes.extend(texts)


def print_notes() -> None:
    """Print the kept notes on stderr, once."""
    texts = _notes[:]
    _notes.clear()
    for text in texts:
        note(text)


def is_quiet() -> bool:
    """Whether the verbosity is QUIET."""
    return _verbosity == QUIET


def is_verbose() -> bool:
    """Whether the verbosity is VERBOSE."""
    return _verbosity == VERBOSE


def print_page(lines: Iterable[str]) -> None:
    """Print lines for people on stdout, with control characters escaped; on a terminal long sentences are wrapped."""
    width = terminal_width()
    print("\n".join(piece for line in map(visible, lines) for piece in wrapped(line, width)))


def wrapped(line: str, width: int | None) -> list[str]:
    """Return a line wrapped to a width, with a hanging indent; rows of tables (with two spaces) are not wrapped.

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
    """Note the computation time of tables: always if VERBOSE, on a terminal if it was more than half a second."""
    if _verbosity == VERBOSE or (seconds > 0.5 and sys.stderr.isatty()):
        note(f"  {names}: {number(seconds, 3)} s")


def clean(value: Any) -> Any:
    """Return a JSON-serialisable value: NaN and infinities as None, decimals as numbers, other types as text."""
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
    """Return indented JSON, with control characters escaped."""
    return json_for_terminals(json.dumps(clean(value), indent=1, ensure_ascii=False, allow_nan=False))


def answer_json(answer: Mapping[str, Any]) -> str:
    """Return an answer as JSON, with the version of the program that gave it."""
    return as_json({**answer, "kernelsight_version": VERSION})


def as_csv(rows: Iterable[Mapping[str, Any]], columns: list[str]) -> str:
    r"""Return rows as CSV with a header; structs as JSON."""
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


def csv_of(table: pa.Table) -> str:
    """Return an Arrow table as CSV with a header."""
    return as_csv(python_rows(table), table.column_names)


class _Lines(list[str]):
    """Lines of CSV ending with a line feed; csv.writer quotes a lone \\r only if its own line end holds one."""

    def write(self, line: str) -> None:
        self.append(f"{line[:-2]}\n")


def as_text(rows: list[Mapping[str, Any]], columns: list[str], width: int | None = None) -> str:
    """Return rows as text of aligned columns; see ``table_lines``."""
    return "\n".join(table_lines(rows, columns, width))


def table_lines(rows: list[Mapping[str, Any]], columns: list[str], width: int | None = None) -> list[str]:
    """Return a head, a rule and rows as aligned columns, numbers right-aligned; cells are cut to fit ``width``."""
    if not columns:
        return []
    heads = [visible(name) for name in columns]
    cells = [[visible(number(row.get(name)).replace("\n", " ")) for name in columns] for row in rows]
    is_right_aligned = [
        any(isinstance(row.get(name), int | float) and not isinstance(row.get(name), bool) for row in rows)
        for name in columns
    ]
    widths = [max([len(name), *(len(line[i]) for line in cells)]) for i, name in enumerate(heads)]
    if width:
        while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > 24:
            widths[widths.index(max(widths))] -= 1

    def line(texts: list[str]) -> str:
        cells_cut = []
        for text, size, to_right in zip(texts, widths, is_right_aligned, strict=True):
            cut = text if len(text) <= size else text[: size - 1] + "…"
            cells_cut.append(cut.rjust(size) if to_right else cut.ljust(size))
        return "  ".join(cells_cut).rstrip()

    return [line(heads), line(["-" * size for size in widths]), *(line(texts) for texts in cells)]


def fitting_lines(
    rows: list[Mapping[str, Any]], columns: list[str], width: int | None, expendable: Iterable[str]
) -> list[str]:
    """Return rows as ``table_lines``; ``expendable`` columns are left out, in order, until they fit, and then listed.

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
    """Return the terminal's width in characters; None if stdout is not a terminal: nothing is truncated then."""
    if not sys.stdout.isatty():
        return None
    return os.get_terminal_size().columns


def print_rows(rows: list[dict[str, Any]], columns: list[str], output_format: str) -> None:
    """Print rows on stdout as a table, JSON or CSV."""
    if output_format == "json":
        print(as_json(rows))
    elif output_format == "csv":
        print(as_csv(rows, columns), end="")
    else:
        print(as_text(rows, columns, terminal_width()))


def check_ending(path: str | None, allowed: tuple[str, ...] = ENDINGS, flag: str = "-o") -> Path | None:
    """Return the output path of a flag; InvalidInput: an unknown extension, or a file that cannot be created."""
    if path is None:
        return None
    target = Path(path)
    file = Path(os.path.realpath(target))
    folder = file.parent
    if os.path.islink(file):  # links in a circle
        raise InvalidInput(f"{flag} {path!r} is a link that leads nowhere; give a file name.")
    if target.suffix not in allowed:
        ending = f"ends in {target.suffix!r}" if target.suffix else "has no file extension"
        raise InvalidInput(f"{flag} {path!r} {ending}; use one of {', '.join(allowed)}.")
    if not folder.is_dir():
        raise InvalidInput(f"{flag} {path!r} cannot be written: folder {folder} does not exist.")
    with contextlib.suppress(OSError):  # a name that is too long is refused below
        if target.is_dir():
            raise InvalidInput(f"{flag} {path!r} is a folder; give a file name.")
        if target.exists() and not target.is_file():
            raise InvalidInput(f"{flag} {path!r} is a pipe or a device, which a file would replace; give a file name.")
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
    """Write an Arrow table atomically as Parquet, CSV or JSON, by the path's extension.

    InvalidInput: column types that Parquet cannot store.
    """
    if target.suffix == ".csv":
        write_text(csv_of(table), target)
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
    """Write a text file in UTF-8 atomically."""
    with durable_file(target) as draft:
        draft.write_text(text, encoding="utf-8")
