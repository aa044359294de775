"""`kernelsight cache`: lists the caches of tables and of the compiled scheduler with their sizes, or clears them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.cli.options import TABLE_ENDINGS, show_table
from kernelsight.number_format import MIB, number

if TYPE_CHECKING:
    from kernelsight.caches.private_folder import PrivateFolder

TABLES, CODE = "tables", "compiled scheduler"
COLUMNS = {
    "cache": "string",
    "folder": "string",
    "files": "int64",
    "bytes": "int64",
    "limit_bytes": "int64",
    "removed_files": "int64",
    "removed_bytes": "int64",
    "not_used": "string",
}


def run(arguments: argparse.Namespace) -> None:
    """Print a row for each cache folder; with --clear, empty the folders first."""
    import pyarrow as pa

    from kernelsight.present.output import check_ending, print_page, table_lines, terminal_width, write_table

    target = check_ending(arguments.output, TABLE_ENDINGS)
    rows = [*_tables(arguments.clear), *_compiled(arguments.clear)]
    table = pa.Table.from_pylist(rows, pa.schema([(name, pa.type_for_alias(kind)) for name, kind in COLUMNS.items()]))
    if target:
        write_table(table, target)
    if arguments.format == "table":
        shown = [_shown(row) for row in rows]
        columns = [name for name in shown[0] if any(row[name] is not None for row in shown)]
        print_page([_answer(rows, arguments.clear), *table_lines(shown, columns, terminal_width())])
    else:
        show_table(table, arguments, written=True)


def _answer(rows: list[dict[str, Any]], clear: bool) -> str:
    """Return the sentence above the table."""
    prefix = "removed_" if clear else ""
    files, size = (sum(row[f"{prefix}{name}"] for row in rows) for name in ("files", "bytes"))
    return f"{'Removed ' if clear else ''}{files:,} file{'s' * (files != 1)}, {number(size / MIB, 3)} MiB."


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with headers and units for a terminal."""
    limit = row["limit_bytes"]
    return {
        "cache": row["cache"],
        "files": row["files"],
        "MiB": row["bytes"] / MIB,
        "limit MiB": None if limit is None else limit / MIB,
        "folder": row["folder"],
        "not used because": row["not_used"],
    }


def _tables(clear: bool) -> Iterator[dict[str, Any]]:
    """Yield the row of the folder that caches tables."""
    from kernelsight.caches import disk_cache

    try:
        path = disk_cache.cache_folder()
    except OSError as error:
        yield _unused(TABLES, None, str(error.strerror))
        return
    if path is None:
        yield _unused(TABLES, None, f"the environment variable {disk_cache.VARIABLE} is empty")
    else:
        yield _row(TABLES, path, disk_cache.open_cache_folder, clear)


def _compiled(clear: bool) -> Iterator[dict[str, Any]]:
    """Yield rows of the folders for compiled code up to the first usable one, then of other versions with files."""
    from kernelsight.serving.compilation import machine_code

    paths_shown = []
    for path in machine_code.PLACES:
        paths_shown.append(path)
        row = _row(CODE, path, machine_code.opened, clear)
        yield row
        if row["not_used"] is None:
            break
    for path in machine_code.folders_there():
        if path not in paths_shown:
            row = _row(f"{CODE}, other version", path, machine_code.opened, clear)
            if row["files"] or row["removed_files"]:
                yield row


def _row(name: str, path: Path, opened: Callable[[Path], PrivateFolder], clear: bool) -> dict[str, Any]:
    """Return the row of one folder, cleared first if ``clear``; or why it is not used."""
    try:
        folder = opened(path)
        before = folder.sizes()
        if clear:
            folder.clear()
        after = folder.sizes() if clear else before
    except OSError as error:
        where = "" if error.filename in (None, str(path.absolute())) else f"{error.filename}: "
        return _unused(name, path, f"{where}{error.strerror}")
    return {
        "cache": name,
        "folder": str(path.absolute()),
        "files": len(after),
        "bytes": sum(after),
        "limit_bytes": folder.limit,
        "removed_files": len(before) - len(after),
        "removed_bytes": sum(before) - sum(after),
        "not_used": None,
    }


def _unused(name: str, path: Path | None, why: str) -> dict[str, Any]:
    folder = None if path is None else str(path.absolute())
    nothing = dict.fromkeys(("files", "bytes", "removed_files", "removed_bytes"), 0)
    return {"cache": name, "folder": folder, "limit_bytes": None, "not_used": why, **nothing}
