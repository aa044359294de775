"""The journal of a measurement: one durable record per point, so that a kill loses at most the current point.

The journal is an Arrow stream next to the sweep: one record batch per point, synced to disk. An incomplete end is
ignored on reading.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.dataflow.bounded_files import check_file
from kernelsight.dataflow.durable import draft_of
from kernelsight.errors import InvalidInput
from kernelsight.measure.rows import sweep_schema

SUFFIX = ".journal"
HEADER = b"kernelsight.measure"
# metadata key of a sweep's rejected points, read by evaluations: JSON array of {gpu, reason, n}
REJECTED = b"kernelsight.rejected"


def journal_path(target: Path) -> Path:
    """Return the path of a sweep's journal.

    >>> journal_path(Path("sweep.parquet")).name
    'sweep.parquet.journal'
    """
    return target.with_name(target.name + SUFFIX)


class Journal:
    """The points measured so far: ``done`` by key, None for a failed one (with its reason in ``failures``)."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self.schema = _schema().with_metadata({HEADER: json.dumps(dict(header)).encode()})
        self.done: dict[str, dict[str, Any] | None] = {}
        self.failures: dict[str, str] = {}
        self._file: Any = None
        self._writer: Any = None

    def open(self, earlier: Sequence[Mapping[str, Any]]) -> None:
        """Start a new journal with the points of an earlier one, which it replaces atomically."""
        swept = glob.escape(self.path.name.removesuffix(SUFFIX))
        for left in self.path.parent.glob(f".{swept}.*.draft"):
            left.unlink(missing_ok=True)  # left by a killed run: this one holds the lock
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}.draft")
        self._file = draft.open("wb")
        self._writer = pa.ipc.new_stream(self._file, self.schema)
        try:
            # a stream starts with its first batch: a kill before the first point must leave a valid journal
            self._writer.write_batch(pa.RecordBatch.from_pylist([], self.schema))
            for row in earlier:
                self._keep(row)
                self._writer.write_batch(pa.RecordBatch.from_pylist([dict(row)], self.schema))
            self._sync()
            draft.replace(self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                self.close()
            raise
        finally:
            draft.unlink(missing_ok=True)

    def add(self, point: str, row: Mapping[str, Any] | None, failure: str | None = None) -> None:
        """Write one point, measured or failed; it is on disk when this returns."""
        record = {**(row or {}), "point": point, "failure": failure}
        self._writer.write_batch(pa.RecordBatch.from_pylist([record], self.schema))
        self._sync()
        self._keep(record)

    def close(self) -> None:
        """End the stream, at most once, even if writing its end fails."""
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            finally:
                self._file.close()

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

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())


def _schema() -> pa.Schema:
    fields = [pa.field("point", pa.string()), pa.field("failure", pa.string())]
    return pa.schema([*fields, *(field.with_nullable(True) for field in sweep_schema())])


def read_journal(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the header and the valid records at the start of a journal; InvalidInput if it is not a journal."""
    records: list[dict[str, Any]] = []
    header: dict[str, Any] | None = None
    check_file(path, lambda found: InvalidInput(f"the journal {path} {found}; use another -o FILE."))
    with path.open("rb") as file:
        try:
            reader = pa.ipc.open_stream(file)
            stated = json.loads((reader.schema.metadata or {})[HEADER])
            if not reader.schema.equals(_schema()):
                raise InvalidInput(f"{path} has other columns than this version writes; use another -o FILE.")
            header = {name: stated[name] for name in ("suite", "digest", "gpu", "serial")}
            while True:
                batch = reader.read_next_batch()
                batch.validate(full=True)  # a damaged batch may have invalid offsets
                records += batch.to_pylist()
        except (StopIteration, pa.ArrowException, OSError, MemoryError, LookupError, TypeError, ValueError):
            if header is None:
                raise InvalidInput(f"{path} is not a measurement journal; use another -o FILE.") from None
    return header, records
