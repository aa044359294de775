"""Corrections that ``compare`` fitted to a log, applied to deployments with the same fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.dataflow.contract import as_arrow
from kernelsight.dataflow.python_nodes import produces
from kernelsight.dataflow.rows import python_rows
from kernelsight.dataflow.session import Session
from kernelsight.errors import InvalidInput
from kernelsight.files.parquet_files import read_parquet

if TYPE_CHECKING:
    import pyarrow as pa

# settings that determine the times of steps; other limits change which steps there are, not their times
IDENTITY = (
    *("model", "gpu", "tp", "pp", "dp", "ep", "engine", "dtype", "attention_format", "ffn_format", "expert_format"),
    *("kv_cache_dtype", "attention_backend", "moe_backend", "async_scheduling"),
)


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits of a row of ``deployment_settings``; a correction holds for equal fingerprints."""
    captured = "graphs" if settings["graph_max_tokens"] else "eager"
    text = "\n".join([*(f"{name} {settings[name]}" for name in IDENTITY), captured])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@produces("corrections")
def corrections_of(deployment_settings: pa.Table, log_corrections: pa.Table) -> list[dict[str, Any]]:
    """Factors on kernels and additional host time of each deployment."""
    by_fingerprint: dict[str, list[dict[str, Any]]] = {}
    for row in log_corrections.to_pylist():
        by_fingerprint.setdefault(row["fingerprint"], []).append(row)
    return [
        {**row, "deployment_id": settings["deployment_id"]}
        for settings in (deployment_settings.to_pylist() if by_fingerprint else ())
        for row in by_fingerprint.get(fingerprint(settings), [])
    ]


def give_corrections(session: Session, corrections: Any) -> str:
    """Set a session's ``log_corrections``, and return a sentence on their source.

    ``corrections``: a Parquet file, or a table ``fitted_corrections``. InvalidInput: it holds no corrections.
    """
    is_file = isinstance(corrections, str | Path)
    table = _table_of_file(corrections) if is_file else as_arrow(corrections, "correction")
    if not table.num_rows or not {"part", "factor", "exposed_us", "fingerprint"} <= set(table.column_names):
        raise InvalidInput(
            f"{_source_of(corrections)} holds no corrections; write one with `kernelsight compare -o FILE`."
        )
    session.give("log_corrections", python_rows(table))
    name = Path(corrections).name if isinstance(corrections, str | Path) else "a given table"
    first_row = session.table("log_corrections").slice(0, 1).to_pylist()[0]
    requests = "" if first_row["n"] is None else f" ({first_row['n']:,} requests)"
    return f"kernels and host time are corrected by {name}: {first_row['fitted_on'] or 'fitted to a log'}{requests}"


def _table_of_file(path: str | Path) -> pa.Table:
    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"--correction {path} {problem}; write one with `kernelsight compare -o FILE`.")

    return read_parquet(path, refuse)


def _source_of(corrections: Any) -> str:
    return f"--correction {corrections}" if isinstance(corrections, str | Path) else "the table of corrections"


def refuse_unused_corrections(session: Session, corrections: Any) -> None:
    """Raise InvalidInput where none of the session's deployments has the fingerprint of given corrections."""
    if not session.table("corrections").num_rows:
        raise InvalidInput(
            f"{_source_of(corrections)} was fitted for another deployment: model, GPU, engine, parallel sizes or "
            "formats differ; fit one for this deployment, or leave it out."
        )
