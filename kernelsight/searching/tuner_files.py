"""Reads search spaces measured by Kernel Tuner: cache files and T4 results, also gzipped or truncated."""

from __future__ import annotations

import json
import statistics
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import pieces_of, read_bytes, unpacked
from kernelsight.files.budget import ROWS
from kernelsight.files.numbers import is_number

# columns of a file of search spaces, in order
COLUMNS = (
    *("space", "gpu", "parameters", "latency_us", "cv", "samples", "compile_s", "benchmark_s", "status", "source"),
)
FAILURES = {
    **{"CompilationFailedConfig": "compile_failed", "RuntimeFailedConfig": "runtime_failed"},
    **{"ErrorConfig": "runtime_failed", "compile": "compile_failed", "runtime": "runtime_failed"},
    **{"timeout": "runtime_failed", "correctness": "wrong_result"},
}
RESTRICTED = ("InvalidConfig", "constraints")
MS = 1e3


class TunerFile(NamedTuple):
    """The content of a file: rows with ``COLUMNS``, the number of rejected rows by reason, and notes to print."""

    rows: list[dict[str, Any]]
    rejected: dict[str, int]
    notes: list[str]

    @property
    def read(self) -> int:
        """Entries of the file, rejected ones included."""
        return len(self.rows) + sum(self.rejected.values())


def read_tuner_file(path: Path, space: str | None = None, gpu: str | None = None) -> TunerFile:
    """Read a cache file or T4 results of Kernel Tuner; times become microseconds and seconds.

    ``space``, ``gpu``: names to use instead of the file's own. InvalidInput: no such file, or neither format.
    """
    text, is_whole = _text(path)
    header, entries, cut = _parse(path, text)
    notes = [] if is_whole and not cut else [f"{path.name} is cut short: {len(entries):,} whole entries were read"]
    folder = path.resolve().parent.name
    if header.get("t4"):
        names = (space or folder, gpu or path.name.partition(".")[0].removesuffix("_T4"))
        if space is None or gpu is None:
            notes.append(
                f"{path.name} names neither kernel nor GPU: space {names[0]!r} and GPU {names[1]!r} are taken from "
                "its path; --space-name and --gpu set them"
            )
        entries_read = [_t4_row(entry) for entry in entries]
    else:
        names = (space or str(header.get("kernel_name") or folder), gpu or str(header.get("device_name") or path.stem))
        keys = header.get("tune_params_keys")
        entries_read = [_cache_row(entry, keys) for entry in entries]
    return _accepted(entries_read, names, path.name, notes)


def _text(path: Path) -> tuple[str, bool]:
    """Return the text of a file, as much of it as can be decompressed, and whether it is whole."""

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"{path} {problem}; give a cache or T4 file.")

    data, is_whole = read_bytes(path, refuse, ROWS), True
    if data[:2] == b"\x1f\x8b":
        chunks = []
        try:
            chunks.extend(unpacked(pieces_of(data), len(data), refuse))
        except EOFError:
            is_whole = False
        except zlib.error as error:
            raise refuse(f"cannot be decompressed ({error})") from None
        data = b"".join(chunks)
    return data.decode("utf-8", errors="replace"), is_whole


def _parse(path: Path, text: str) -> tuple[dict[str, Any], list[Any], bool]:
    """Parse a file: its header fields, its entries, and whether it is truncated."""
    try:
        content = json.loads(text)
        cut = False
    except (ValueError, RecursionError):
        content, cut = _whole_part(text), True
    if isinstance(content, dict) and isinstance(content.get("cache"), dict):
        return content, list(content["cache"].values()), cut
    if isinstance(content, dict) and isinstance(content.get("results"), list):
        return {"t4": True}, content["results"], cut
    raise InvalidInput(
        f"{path} is neither a cache file nor T4 results of Kernel Tuner: it has no object 'cache' and no list "
        "'results'; give the JSON file that Kernel Tuner wrote."
    )


def _whole_part(text: str) -> dict[str, Any] | None:
    """Parse a JSON object that is truncated within its ``cache`` or ``results``, up to the last whole entry."""
    for name, bracket in (("cache", "{"), ("results", "[")):
        begin = text.find(f'"{name}"')
        start = text.find(bracket, begin)
        if begin < 0 or start < 0 or text[begin + len(name) + 2 : start].strip() != ":":
            continue
        try:
            head = json.loads(text[:begin].rstrip().rstrip(",") + "}")
        except (ValueError, RecursionError):
            continue
        entries = list(_entries(text, start + 1, keyed=name == "cache"))
        return head | {name: dict(entries) if name == "cache" else [entry for _, entry in entries]}
    return None


