"""Reads the files of traces: CSV, JSON lines and Parquet, plain or compressed with gzip or zstd.

Arrow reads the files in bulk. The line of an error, which Arrow does not report, is only looked up when there is one.
"""

from __future__ import annotations

import io
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from kernelsight import errors
from kernelsight.errors import shown
from kernelsight.files.bounded_files import pieces_of, read_bytes, unpacked, within_ratio
from kernelsight.files.budget import WHOLE
from kernelsight.files.parquet_files import read_schema, read_source
from kernelsight.files.row_faults import Faults, json_objects
from kernelsight.files.row_files import cells_of
from kernelsight.serving.load.trace_formats import CORRECT_LINE, RawTrace, TraceFormat, recognise

ZSTD_PIECE = 1 << 20
HUGE = 1e300  # JSON may have whole numbers beyond float64; capped here, rejected as a size later
DAMAGED = "The file is truncated or damaged: download or write it again."


def read_container(path: Path, data: bytes, names: str | None = None) -> RawTrace:
    """Read a trace's own columns: text from CSV, numbers and lists from JSON lines, any type from Parquet.

    ``data``: from :func:`content_of`; ``names``: what --columns maps.
    InvalidInput: empty, damaged, of an unknown format, or without required columns.
    """
    is_json = data.lstrip()[:1] in (b"{", b"[")
    read = _read_parquet if data[:4] == b"PAR1" else _read_json_lines if is_json else _read_csv
    return read(path, data, names)


def content_of(path: Path) -> bytes:
    """Return the decompressed bytes of a file without byte order mark; its first bytes identify the compression."""

    def refuse(problem: str) -> errors.InvalidInput:
        return errors.trace_unusable(path, f"the file {problem}", "Give the path to a readable trace file.")

    data = read_bytes(path, refuse, WHOLE, piped=True)
    try:
        if data[:2] == b"\x1f\x8b":
            data = b"".join(unpacked(pieces_of(data), len(data), partial(_too_dense, path)))
        elif data[:4] == b"\x28\xb5\x2f\xfd":
            stream = pa.input_stream(pa.py_buffer(data), compression="zstd")
            pieces = iter(partial(stream.read, ZSTD_PIECE), b"")
            data = b"".join(within_ratio(pieces, len(data), partial(_too_dense, path)))
    except (OSError, EOFError, zlib.error) as problem:
        raise errors.trace_unusable(path, f"it cannot be decompressed ({problem})", DAMAGED) from None
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise errors.trace_unusable(path, "the file is empty", "Give a file with at least one request.")
    return data


def _too_dense(path: Path, problem: str) -> errors.InvalidInput:
    return errors.trace_unusable(path, f"the file {problem}", "Where it is sound, unpack it first.")


def _read_parquet(path: Path, data: bytes, columns: str | None) -> RawTrace:
    def refuse(problem: str) -> errors.InvalidInput:
        return errors.trace_unusable(path, f"the file {problem}", "Give a complete trace of a size that can be served.")

    buffer = pa.py_buffer(data)
    names = read_schema(buffer, refuse).names
    trace_format = recognise(path, names, columns)
    columns = read_source(buffer, len(data), refuse, [field for field in trace_format.fields() if field in names])
    return RawTrace(path, trace_format, columns, np.arange(columns.num_rows), lambda row: f"row {row + 1}", Faults())


