"""The journal of a measurement: each point, measured or failed, is on disk before the next is measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.caches.durable import draft_of
from kernelsight.caches.journal import Journal, Records, read_journal
from kernelsight.errors import InvalidInput
from kernelsight.measure.rows import sweep_schema

KIND = "measurement"
# metadata key of a sweep's rejected points, read by evaluations: JSON array of {gpu, reason, n}
REJECTED = b"kernelsight.rejected"


class Points:
    """The points measured so far: ``done`` by key, None for a failed one (with its reason in ``failures``)."""

    def __init__(self, path: Path, header: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]) -> None:
        """Start the journal with the points of an earlier one, which it replaces."""
        self.done: dict[str, dict[str, Any] | None] = {}
        self.failures: dict[str, str] = {}
        self._journal = Journal(path, KIND, {**header, "columns": sweep_schema().names}, earlier)
        for record in earlier:
            self._keep(record)

    def add(self, point: str, row: Mapping[str, Any] | None, failure: str | None = None) -> None:
        """Write one point, measured or failed; it is on disk when this returns."""
        record = {**(row or {}), "point": point, "failure": failure}
        self._journal.append(record)
        self._keep(record)

    def close(self) -> None:
        """Close the journal, which stays on the disk."""
        self._journal.close()

    def write_sweep(self, target: Path, gpu: str) -> None:
        """Write the measured points atomically as a Parquet file in the contract of ``sweep_points``."""
        rows = [row for row in self.done.values() if row is not None]
        counts: dict[str, int] = {}
        for reason in self.failures.values():
            counts[reason] = counts.get(reason, 0) + 1
        rejected = [{"gpu": gpu, "reason": reason, "n": n} for reason, n in counts.items()]
        table = pa.Table.from_pylist(rows, sweep_schema())
        table = table.replace_schema_metadata({REJECTED: json.dumps(rejected)})
        with draft_of(target) as draft:
            pq.write_table(table, draft, compression="zstd")

    def _keep(self, record: Mapping[str, Any]) -> None:
        row = {name: record[name] for name in record if name not in ("point", "failure")}
        self.done[record["point"]] = None if record["failure"] else row
        if record["failure"]:
            self.failures[record["point"]] = record["failure"]


def read_points(path: Path) -> Records:
    """Read a journal of points; InvalidInput: it is not one, or of another version's columns."""
    header, records = read_journal(path, KIND)
    if not isinstance(header, dict) or header.get("columns") != sweep_schema().names:
        raise InvalidInput(f"{path} has other columns than this version writes; use another -o FILE.")
    return Records(header, records)
