"""Traces that readers of measured runs write: their runs are replayed with the lengths and arrivals of each request."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq


@cache
def _folder() -> TemporaryDirectory:
    """Return a temporary folder for traces, removed when the process ends."""
    return TemporaryDirectory(prefix="kernelsight-replays-")


def trace_file(name: str, requests: pa.Table) -> str:
    """Write the requests of a trace under a name, and return its path."""
    path = Path(_folder().name) / f"{name}.parquet"
    pq.write_table(requests, path)
    return str(path)