def _read_csv(path: Path, data: bytes, columns: str | None) -> RawTrace:
    """Read the fields of a CSV file as text; like Arrow, row numbers skip empty lines."""
    from pyarrow import csv  # 10 ms that commands without a trace do not need

    header = _csv_header(data)
    trace_format = recognise(path, header, columns)
    used, unused = [f for f in trace_format.fields() if f in header], Faults()
    data = data if data.isascii() else _without_other_encodings(data, unused)
    filled = [number for number, line in enumerate(data.splitlines(), 1) if line]
    ragged: list[int] = []

    def place(row: int) -> str:
        # text in quotes may have line ends: then rows are counted instead
        return f"line {filled[row + 1]}" if row + 1 < len(filled) else f"row {row + 1}"

    def keep_ragged(row: csv.InvalidRow) -> str:
        ragged.append(row.number - 2)
        problem = f"{row.actual_columns} fields instead of {row.expected_columns}"
        unused.add("ragged", 1, place(ragged[-1]), problem)
        return "skip"

    try:
        columns = csv.read_csv(
            pa.py_buffer(data if data.endswith(b"\n") else data + b"\n"),
            read_options=csv.ReadOptions(use_threads=False, block_size=1 << 24),  # threads lose the row's number
            parse_options=csv.ParseOptions(invalid_row_handler=keep_ragged),
            convert_options=csv.ConvertOptions(
                include_columns=used,
                column_types=dict.fromkeys(used, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
    except pa.ArrowException as problem:
        raise errors.trace_unusable(path, f"it cannot be read ({_first_line(problem)})", "Correct the file.") from None
    rows = np.delete(np.arange(columns.num_rows + len(ragged)), ragged)
    return RawTrace(path, trace_format, columns, rows, place, unused)


def _without_other_encodings(data: bytes, unused: Faults) -> bytes:
    """Return text with the lines that are not UTF-8 left empty: Arrow cannot show such a row to its handler."""
    lines = io.BytesIO(data).readlines()
    for number, line in enumerate(lines, start=1):
        try:
            line.decode()
        except UnicodeDecodeError:
            lines[number - 1] = b"\n"
            unused.add("encoding", 1, f"line {number}", "it is not valid UTF-8")
    return b"".join(lines)


def _csv_header(data: bytes) -> list[str]:
    """Return the fields of the first line that is not empty."""
    start = next(line for line in data[: 1 << 20].splitlines() if line).decode("utf-8", "replace")
    return cells_of(start) or [start]  # not CSV: report the line as one field


def _first_line(problem: Exception) -> str:
    return str(problem).splitlines()[0].rstrip(".") if str(problem) else type(problem).__name__


def _read_json_lines(path: Path, data: bytes, columns: str | None) -> RawTrace:
    """Read JSON lines with Arrow; if Arrow fails, or lines and rows differ, read them in Python to locate the error."""
    unused = Faults()
    first = next((record for _, record in json_objects(data, unused)), None)
    if first is None:
        raise errors.trace_place_unusable(path, *unused.first(), CORRECT_LINE)
    trace_format = recognise(path, list(first), columns)
    types = {f: pa.float64() for f in trace_format.fields()}
    numbered = all(isinstance(first.get(f, 0), int) for f in trace_format.names())
    types |= dict.fromkeys(trace_format.names(), pa.int64() if numbered else pa.string())
    types[trace_format.hash_ids] = pa.list_(pa.int64())
    schema = pa.schema([(f, types[f]) for f in trace_format.fields()])
    from pyarrow import json

    options = json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        blocks = json.ReadOptions(block_size=1 << 24)  # longest line
        columns = json.read_json(pa.py_buffer(data), read_options=blocks, parse_options=options)
        columns.validate(full=True)  # the reader accepts text that is not UTF-8
    except pa.ArrowInvalid:
        return _read_json_line_by_line(path, data, trace_format)
    if columns.num_rows != data.count(b"\n") + (not data.endswith(b"\n")):
        return _read_json_line_by_line(path, data, trace_format)
    return RawTrace(path, trace_format, columns, np.arange(columns.num_rows), lambda row: f"line {row + 1}", Faults())


def _read_json_line_by_line(path: Path, data: bytes, trace_format: TraceFormat) -> RawTrace:
    """Read JSON lines with Python: slower than Arrow, with the same result, and a line number for each error."""
    numbers, unused, values = [], Faults(), {field: [] for field in trace_format.fields()}

    def checked(field: str, value: object) -> object:
        kind = "a number"
        if value is None:
            return None
        if field == trace_format.hash_ids:
            is_readable = isinstance(value, list) and all(type(v) is int and -(2**63) <= v < 2**63 for v in value)
            kind = "a list of 64-bit whole numbers"
        elif field in trace_format.names():
            value = str(value) if type(value) is int else value
            is_readable, kind = isinstance(value, str), "a string or a whole number"
        else:
            is_readable = type(value) in (int, float)
            value = float(min(max(value, -HUGE), HUGE)) if is_readable and value == value else value
        if not is_readable:
            raise TypeError(f"{field} is {shown(value)} instead of {kind}")
        return value

    for place, record in json_objects(data, unused):
        try:
            row = [checked(field, record.get(field)) for field in values]
        except TypeError as problem:
            unused.add("type", 1, place, str(problem))
            continue
        numbers.append(int(place.removeprefix("line ")))
        for column, value in zip(values.values(), row, strict=True):
            column.append(value)
    types = dict.fromkeys(values, pa.float64())
    types |= dict.fromkeys(trace_format.names(), pa.string())
    types[trace_format.hash_ids] = pa.list_(pa.int64())
    columns = pa.table({field: pa.array(column, types[field]) for field, column in values.items()})
    filled = np.array([number for number, line in enumerate(io.BytesIO(data), 1) if line.strip()])
    rows = np.searchsorted(filled, numbers)
    return RawTrace(path, trace_format, columns, rows, lambda row: f"line {filled[row]}", unused)
