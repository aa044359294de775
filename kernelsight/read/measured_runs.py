"""Measured end-to-end runs: those that ``aiconfigurator-core`` ships, cleaned, or a file of ``measured_runs``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.catalog.tables import contracts, read_facts
from kernelsight.dataflow.contract import conform
from kernelsight.errors import InvalidInput
from kernelsight.read.sweeps.aiconfigurator import installed_package

AICONFIGURATOR = "aiconfigurator"
FILE = "systems/silicon_sample.csv"
# held back for one final check: counted, never simulated, fitted or scored
SEALED_GPUS = ("b300_sxm", "gb300")
COLUMNS = (
    *("id", "silicon_data_source", "backend", "backend_version", "model_path", "system", "precision", "mode"),
    *(
        "isl",
        "osl",
        "gemm_quant_mode",
        "moe_quant_mode",
        "batch_size",
        "tp_size",
        "pp_size",
        "attention_dp_size",
        "moe_tp_size",
        "moe_ep_size",
    ),
    *("silicon_ttft_ms", "silicon_tpot_ms"),
)
_source = pl.col("silicon_data_source")
_concurrency = _source.str.extract(r"silicon_concurrency=(\d+)").cast(pl.Int64)
# in this order: what is left out, and the test that a row must pass to stay
FILTERS: tuple[tuple[str, pl.Expr], ...] = (
    ("disaggregated: prefill and decode on workers of their own", pl.col("mode") == "agg"),
    ("concurrency not stated", _concurrency.is_not_null()),
    ("marked as work in progress by its source", ~_source.str.contains("wip=True")),
    ("data-parallel attention", pl.col("attention_dp_size").fill_null(1) == 1),
    (
        "more than one node: tensor parallelism above 8, or pipeline stages",
        (pl.col("tp_size") <= 8) & (pl.col("pp_size") == 1),
    ),
    (
        "experts spread over other GPUs than attention",
        pl.col("model_path").str.contains("Qwen3-32B|Llama-3.1")
        | (pl.col("moe_tp_size") * pl.col("moe_ep_size") == pl.col("tp_size")),
    ),
    ("DeepSeek-R1: speculative decoding not recorded", ~pl.col("model_path").str.contains("DeepSeek-R1")),
    ("the same TTFT and TPOT as a row before it", pl.struct("silicon_ttft_ms", "silicon_tpot_ms").is_first_distinct()),
    ("GPU held back for one final check", ~pl.col("system").is_in(SEALED_GPUS)),
)


class Runs(NamedTuple):
    """``measured_runs`` to simulate, rows read, and what was left out: (reason, rows), in the order of the tests."""

    table: pa.Table
    read: int
    excluded: list[tuple[str, int]]


def read_runs(source: str) -> Runs:
    """Return the runs of a file, or with ``aiconfigurator`` those that the installed package ships.

    A file is a Parquet or CSV of ``measured_runs``, or of the package's own columns. InvalidInput: none of these.
    """
    path = installed_package() / FILE if source == AICONFIGURATOR else Path(source)
    if not path.is_file():
        raise InvalidInput(
            f"there is no file {path}; --runs takes aiconfigurator, or a .csv or .parquet of measured_runs."
        )
    if path.suffix not in (".csv", ".parquet"):
        raise InvalidInput(f"{path} ends in {path.suffix!r}; --runs takes a .csv or .parquet of measured_runs.")
    try:
        raw = pl.read_csv(path, infer_schema_length=None) if path.suffix == ".csv" else pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InvalidInput(f"{path} cannot be read: {str(error).splitlines()[0]}.") from None
    if "silicon_ttft_ms" in raw.columns:
        return _clean(raw, path)
    contract = contracts()["measured_runs"]
    table = (
        read_facts(path, contract)
        if path.suffix == ".csv"
        else conform(pq.read_table(path), contract, origin=path.name)
    )
    sealed = pa.compute.is_in(table["gpu"], pa.array(SEALED_GPUS))
    counted = pa.compute.sum(sealed).as_py() or 0
    excluded = [(FILTERS[-1][0], counted)] if counted else []
    return Runs(table.filter(pa.compute.invert(sealed)), table.num_rows, excluded)


def _clean(raw: pl.DataFrame, path: Path) -> Runs:
    """Apply the filters one after the other, and give what stays the names of the contract."""
    missing = [name for name in COLUMNS if name not in raw.columns]
    if missing:
        raise InvalidInput(f"{path} lacks the columns {', '.join(missing)}; take the file of aiconfigurator-core 0.12.")
    kept, excluded = raw.select(COLUMNS), []
    for reason, stays in FILTERS:
        before, kept = kept.height, kept.filter(stays.fill_null(False))
        if kept.height < before:
            excluded.append((reason, before - kept.height))
    batch, concurrency = pl.col("batch_size"), _concurrency
    # where the source counts a batch of its own, the concurrency is that of all engines together
    workers = pl.when(batch.is_between(1, concurrency - 1)).then(concurrency // batch).otherwise(1)
    rows = kept.select(
        run_id="id",
        harness=pl.when(_source.str.contains(r"^db-dump/|^source_file=\d{4}-"))
        .then(pl.lit("inferencex"))
        .otherwise(pl.lit("gap_analysis")),
        model="model_path",
        gpu="system",
        tp="tp_size",
        pp="pp_size",
        dp=pl.lit(1, pl.Int64),
        ep=pl.col("moe_ep_size").fill_null(1),
        engine="backend",
        engine_version=pl.col("backend_version").replace("", None),
        quantization="precision",
        gemm_label="gemm_quant_mode",
        expert_label="moe_quant_mode",
        measured_on=_source.str.extract(r"measured=(\d{4}-\d\d-\d\d)"),
        isl="isl",
        osl="osl",
        max_concurrency=concurrency,
        workers=workers,
        request_rate=pl.lit(None, pl.Float64),
        ttft_ms="silicon_ttft_ms",
        tpot_ms="silicon_tpot_ms",
        source="silicon_data_source",
    )
    return Runs(
        conform(rows.to_arrow(compat_level=pl.CompatLevel.oldest()), contracts()["measured_runs"], origin=path.name),
        raw.height,
        excluded,
    )
