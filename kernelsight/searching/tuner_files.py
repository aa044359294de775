"""Reads search spaces measured by tuners: Kernel Tuner's cache and T4 files, Triton's cache, inductor's log.

Files may be gzipped or cut off.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import statistics
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import pieces_of, read_bytes, unpacked
from kernelsight.files.bounded_values import json_values
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
UNNAMED_GPU = "unnamed GPU"
_AUTOTUNE = re.compile(r"\bAUTOTUNE (\w+\([^)]*\))")
_CHOICE = re.compile(r" (\d{1,9}\.\d{1,9}) ms \d{1,3}\.\d{1,3}%(.*)$")


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
    """Read a tuner's file, recognised by its fields; times become microseconds and seconds.

    ``space``, ``gpu``: names to use instead of the file's own. InvalidInput: no such file, or of no known tuner.
    """
    text, is_whole = _text(path)
    if choices := [*_inductor_choices(text)]:
        return _inductor_file(path, choices, space, gpu)
    header, entries, cut = _parse(path, text)
    notes = [] if is_whole and not cut else [f"{path.name} is cut short: {len(entries):,} whole entries were read"]
    folder = path.resolve().parent.name
    if header.get("triton"):
        names = (space or path.name.partition(".")[0], gpu or UNNAMED_GPU)
        entries_read = [_triton_row(entry) for entry in entries]
        times = sorted(row["latency_us"] / MS for row in entries_read if isinstance(row, dict) and "latency_us" in row)
        lowest = f", lowest p50 {times[0]:g} ms ({times.count(times[0])} tie)" if times else ""
        notes.append(f"{path.name}: {len(times)} candidates with p50, p20 and p80 in ms{lowest}")
        notes += [] if gpu else [f"{path.name} names no GPU: --gpu sets it"]
    elif header.get("t4"):
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
        (content, cut), *_ = ((value, False) for value, _ in json_values(text))
    except ValueError:
        content, cut = _whole_part(text), True
    if isinstance(content, dict) and isinstance(content.get("cache"), dict):
        return content, list(content["cache"].values()), cut
    if isinstance(content, dict) and isinstance(content.get("results"), list):
        return {"t4": True}, content["results"], cut
    if isinstance(content, dict) and isinstance(content.get("configs_timings"), list):
        return {"triton": True}, content["configs_timings"], cut
    raise InvalidInput(
        f"{path} is of no known tuner: no 'cache' or 'results' (Kernel Tuner), no 'configs_timings' (Triton), no line "
        "AUTOTUNE (inductor); give the file as it was written."
    )


def _whole_part(text: str) -> dict[str, Any] | None:
    """Parse a JSON object that is truncated within its ``cache`` or ``results``, up to the last whole entry."""
    for name, bracket in (("cache", "{"), ("results", "[")):
        begin = text.find(f'"{name}"')
        start = text.find(bracket, begin)
        if begin < 0 or start < 0 or text[begin + len(name) + 2 : start].strip() != ":":
            continue
        entries, head = list[Any](), None
        with contextlib.suppress(ValueError):
            ((head, _),) = json_values(text[:begin].rstrip().rstrip(",") + "}")
            for entry, _ in json_values(text, start + 1, ", \t\r\n:"):
                entries.append(entry)
        if head is not None:  # of a cache, names and entries in turn
            named = zip(map(str, entries[::2]), entries[1::2], strict=False)
            return head | {name: dict(named) if name == "cache" else entries}
    return None


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


def _triton_row(entry: Any) -> dict[str, Any] | str:
    """Convert an entry of the cache of ``@triton.autotune(cache_results=True)``: a config and its times, ms."""
    config, times = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
    if not isinstance(config, dict) or not isinstance(config.get("kwargs"), dict):
        return "entry that is no object"
    limits = {name: config.get(name) for name in ("num_warps", "num_ctas", "num_stages", "maxnreg")}
    parameters = config["kwargs"] | {name: value for name, value in limits.items() if value is not None}
    times = times if isinstance(times, list) else [times]
    failed = bool(times) and isinstance(times[0], float) and math.isinf(times[0])
    row = _row(parameters, "runtime" if failed else "correct", times[0] if times else None, None, None, None)
    if isinstance(row, dict) and len(times) == 3 and all(map(_is_time, times)):
        # between p20 and p80 of a normal distribution are 1.683 standard deviations
        row |= {"cv": max(times[2] - times[1], 0.0) / 1.683 / times[0]} if row["status"] == "ok" else {}
    return row


def _inductor_choices(text: str) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Yield (space, row) of the choices in the AUTOTUNE blocks of torch inductor's log; those of libraries rejected."""
    space = None
    for line in text.splitlines() if "AUTOTUNE " in text else ():
        if (match := _AUTOTUNE.search(line)) and "benchmarking takes" not in line:
            space = match[1].strip()
        elif space and (match := _CHOICE.search(line)):
            words = dict(re.findall(r"(\w+)=([^,\s]+)", match[2]))
            if not words:
                yield space, "choice of a library, without parameters"
                continue
            parameters = {name: int(value) if value.isdigit() else value.strip("'") for name, value in words.items()}
            yield space, _row(parameters, "correct", float(match[1]), None, None, None)


def _inductor_file(path: Path, choices: Sequence[tuple[str, Any]], space: str | None, gpu: str | None) -> TunerFile:
    """Return the rows of inductor's log, a space for each AUTOTUNE block of other operands."""
    files = [
        _accepted([row for place, row in choices if place == name], (space or name, gpu or UNNAMED_GPU), path.name, [])
        for name in dict.fromkeys(place for place, _ in choices)
    ]
    rejected: dict[str, int] = {}
    for file in files:
        for reason, n in file.rejected.items():
            rejected[reason] = rejected.get(reason, 0) + n
    notes = [] if gpu else [f"{path.name} names no GPU: --gpu sets it"]
    return TunerFile([row for file in files for row in file.rows], rejected, notes)


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
