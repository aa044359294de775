"""Parallel sizes of measured runs as launched, restored where the source's files state products of them.

In these files a run launched with tensor-parallel size T and expert-parallel size E > 1 is stated with T x E GPUs,
``moe_tp_size`` T and ``moe_ep_size`` E. An earlier file states 44 of the same measurements, to the last digit, with T
GPUs. Runs of vLLM are stated with T attention replicas and ``moe_ep_size`` T x T; 30 of them are in an earlier file
with T and E = T, and their launch scripts do not know data-parallel attention.
"""

from __future__ import annotations

import polars as pl

# file names in the source of a row
PRODUCTS = r"^db-dump/2026-04-27|^source_file=2026-04-06\.csv"
RESTORED = "parallel sizes restored: the source states products of them"
DATA_PARALLEL = "data-parallel attention"
# rows of equal sizes whose measurements agree within this share are duplicates
SAME_SHARE = 1e-3
SIZES = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
EQUAL = ("model_path", "system", "backend", "precision", "isl", "osl", "concurrency", *SIZES)
MEASURED = ("silicon_ttft_ms", "silicon_tpot_ms")


def with_launched_sizes(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with the parallel sizes of their launch, and ``scored_separately``: the reason, or null.

    Rows that were usable before their sizes were restored are scored with the others. The launch script of MiniMax FP4
    supports data-parallel attention, and its rows do not state whether it was on: they stay as they are.
    """
    tp, dp, moe_tp, moe_ep = (pl.col(name).fill_null(1) for name in SIZES)
    vllm = pl.col("backend") == "vllm"
    product = pl.col("silicon_data_source").str.contains(PRODUCTS)
    multiplied = product & ~vllm & (moe_tp > 1) & (moe_ep > 1)
    unknown_dp = pl.col("model_path").str.contains("MiniMax") & (pl.col("precision") == "fp4")
    squared = product & vllm & (dp > 1) & (moe_tp == 1) & (moe_ep == tp * dp) & ~unknown_dp
    ranks = pl.when(multiplied & (dp > 1)).then(moe_tp).when(squared).then(1).otherwise(dp)
    has_dp_attention = (ranks > 1) & ~vllm
    restored = (multiplied & (tp > 8)) | squared
    return rows.with_columns(
        tp_size=pl.when(multiplied).then(moe_tp // ranks).otherwise(pl.col("tp_size")),
        attention_dp_size=ranks,
        moe_tp_size=pl.when(multiplied).then(moe_tp // moe_ep).otherwise(pl.col("moe_tp_size")),
        moe_ep_size=pl.when(squared).then(tp).otherwise(pl.col("moe_ep_size")),
        # the batch of such rows is that of one rank, or was computed with the wrong number of ranks
        batch_size=pl.when(has_dp_attention | squared).then(None).otherwise(pl.col("batch_size")),
        scored_separately=pl.when(has_dp_attention)
        .then(pl.lit(DATA_PARALLEL))
        .when(restored)
        .then(pl.lit(RESTORED))
        .otherwise(pl.lit(None, pl.String)),
    )


def measured_elsewhere(rows: pl.DataFrame, concurrency: pl.Expr) -> pl.DataFrame:
    """Return the rows without separately scored duplicates of an earlier row's measurement."""
    numbered_rows = rows.with_columns(concurrency=concurrency).with_row_index("place")
    pairs = numbered_rows.filter(pl.col("scored_separately").is_not_null()).join(
        numbered_rows.select("place", *EQUAL, *MEASURED), on=EQUAL, how="inner", nulls_equal=True, suffix="_of_other"
    )
    is_close = pl.all_horizontal(
        (pl.col(f"{name}_of_other") / pl.col(name) - 1).abs() < SAME_SHARE for name in MEASURED
    )
    duplicates = pairs.filter(is_close & (pl.col("place_of_other") < pl.col("place")))["place"]
    return numbered_rows.filter(~pl.col("place").is_in(duplicates.implode())).drop("place", "concurrency")
