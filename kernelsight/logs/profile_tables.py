"""Reader of profilers' tables, as time by kernel: CSV of Nsight Systems and Compute, key_averages; by log_forms."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from kernelsight.files.row_files import cells_of
from kernelsight.logs.files import LogFile, unusable
from kernelsight.logs.labels import fields_of
from kernelsight.logs.log_run import LogRun
from kernelsight.logs.profiles import kernel_run

# factor to us, by unit
_US = {
    **dict.fromkeys(("ns", "nsecond", "nsec", "nanosecond"), 1e-3),
    **dict.fromkeys(("us", "usecond", "usec", "µs", "microsecond"), 1.0),
    **dict.fromkeys(("ms", "msecond", "msec", "millisecond"), 1e3),
    **dict.fromkeys(("s", "second", "sec"), 1e6),
}
_VALUE = re.compile(r"(\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?) ?([a-zµ]*)$")
_DASHES = re.compile(r"^\s*-{3,}(?:\s+-{2,})+\s*$")
DURATIONS = ("Duration", "gpu__time_duration.sum", "gpu__time_duration.avg")
# lines before a header, and characters of a line that is looked at
MOST_BEFORE, LONGEST = 400, 20_000


def _rows(lines: Iterator[str], form: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the header of a table and its rows: cells of a CSV file, or of a text, cut where its line of dashes is."""
    spans: list[tuple[int, int | None]] = []
    header: list[str] | None = None
    for line in lines:
        line = line[:LONGEST].rstrip("\r\n")
        if _DASHES.match(line):
            starts = [match.start() for match in re.finditer(r"-+", line)]
            spans = list(zip(starts, [*starts[1:], None], strict=True))
            continue
        cells = [line[start:end].strip() for start, end in spans] if spans else cells_of(line)
        if header is None:
            if not spans and "," not in line:
                # the header of a text stands above or below its line of dashes
                cells = re.split(r"\s{2,}", line.strip())
            if _is_header([cell.strip() for cell in cells], form):
                header = [cell.strip() for cell in cells]
                yield header
        elif len(cells) == len(header) and cells[0:1] != header[0:1]:
            yield cells


def _is_header(cells: Sequence[str], form: Mapping[str, Any]) -> bool:
    wanted = form["signature"].split("|")
    return len(cells) >= len(wanted) and all(any(re.match(name, cell) for cell in cells) for name in wanted)


def read(files: Sequence[LogFile], form: Mapping[str, Any]) -> list[LogRun]:
    """Return one run per table: GPU time by kernel name; InvalidInput: no kernel with a time."""
    return [_run(file, form) for file in files]


def _run(file: LogFile, form: Mapping[str, Any]) -> LogRun:
    table = _rows(file.lines(), form)
    header = next(table, [])
    found: dict[str, tuple[int, str | None]] = {}
    for place, cell in enumerate(header):
        for pattern, column, unit in fields_of(form["form"]):
            if pattern.fullmatch(cell) and column not in found:
                stated = re.search(r"\(([a-zµ]+)\)", cell)
                found[column] = (place, stated[1] if stated else unit)
    if not {"name", "total_us"} <= found.keys():
        raise unusable(file.path, "has no column of GPU times", f"Give the output of {form['written_by']}.")
    rows: list[dict[str, Any]] = []
    unreadable = 0
    for cells in table:
        place, _ = found["total_us"]
        if cells[place].strip() in _US and not cells[found["name"][0]].strip():
            found["total_us"] = (place, cells[place].strip())  # the row of units under the header of ncu
            continue
        row = _kernel(cells, found)
        if row is None:
            unreadable += 1
        elif row:
            rows.append(row)
    if any(row["is_kernel"] for row in rows):
        rows = [row for row in rows if row["is_kernel"]]
    if not rows:
        raise unusable(file.path, "has no kernel with a time", f"Give the whole output of {form['written_by']}.")
    frame = pl.DataFrame(rows, infer_schema_length=None)
    frame = frame.group_by("rank", "name").agg(
        pl.col("calls").sum(), pl.col("total_us").sum(), pl.col("first_us").min(),
        (pl.col("first_us") + pl.col("total_us")).max().alias("last_us"),
    )  # fmt: skip
    run = kernel_run(file, form["form"], frame)
    run.faults.add("unreadable_value", unreadable)
    return run


def _kernel(cells: Sequence[str], found: Mapping[str, tuple[int, str | None]]) -> dict[str, Any] | None:
    """Return the kernel in a row; empty: a row of another metric, of units, or without GPU time; None: unreadable."""
    text = {name: cells[place].strip() for name, (place, _) in found.items()}
    if not text.get("name") or text.get("metric", DURATIONS[0]) not in DURATIONS:
        return {}
    value = _VALUE.match(text.get("total_us", ""))
    if value is None:
        return None if text.get("total_us") else {}
    unit = value[2] or text.get("unit") or found["total_us"][1] or "ns"
    total_us = float(value[1].replace(",", "")) * _US.get(unit, float("nan"))
    if not total_us < float("inf"):
        return None
    start = _VALUE.match(text.get("first_us", ""))
    calls = text.get("calls", "1").replace(",", "")
    device = re.search(r"\((\d+)\)\s*$", text.get("device", ""))
    return {
        "name": text["name"][:400],
        "rank": int(device[1]) if device else 0,
        "calls": float(calls) if calls.isdigit() else 1.0,
        "total_us": total_us,
        "first_us": float(start[1].replace(",", "")) * _US.get(start[2] or "ns", 1e-3) if start else None,
        "is_kernel": "host" in text and text["host"].lstrip("0.") in ("", "us"),
    } if total_us else {}  # fmt: skip


def recognises(file: LogFile, form: Mapping[str, Any]) -> bool:
    """Whether a file is of a form, a row of ``log_forms``."""
    if file.kind != "text":
        return False
    return next(_rows(iter(file.text.splitlines()[:MOST_BEFORE]), form), None) is not None