def _entries(text: str, position: int, keyed: bool) -> Iterator[tuple[str, Any]]:
    decoder = json.JSONDecoder()
    blank = ", \t\r\n"
    while True:
        while position < len(text) and text[position] in blank:
            position += 1
        try:
            key = ""
            if keyed:
                key, position = decoder.raw_decode(text, position)
                position = text.index(":", position) + 1
                while text[position] in blank:
                    position += 1
            entry, position = decoder.raw_decode(text, position)
        except (ValueError, IndexError, RecursionError):
            return
        yield str(key), entry


def _cache_row(entry: Any, keys: Any) -> dict[str, Any] | str:
    """Convert an entry of a cache file to a row, or return why it is rejected."""
    if not isinstance(entry, dict):
        return "entry that is no object"
    if isinstance(keys, list) and keys:
        parameters = {str(name): entry[name] for name in keys if name in entry}
        if len(parameters) < len(keys):
            return "entry without some of its parameters"
    else:
        measured = ("time", "times", "compile_time", "benchmark_time", "verification_time", "framework_time")
        parameters = {
            name: value
            for name, value in entry.items()
            if name not in (*measured, "strategy_time", "timestamp", "__error__") and not isinstance(value, list | dict)
        }
    words = [value for value in (entry.get("__error__"), entry.get("time")) if isinstance(value, str)]
    return _row(
        *(parameters, words[0] if words else "correct", entry.get("time"), entry.get("times")),
        *(entry.get("compile_time"), entry.get("benchmark_time")),
    )


def _t4_row(entry: Any) -> dict[str, Any] | str:
    """Convert a result of a T4 file to a row, or return why it is rejected."""
    if not isinstance(entry, dict) or not isinstance(entry.get("configuration"), dict):
        return "entry that is no object"
    times = entry.get("times") if isinstance(entry.get("times"), dict) else {}
    measured = entry.get("measurements") if isinstance(entry.get("measurements"), list) else []
    time = next(
        (
            measurement.get("value")
            for measurement in measured
            if isinstance(measurement, dict) and measurement.get("name") == "time"
        ),
        None,
    )
    compiled = times.get("compilation_time", times.get("compilation"))
    return _row(
        *(entry["configuration"], str(entry.get("invalidity", "correct")), time, times.get("runtimes")),
        *(compiled, times.get("benchmark")),
    )


def _row(parameters: dict, validity: str, time: Any, times: Any, compiled: Any, benchmark: Any) -> dict[str, Any] | str:
    if validity in RESTRICTED:
        return "configuration that violates a restriction of the space"
    if not all(isinstance(value, int | float | str) for value in parameters.values()) or not parameters:
        return "entry with parameters that are neither numbers nor words"
    row: dict[str, Any] = {"parameters": json.dumps(parameters, sort_keys=True), "status": "ok"}
    row |= {"compile_s": _seconds(compiled), "benchmark_s": _seconds(benchmark)}
    if validity != "correct":
        if validity not in FAILURES:
            return "entry with an unknown kind of failure"
        return row | {"status": FAILURES[validity]}
    runs = [run for run in times if _is_time(run)] if isinstance(times, list) else []
    time = statistics.fmean(runs) if runs and not _is_time(time) else time
    if not _is_time(time):
        return "time that is missing, not above 0 or not finite"
    spread = statistics.stdev(runs) / statistics.fmean(runs) if len(runs) > 1 else None
    return row | {"latency_us": time * MS, "cv": spread, "samples": len(runs) or None}


def _is_time(value: Any) -> bool:
    return is_number(value) and value > 0


def _seconds(value: Any) -> float | None:
    return value / MS if _is_time(value) else None


def _accepted(entries: Sequence[Any], names: tuple[str, str], source: str, notes: list[str]) -> TunerFile:
    """Separate accepted rows from rejected entries; a configuration with two different times is rejected whole."""
    rejected: dict[str, int] = {}
    rows: dict[str, dict[str, Any]] = {}
    contradictory: set[str] = set()
    for row in entries:
        reason = row if isinstance(row, str) else None
        if reason is None and row["parameters"] in rows:
            is_same = rows[row["parameters"]].get("latency_us") == row.get("latency_us")
            reason = "repeated entry" if is_same else "configuration with two different times"
            contradictory |= set() if is_same else {row["parameters"]}
        if reason is not None:
            rejected[reason] = rejected.get(reason, 0) + 1
            continue
        rows[row["parameters"]] = {name: row.get(name) for name in COLUMNS} | {
            **{"space": names[0], "gpu": names[1], "source": source}
        }
    for parameters in contradictory:
        del rows[parameters]
        rejected["configuration with two different times"] += 1
    return TunerFile(list(rows.values()), rejected, notes)
