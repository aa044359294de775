"""Reader of ``vllm bench forward``: kernels of one forward pass (--profile-dir), and its cases (--output-json)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from kernelsight.logs.files import LogFile, documents, unusable
from kernelsight.logs.log_run import LogFormat, LogRun
from kernelsight.logs.profiles import with_families

NAME = "forward-kernels"
_RANK = re.compile(r"^(?P<case>.+?)\.rank(?P<rank>\d+)\.(?:trace|kernels)")


def _recognises(file: LogFile) -> bool:
    if file.kind != "json":
        return False
    return {"replays", "kernels[].us"} <= file.fields or {"[].case", "[].median_us"} <= file.fields


def read_forward_kernels(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run per ``<case>.rank<r>.kernels.json``: us of one forward pass by kernel.

    Files of --output-json among them add query and KV lengths of each case's requests. InvalidInput: no kernels.
    """
    cases: dict[str, list[Any]] = {}
    kernels: list[tuple[LogFile, Mapping[str, Any]]] = []
    for file in files:
        for _, value in documents(file):
            if isinstance(value, list):
                cases |= {str(entry.get("case")): entry.get("requests") or [] for entry in value}
            elif isinstance(value, Mapping):
                kernels.append((file, value))
    if not kernels:
        raise unusable(files[0].path, "has cases without kernels", "Give the files of --profile-dir too.")
    return [_run(file, value, cases) for file, value in kernels]


def _run(file: LogFile, summary: Mapping[str, Any], cases: Mapping[str, list[Any]]) -> LogRun:
    trace_name = str(summary.get("trace") or "").rpartition("/")[2]
    match = _RANK.match(trace_name) or _RANK.match(file.path.name)
    case, rank = (match.group("case"), int(match.group("rank"))) if match else (file.name, 0)
    entries = [entry for entry in summary.get("kernels") or [] if isinstance(entry, Mapping)]
    if not entries:
        raise unusable(file.path, "has no kernels", "Profile a forward pass that launches some.")
    requests = cases.get(case)
    rows = [
        {
            "step_shape": case,
            "rank": rank,
            "name": str(entry["name"]),
            "full_name": str(entry.get("example") or entry["name"]),
            "calls": float(entry["calls"]),
            "total_us": float(entry["us"]),
            "forwards": 1,
            "span_us": summary.get("span_us"),
            "query_lens": [int(request["query_len"]) for request in requests] if requests else None,
            "kv_lens": [int(request["kv_len"]) for request in requests] if requests else None,
        }
        for entry in entries
    ]
    frame = pl.DataFrame(rows, schema_overrides={"query_lens": pl.List(pl.Int64), "kv_lens": pl.List(pl.Int64)})
    run = LogRun(file, NAME)
    kernels = with_families(frame, run.faults, "full_name").filter(pl.col("calls") > 0)
    run.kernels = kernels.with_columns(_family(requests).alias("family")).drop("full_name")
    return run


def _family(requests: list[Any] | None) -> pl.Expr:
    """Return the kernel family; attention kernels for both prefill and decode are classified by query lengths."""
    lengths = {int(request["query_len"]) for request in requests or ()}
    attention_family = (
        "decode_attention" if lengths == {1} else "prefill_attention" if lengths and 1 not in lengths else "attention"
    )
    return pl.when(pl.col("family") == "attention").then(pl.lit(attention_family)).otherwise(pl.col("family"))


FORMAT = LogFormat(
    NAME, "kernels", "vllm bench forward --profile-dir (<case>.rank0.kernels.json)", _recognises, read_forward_kernels
)
