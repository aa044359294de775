"""Roofline lower bounds of kernel latency, to reject impossible rows: FLOP at peak rate, bytes from memory and links.

A bound holds for any routing, fusion and cache state: for MoE the fewest experts that tokens can reach, and two
matrices per expert if experts without a gate cannot be identified; bytes minus the size of L2; for arithmetic the
fastest rate that a row's labels allow (an 8-bit KV cache may use 8-bit products). Work is rows of ``least_work.json``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from kernelsight.files.own import own_json, own_text
from kernelsight.kernels.work import evaluated

TOLERANCE = 0.95  # boost clocks above the catalogue's and rounding
MICROSECONDS_PER_SECOND = 1e6
_WORK: dict[str, Any] = own_json(own_text(Path(__file__).with_name("least_work.json")))


def peak_flops_per_us(gpu: dict[str, float | None]) -> pl.Expr:
    """Return the fastest dense rate, in FLOP/us, that a row's labels allow on a GPU (a row of ``gpus``)."""
    sixteen_bit = max(gpu["bf16_flops_per_s"] or 0.0, gpu["fp16_flops_per_s"] or 0.0)
    rates = {math: gpu[f"{math}_flops_per_s"] or sixteen_bit for math in ("bf16", "fp16", "fp8", "fp4", "int8")}
    eight_bit_kv = pl.col("format").is_in(["fp8", "int8"]).fill_null(False)
    labelled = pl.col("math").replace_strict(rates, default=max(rates.values()))
    return (
        pl.when(eight_bit_kv).then(pl.max_horizontal(labelled, rates["fp8"])).otherwise(labelled)
        / MICROSECONDS_PER_SECOND
    )


def least_work(what: str, family: str, rows: pl.DataFrame) -> pl.Expr | None:
    """Return the least flops, bytes or sent_bytes of each row's kernel; None where a family has no lower bound."""
    if family not in _WORK[what]:
        return None
    # 64-bit integers would overflow
    fields = rows.select(pl.selectors.integer().cast(pl.Float64), pl.selectors.float(), pl.selectors.string())
    sql = _WORK[what][family].format_map(_WORK["named"])
    return pl.lit(pl.from_arrow(evaluated(sql, fields.to_arrow())))


def impossible(family: str, rows: pl.DataFrame, gpu: dict[str, float | None]) -> list[tuple[str, pl.Expr]]:
    """Return the checks of a family's rows on a GPU as (reason, true if too fast); empty if the family has no bound."""
    latency, checks = pl.col("latency_us"), []
    flops, read, sent = (least_work(what, family, rows) for what in ("flops", "bytes", "sent_bytes"))
    if flops is not None:
        checks.append(("faster_than_peak", latency < TOLERANCE * flops / peak_flops_per_us(gpu)))
    if read is not None:
        rate = gpu["memory_bandwidth_bytes_per_s"] / MICROSECONDS_PER_SECOND
        checks.append(("faster_than_memory", latency < TOLERANCE * (read - gpu["l2_bytes"]) / rate))
    if sent is not None:
        rate = gpu["link_bytes_per_s"] / MICROSECONDS_PER_SECOND
        checks.append(("faster_than_link", latency < TOLERANCE * sent / rate))
    return checks
