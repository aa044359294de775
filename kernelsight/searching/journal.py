"""The journal of a search: every measurement and proposal, replayed when a killed search is resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kernelsight.caches.journal import Journal, read_journal
from kernelsight.errors import InvalidInput
from kernelsight.files.numbers import is_number
from kernelsight.searching.arrays import STATUS
from kernelsight.searching.history import History, Outcome, finite_or_none
from kernelsight.searching.proposers import Proposals, Proposer
from kernelsight.searching.rounds import Measure, Propose
from kernelsight.searching.targets import Target

KIND = "search"
FIELDS = ("latency_us", "cv", "samples", "compile_s", "benchmark_s")


def digest(scenario: Mapping[str, Any], tables: Mapping[str, pa.Table]) -> str:
    """Return the SHA-256 of a search's inputs: its scenario, candidates and given measurements."""
    sha = hashlib.sha256(json.dumps(dict(scenario), sort_keys=True).encode())
    for name in sorted(tables):
        sha.update(name.encode())
        for column in tables[name].combine_chunks().itercolumns():
            sha.update(json.dumps(column.to_pylist(), default=str).encode())
    return sha.hexdigest()


def open_journal(path: Path, header: str, resume: bool) -> tuple[Journal, list[dict[str, Any]]]:
    """Open the journal of a search for appending, and return its records so far.

    ``header``: digest of the search. InvalidInput: the journal of another search, or one without ``resume``.
    """
    earlier: list[dict[str, Any]] = []
    if path.exists():
        if not resume:
            raise InvalidInput(f"{path} holds a search that did not finish; --resume continues it, or remove the file.")
        stored_header, earlier = read_journal(path, KIND)
        if stored_header != header:
            raise InvalidInput(
                f"{path} belongs to another search: scenario or measurements differ; use the same flags and files, or "
                "another -o FILE."
            )
    return Journal(path, KIND, header, earlier), earlier


def journaled(measure: Measure, ids: Sequence[str], journal: Journal, waiting: list[dict[str, Any]]) -> Measure:
    """Wrap a measurer: it takes its first measurements from a journal, and appends every further one to it.

    ``waiting``: the records of the journal, the next one last.
    """

    def measure_one(row: int, run: int) -> dict[str, Any]:
        candidate = str(ids[row])
        if waiting:
            entry = waiting.pop()
            if (entry.get("candidate_id"), entry.get("run")) != (candidate, run):
                raise InvalidInput(
                    f"the journal measured {entry.get('candidate_id')}, but this version of the search measures "
                    f"{candidate} there; start again with another -o FILE."
                )
            return entry
        outcome = measure(np.array([row]), np.array([run]))
        record: dict[str, Any] = {"candidate_id": candidate, "run": run, "status": STATUS[int(outcome.status[0])]}
        record |= {field: finite_or_none(getattr(outcome, field)[0]) for field in FIELDS}
        journal.append(record)
        return record

    def measure_all(rows: np.ndarray, runs: np.ndarray) -> Outcome:
        records = [measure_one(int(row), int(run)) for row, run in zip(rows, runs, strict=True)]
        status = np.array([STATUS.index(record["status"]) for record in records], dtype=np.int8)
        columns = [np.array([_real(record[field]) for record in records]) for field in FIELDS]
        return Outcome(status, *columns)

    return measure_all


def journaled_proposals(proposer: Proposer, journal: Journal | None, waiting: list[dict[str, Any]]) -> Propose:
    """Wrap a proposer: it takes its first proposals from a journal, and appends every further one to it."""

    def propose(number: int, history: History, proposed_before: np.ndarray) -> tuple[np.ndarray, Target | None]:
        if waiting:
            record = waiting.pop()
            if record.get("round") != number or "proposed" not in record:
                raise InvalidInput(
                    f"the journal has no proposals of round {number} where they should be; start again with another -o "
                    "FILE."
                )
            fields = record["proposed"]
            return proposer.rows(Proposals(*(tuple(field) if isinstance(field, list) else field for field in fields)))
        proposed = proposer(number, history, proposed_before)
        if journal is not None:
            journal.append({"round": number, "proposed": list(proposed)})
        return proposer.rows(proposed)

    return propose


def _real(value: float | None) -> float:
    return np.nan if value is None else float(value)


def measured_by(
    function: Callable[[pa.Table], pa.Table], candidates: Callable[[Sequence[int]], pa.Table], space: str, gpu: str
) -> Measure:
    """Wrap a measurer of tables (``kernel_candidates`` to ``kernel_measurements``) as a measurer of row indices.

    ``candidates``: returns rows of ``kernel_candidates`` of row indices.
    """

    def measure(rows: np.ndarray, runs: np.ndarray) -> Outcome:
        chosen = candidates(rows.tolist())
        names = chosen["candidate_id"].to_pylist()
        measured = function(chosen)
        by_name = {row["candidate_id"]: row for row in measured.to_pylist()}
        missing = [name for name in names if name not in by_name]
        if missing:
            raise InvalidInput(f"the measurer returned no row for candidate {missing[0]} of {space!r} on {gpu}.")
        records = [by_name[name] for name in names]
        for record in records:
            check_row(record)
        status = np.array([STATUS.index(record["status"]) for record in records], dtype=np.int8)
        columns = [np.array([_real(record.get(field)) for record in records]) for field in FIELDS]
        return Outcome(status, *columns)

    return measure


def check_row(record: Mapping[str, Any]) -> None:
    """Raise InvalidInput for a measurement with an unknown status, or an ok one without a finite time above 0."""
    if record.get("status") not in STATUS[1:]:
        raise InvalidInput(
            f"the measurer gave candidate {record.get('candidate_id')} the status {record.get('status')!r}; use "
            f"{', '.join(STATUS[1:])}."
        )
    time = record.get("latency_us")
    if record["status"] == "ok" and not (is_number(time) and time > 0):
        raise InvalidInput(
            f"the measurer gave candidate {record.get('candidate_id')} status ok with the time {time}; an ok "
            "measurement has a finite time above 0 in us."
        )
