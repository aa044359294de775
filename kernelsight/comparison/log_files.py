"""Input files of a comparison: request logs, a baseline, and logs of engine steps, metrics and kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from kernelsight.logs.read_logs import is_table, read_logs, read_table


class LogFiles(NamedTuple):
    """Input files of ``Session.compare``, under the names of its parameters.

    ``requests``, ``baseline``: paths, or a table in memory.
    """

    requests: Any
    baseline: Any = None
    log_format: str = "auto"
    columns: Mapping[str, str] | None = None
    steps: Any = ()
    metrics: Any = ()
    kernels: Any = ()

    def tables(self) -> dict[str, pa.Table]:
        """Return the tables of the log by name, with engine steps, metrics and kernels."""
        return self._read(self.requests, self.steps, self.metrics, self.kernels)

    def earlier_tables(self) -> dict[str, pa.Table]:
        """Return the tables of the baseline by name."""
        return self._read(self.baseline)

    def _read(self, requests: Any, *other_paths: Any) -> dict[str, pa.Table]:
        if not is_table(requests):
            return read_logs(requests, self.log_format, self.columns, *other_paths)
        table = pa.Table.from_pylist(requests) if isinstance(requests, list) else requests
        return read_table(table, self.columns, *other_paths)
