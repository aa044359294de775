"""Training rows: measured kernels as the call columns that their family's expression reads.

Work (FLOP and least bytes) is defined here as in ``sql/lower/<family>_calls.sql``; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.catalog.tables import facts

# Data that a sweep touches before it comes back to the same bytes: GEMM collectors rotate a few copies of the weight.
WEIGHT_COPIES = 6
FULL_PAIRS = 'batch * (growing * cached_tokens + growing * (growing + 1) / 2 + (new_tokens - growing) * "window")'


def _streamed(element_bytes: str, flops: float) -> dict[str, str]:
    """Columns of a kernel over rows x columns elements that moves so many bytes for each."""
    return {
        "rows": "shape.rows",
        "columns": 'shape."columns"',
        "flops": f"{flops} * rows * columns",
        "bytes": f"rows * columns * {element_bytes}",
        "working_set_bytes": "bytes",
    }


# family: call columns as SQL over the fields of a shape, beside bits of the format (weight_bits, activation_bits)
WORK: dict[str, dict[str, str]] = {
    "gemm": {
        "m": "shape.m",
        "n": "shape.n",
        "k": "shape.k",
        "flops": "2.0 * m * n * k",
        "bytes": "m * k * activation_bits / 8 + n * k * weight_bits / 8 + m * n * 2.0",
        "working_set_bytes": f"{WEIGHT_COPIES} * n * k * weight_bits / 8 + m * k * activation_bits / 8 + m * n * 2.0",
    },
    "batched_gemm": {
        "batch": "shape.batch",
        "m": "shape.m",
        "n": "shape.n",
        "k": "shape.k",
        "flops": "2.0 * batch * m * n * k",
        "bytes": "batch * ((m * k + n * k) * weight_bits / 8 + m * n * 2.0)",
        "working_set_bytes": "bytes",
    },
    "prefill_attention": {
        "batch": "shape.batch",
        "new_tokens": "shape.new_tokens",
        "cached_tokens": "coalesce(shape.cached_tokens, 0)",
        "heads": "shape.heads",
        "kv_heads": "shape.kv_heads",
        "head_dim": "shape.head_dim",
        "window": 'coalesce(shape."window", 0)',
        "kv_bytes": "weight_bits / 8",
        "growing": 'case when "window" > 0 then least(greatest("window" - cached_tokens, 0), new_tokens) '
        "else new_tokens end",
        "visible_pairs": FULL_PAIRS,
        "cached_read": 'case when "window" > 0 then least(cached_tokens, "window" - 1) else cached_tokens end',
        "flops": "4.0 * heads * head_dim * visible_pairs",
        "bytes": "batch * (4.0 * new_tokens * heads * head_dim + 4.0 * new_tokens * kv_heads * head_dim + "
        "2.0 * cached_read * kv_heads * head_dim * kv_bytes)",
        "working_set_bytes": "bytes",
    },
    "encoder_attention": {
        "batch": "shape.batch",
        "new_tokens": "shape.new_tokens",
        "cached_tokens": "0",
        "heads": "shape.heads",
        "kv_heads": "shape.heads",
        "head_dim": "shape.head_dim",
        "window": "0",
        "kv_bytes": "2.0",
        "visible_pairs": "batch * new_tokens * new_tokens",
        "flops": "4.0 * heads * head_dim * visible_pairs",
        "bytes": "8.0 * batch * new_tokens * heads * head_dim",
        "working_set_bytes": "bytes",
    },
    "decode_attention": {
        "batch": "shape.batch",
        "context": "shape.context",
        "heads": "shape.heads",
        "kv_heads": "shape.kv_heads",
        "head_dim": "shape.head_dim",
        "window": 'coalesce(shape."window", 0)',
        "kv_bytes": "weight_bits / 8",
        "keys": 'case when "window" > 0 then least(context + 1, "window") else context + 1 end',
        "flops": "4.0 * batch * heads * head_dim * keys",
        "bytes": "batch * (4.0 * heads * head_dim + 2.0 * keys * kv_heads * head_dim * kv_bytes)",
        "working_set_bytes": "bytes",
    },
    "mla_prefill": {
        "batch": "shape.batch",
        "new_tokens": "shape.new_tokens",
        "cached_tokens": "coalesce(shape.cached_tokens, 0)",
        "heads": "shape.heads",
        "qk_head_dim": "shape.head_dim",
        "v_head_dim": "shape.v_head_dim",
        "kv_bytes": "weight_bits / 8",
        "visible_pairs": "batch * (new_tokens * cached_tokens + new_tokens * (new_tokens + 1) / 2)",
        "flops": "2.0 * heads * (qk_head_dim + v_head_dim) * visible_pairs",
        "bytes": "2.0 * batch * heads * (qk_head_dim + v_head_dim) * (2 * new_tokens + cached_tokens)",
        "working_set_bytes": "bytes",
    },
    "mla_decode": {
        "batch": "shape.batch",
        "context": "shape.context",
        "heads": "shape.heads",
        "kv_lora_rank": "shape.kv_lora_rank",
        "rope_dim": "shape.rope_dim",
        "kv_bytes": "weight_bits / 8",
        "flops": "2.0 * batch * heads * (2 * kv_lora_rank + rope_dim) * (context + 1)",
        "bytes": "batch * ((context + 1) * (kv_lora_rank + rope_dim) * kv_bytes + 2.0 * heads * (2 * "
        "kv_lora_rank + rope_dim))",
        "working_set_bytes": "bytes",
    },
    "moe": {
        "tokens": "shape.tokens",
        "hidden": "shape.hidden",
        "intermediate": "shape.intermediate",
        "local_experts": "shape.experts",
        "top_k": "shape.top_k",
        "moe_tp": "shape.moe_tp",
        "moe_ep": "shape.moe_ep",
        "matrices": "shape.expert_matrices",
        # how the collector drew the experts: the exponent of its power law, 0 where all get equally many tokens
        "load_exponent": "coalesce(try_cast(regexp_extract(distribution, '^power_law_([0-9.]+)$', 1) as double), 0)",
        "active_experts": "local_experts * (1 - pow(1 - top_k / (local_experts * moe_ep), tokens))",
        "flops": "2.0 * tokens * top_k / moe_ep * matrices * intermediate * hidden",
        "bytes": "active_experts * matrices * intermediate * hidden * weight_bits / 8 + 4.0 * tokens * "
        "least(1.0, top_k / moe_ep) * hidden",
        "working_set_bytes": "bytes",
    },
    "quantize": {
        "rows": "shape.rows",
        "columns": 'shape."columns"',
        "flops": "2.0 * rows * columns",
        "bytes": "rows * columns * (2 + activation_bits / 8)",
        "working_set_bytes": "bytes",
    },
    # elements of 16 bits in and out, with the residual of a fused addition
    "norm": _streamed("case when implementation like '%add%' then 8.0 else 4.0 end", flops=4.0),
    "activation": _streamed("6.0", flops=4.0),
    "rope": _streamed("4.0", flops=3.0),
    "kv_write": _streamed("(2 + weight_bits / 8)", flops=0.0),
    "embedding": _streamed("4.0", flops=0.0),
    # FP32 logits, read for the softmax and for the choice; a greedy choice needs no softmax
    "sampling": _streamed("case when implementation = 'argmax' then 4.0 else 8.0 end", flops=3.0),
    "linear_attention": {
        "rows": "shape.rows",
        "columns": 'shape."columns"',
        "sequences": "shape.sequences",
        "taps": "coalesce(shape.width, 0)",
        "heads": "shape.heads",
        "kv_heads": "shape.kv_heads",
        "key_dim": "shape.head_dim",
        "value_dim": "shape.v_head_dim",
        "flops": "case when taps > 0 then 2.0 * rows * columns * taps else 6.0 * rows * heads * key_dim * "
        "value_dim end",
        "bytes": "case when taps > 0 then 2.0 * columns * (2 * rows + 2 * sequences * (taps - 1) + taps) "
        "else 2.0 * rows * (2 * kv_heads * key_dim + 2 * heads * value_dim + 2 * heads) "
        "+ 8.0 * sequences * heads * key_dim * value_dim end",
        "working_set_bytes": "bytes",
    },
    "sparse_attention": {
        "queries": "shape.queries",
        "visible_pairs": "shape.pairs",
        "heads": "shape.heads",
        "width": "shape.width",
        # a sweep measures scores and selection apart: a width of nought is the selection alone
        "selects": "case when shape.width = 0 then 1 else 0 end",
        "keys": "case when shape.width > 256 then "
        "least(shape.cached_tokens + shape.new_tokens, shape.new_tokens * 2048) "
        "else shape.cached_tokens + shape.new_tokens end",
        "flops": "2.0 * visible_pairs * heads * width",
        "bytes": "case when width = 0 then 4.0 * visible_pairs "
        "when width > 256 then shape.batch * keys * 576.0 + queries * heads * 2176.0 "
        "else shape.batch * keys * 132.0 + queries * heads * 128.0 end",
        "working_set_bytes": "bytes",
    },
    **{
        family: {"group_size": "shape.gpus", "bytes": "shape.bytes", "flops": "0.0"}
        for family in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
    },
}
IDENTITY = ("gpu", "implementation", "engine", "engine_version", "dtype")


def training_rows(
    sweeps: Sequence[Path | str], family: str, gpus: Sequence[str] | None = None, extra: str = ""
) -> pa.Table:
    """Return the measured rows of a family: identity, math, distribution, call columns (float64), latency_us.

    ``sweeps``: Parquet files in the ``sweep_points`` contract; ``gpus``: those wanted, None for all; ``extra``: a SQL
    condition beside it. Rows come in the order of their key, whatever the order of the files.
    """
    work = dict(WORK[family])
    if "working_set_bytes" in work and any("working_set_bytes" in pq.read_schema(path).names for path in sweeps):
        # measured cold or warm, as the row says; else as collectors of the family are known to
        work["working_set_bytes"] = f"coalesce(points.working_set_bytes, {work['working_set_bytes']})"
    wanted = "" if gpus is None else f" and gpu in ({', '.join(map(_text, gpus))})"
    files = ", ".join(_text(str(path)) for path in sweeps)
    relation = f"read_parquet([{files}], union_by_name = true)"
    order = ", ".join([*IDENTITY, *map(_quoted, work), "distribution", "latency_us"])
    connection = duckdb.connect()
    return _selected(
        connection, relation, work, f"family = {_text(family)} and not_fitted is null {wanted} {extra}", order
    )


def call_rows(points: pa.Table, family: str) -> pa.Table:
    """Return rows that are not measured yet as :func:`training_rows` would: of ``points``, all of one family, in order.

    ``points``: the contract of ``sweep_points``, whatever their latency.
    """
    connection = duckdb.connect()
    numbered = points.append_column("number", pa.array(range(points.num_rows), pa.int64()))
    connection.register("stated", numbered)
    return _selected(connection, "stated", WORK[family], "true", "number")


def _selected(
    connection: duckdb.DuckDBPyConnection, relation: str, work: Mapping[str, str], condition: str, order: str
) -> pa.Table:
    columns = ", ".join(f"({sql})::double as {_quoted(name)}" for name, sql in work.items())
    connection.register("formats", facts("number_formats"))
    return connection.sql(
        f"""
        select {", ".join(IDENTITY)}, points.math, points.format, distribution, latency_us, {columns}
        from {relation} as points left join formats using (format)
        where {condition}
        order by {order}
        """
    ).to_arrow_table()


def _quoted(name: str) -> str:
    return '"' + name + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
