"""Measures candidates by a user's command: one process per candidate, without a shell, under a time limit.

The protocol: the last line of stdout is the latency in us, as a number or as a JSON object with latency_us and
optionally cv, samples, compile_s, benchmark_s, status. Exit status 0: it worked; 2: did not compile; 3: wrong result;
any other, a signal or the time limit: failed while running.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from kernelsight.catalog.tables import contracts
from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_values import parse_json
from kernelsight.files.numbers import is_number
from kernelsight.files.own import own_json
from kernelsight.files.redaction import redacted_text
from kernelsight.searching.commands import run_bounded, split_words

EXIT = {0: "ok", 2: "compile_failed", 3: "wrong_result"}
OTHERWISE = "runtime_failed"
STATUSES = (*EXIT.values(), OTHERWISE)
# columns of a measurement that the command may print
PRINTED = ("latency_us", "cv", "samples", "compile_s", "benchmark_s")
# bytes of output that are read from its end
MOST_OUTPUT = 65_536
PLACEHOLDER = re.compile(r"\{(\w+)\}")
HOW = "print the latency in us, or a JSON object with latency_us, as the last line"


class CommandMeasurer:
    """Measures rows of ``kernel_candidates`` in turn, each by one run of a command.

    ``command``: words with {name} of a parameter, {parameters} (JSON object of all), {candidate_id} or {source} (file
    with the candidate's source text). Values are substituted after the command is split into words, so that neither a
    shell nor a second split sees them. InvalidInput: a command that cannot be run, an unknown name, or output without a
    latency.

    Output without a latency is an error until the command has printed one; later it is a failure of its candidate, so
    that a search that has run for hours continues.
    """

    def __init__(self, command: str, time_limit_s: float) -> None:
        self._words = words_of(command)
        self._limit_s, self._is_understood = time_limit_s, False
        self.unread: list[str] = []
        """Why output could not be read, one sentence per candidate."""
        self.last_failure: str | None = None
        """Candidate, exit status and last error line of the last candidate that failed."""

    def __call__(self, candidates: pa.Table) -> pa.Table:
        """Measure candidates; return rows of ``kernel_measurements``."""
        return measurement_rows([self._measured(row) for row in candidates.to_pylist()], "command")

    def _measured(self, row: Mapping[str, Any]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="kernelsight-") as folder:
            words = _arguments(row, self._words, Path(folder))
            started = time.monotonic()
            ended = run_bounded(words, "--measure", self._limit_s, MOST_OUTPUT)
            took_s = time.monotonic() - started
        status = EXIT.get(ended.code, OTHERWISE)
        # a time that the command does not print is the elapsed one, which --minutes counts
        duration = "compile_s" if status == "compile_failed" else "benchmark_s"
        key = {"space": row["space"], "candidate_id": row["candidate_id"], duration: took_s}
        if status != "ok":
            how = f"exit status {ended.code}" if ended.code is not None else f"killed after {self._limit_s:g} s"
            reason = f": {ended.last_error[:200]}" if ended.last_error else ""
            self.last_failure = f"{row['candidate_id']}: {how}{reason}"
            return {**key, "status": status}
        try:
            measurement = _parsed_output(ended.output, row["candidate_id"])
        except InvalidInput as error:
            if not self._is_understood:
                raise
            self.unread.append(str(error))
            return {**key, "status": OTHERWISE}
        self._is_understood = True
        key["benchmark_s"] = max(took_s - measurement.get("compile_s", 0.0), 0.0)
        status = measurement.pop("status", "ok")
        return {**key, **(measurement if status == "ok" else {**measurement, "latency_us": None}), "status": status}


def words_of(command: str) -> list[str]:
    """Split the command of ``--measure`` into words; InvalidInput for none, or for quotes that do not close."""
    return split_words(command, "--measure", "replay, cupy, or a command such as './bench {block_size_x}'")


def check_parameters(command: str) -> None:
    """Raise InvalidInput for a command without a parameter, which would be the same for every candidate."""
    if not any(PLACEHOLDER.search(word) for word in words_of(command)):
        raise InvalidInput(
            f"--measure {redacted_text(command)!r} names no parameter, so that every candidate would run the same "
            "command; put {parameters} or the {name} of a parameter into it."
        )


def _arguments(row: Mapping[str, Any], words: Sequence[str], folder: Path) -> list[str]:
    values = {name: _text(value) for name, value in own_json(row["parameters"]).items()}
    values |= {"parameters": row["parameters"], "candidate_id": row["candidate_id"]}
    if row["source_text"] is not None:
        values["source"] = str(folder / "candidate.cu")
        Path(values["source"]).write_text(row["source_text"], encoding="utf-8")

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise InvalidInput(
                f"--measure asks for {match[0]}, which candidate {row['candidate_id']} does not have; it has "
                f"{', '.join(sorted(values))}."
            )
        return values[match[1]]

    return [PLACEHOLDER.sub(value, word) for word in words]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _parsed_output(output: str, candidate: str) -> dict[str, Any]:
    """Parse the last line of the output as a measurement; InvalidInput if it is not one."""
    lines = [line for line in output.splitlines() if line.strip()]
    if not lines:
        raise InvalidInput(f"the command printed nothing for candidate {candidate}; {HOW}.")
    result = None
    with contextlib.suppress(InvalidInput):
        result = parse_json(lines[-1], InvalidInput)
    if isinstance(result, int | float) and not isinstance(result, bool):
        result = {"latency_us": result}
    shown = lines[-1].strip()[:60]
    if not isinstance(result, dict):
        raise InvalidInput(f"the command printed {shown!r} for candidate {candidate}; {HOW}.")
    status = result.get("status", "ok")
    if status not in STATUSES:
        raise InvalidInput(
            f"the command gave candidate {candidate} the status {status!r}; use {', '.join(sorted(STATUSES))}."
        )
    measurement = {name: result[name] for name in PRINTED if result.get(name) is not None}
    for name, value in measurement.items():
        if not is_number(value) or value < 0 or (name in ("latency_us", "samples") and value <= 0):
            raise InvalidInput(
                f"the command gave candidate {candidate} {name} {value!r}; give a finite number above 0."
            )
    if status == "ok" and "latency_us" not in measurement:
        raise InvalidInput(f"the command printed {shown!r} for candidate {candidate}, without latency_us; {HOW}.")
    return {**measurement, "status": status}


def measurement_rows(rows: Sequence[Mapping[str, Any]], source: str) -> pa.Table:
    """Convert measurements to rows of ``kernel_measurements``; the search sets the GPU and numbers the runs."""
    schema = contracts()["kernel_measurements"].schema
    filled_rows = [{"gpu": "", "run": 1, "source": source, **row} for row in rows]
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in filled_rows], schema)
