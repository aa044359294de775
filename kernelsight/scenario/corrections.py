"""Corrections that a comparison has fitted, applied to deployments of the same fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelsight.dataflow.session import Session
from kernelsight.errors import InvalidInput

# what a correction rests on; other limits change which steps there are, not what they take
IDENTITY = (
    *("model", "gpu", "tp", "pp", "dp", "ep", "engine", "dtype", "attention_format", "ffn_format", "expert_format"),
    *("kv_cache_dtype", "moe_backend", "graph_max_tokens", "async_scheduling"),
)


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits for a row of ``deployment_settings``: deployments for which a correction holds."""
    text = "\n".join(f"{name} {settings[name]}" for name in IDENTITY)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def give_corrections(session: Session, path: str | Path) -> str:
    """Apply the corrections of a Parquet file to the deployments of a session that they were fitted for; say so.

    InvalidInput: the file has none, or none of the deployments is the one that they were fitted for.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        stated = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InvalidInput(
            f"--correction {path} cannot be read as Parquet ({error}); write one with compare."
        ) from None
    if not stated or not {"part", "factor", "exposed_us", "fingerprint"} <= stated[0].keys():
        raise InvalidInput(f"--correction {path} holds no corrections; write one with `kernelsight compare -o FILE`.")
    rows = []
    for settings in session.table("deployment_settings").to_pylist():
        own = fingerprint(settings)
        rows += [{**row, "deployment_id": settings["deployment_id"]} for row in stated if row["fingerprint"] == own]
    if not rows:
        raise InvalidInput(
            f"--correction {path} was fitted for another deployment: model, GPU, engine, parallel sizes or formats "
            "differ; fit one for this deployment, or leave it out."
        )
    session.give("corrections", rows)
    return (
        f"kernels and host time are corrected by {Path(path).name}: {rows[0]['fitted_on']} ({rows[0]['n']:,} requests)"
    )
