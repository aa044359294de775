"""Runs that aiconfigurator-core ships: cleaned, pairs with inferred speculative decoding, disaggregated runs."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.contract import conform
from kernelsight.errors import InvalidInput, KernelSightError
from kernelsight.evaluation.runs.measured_runs import HELD_OUT, Runs
from kernelsight.fitting.kernel_sweeps.aiconfigurator import installed_package
from kernelsight.fitting.kernel_sweeps.devices import SEALED
from kernelsight.laboratory.runs.run_classes import is_mixture
from kernelsight.laboratory.runs.sources.parallel_sizes import DATA_PARALLEL, measured_elsewhere, with_launched_sizes

FILE = "systems/silicon_sample.csv"
# a column that names the file
MARK = "silicon_ttft_ms"
# parallel sizes of the prefill and decode workers of disaggregated runs
WORKERS = (
    *("prefill_num_workers", "prefill_tp_size", "prefill_pp_size", "prefill_attention_dp_size", "prefill_moe_ep_size"),
    *("decode_num_workers", "decode_tp_size", "decode_pp_size", "decode_attention_dp_size", "decode_moe_ep_size"),
)
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
    *WORKERS,
)
# dumps of InferenceX, and two files of its runs with Qwen3.5 and Kimi-K2.5: most of their rows are in a dump too
INFERENCEX = r"^db-dump/|^source_file=(\d{4}-|[a-z][^/]*-gap-analysis\.csv)"
_source = pl.col("silicon_data_source")
_concurrency = _source.str.extract(r"silicon_concurrency=(\d+)").cast(pl.Int64)


def _is_dense(model: str) -> bool:
    """Whether a model is known to have no routed experts."""
    try:
        return not is_mixture(model)
    except KernelSightError:
        return False


UNRECORDED = "DeepSeek-R1: speculative decoding not recorded (pairs whose TPOTs show it are scored separately)"
REPEATED = "same TTFT and TPOT as an earlier row"
_unrecorded = pl.col("model_path").str.contains("DeepSeek-R1")
_ranks = pl.col("attention_dp_size").fill_null(1)
# in the order of application: reason of an exclusion, and condition to keep a row
FILTERS: tuple[tuple[str, pl.Expr], ...] = (
    ("concurrency unknown", _concurrency.is_not_null()),
    ("marked as work in progress by its source", ~_source.str.contains("wip=True")),
    (
        "data-parallel attention not recorded",
        (_ranks == 1) | ((pl.col("backend") != "vllm") & (_ranks > 1)),
    ),
    (
        "more than one node: tensor x data parallelism above 8, or pipeline stages",
        (pl.col("tp_size") * _ranks <= 8) & (pl.col("pp_size") == 1),
    ),
    (
        "experts on other GPUs than attention",
        pl.col("model_path").map_elements(_is_dense, return_dtype=pl.Boolean)
        | (pl.col("moe_tp_size") * pl.col("moe_ep_size") == pl.col("tp_size") * _ranks),
    ),
    (UNRECORDED, ~_unrecorded),
    (REPEATED, pl.struct("silicon_ttft_ms", "silicon_tpot_ms").is_first_distinct()),
    (HELD_OUT, ~pl.col("system").is_in(SEALED)),
)
SIDES = ("prefill", "decode")
# the same for disaggregated runs
DISAGGREGATED: tuple[tuple[str, pl.Expr], ...] = (
    ("number of workers unknown", pl.all_horizontal(pl.col(f"{side}_num_workers").is_not_null() for side in SIDES)),
    *(FILTERS[number] for number in (0, 1)),
    (
        "workers of more than one node: tensor parallelism above 8, or pipeline stages",
        pl.all_horizontal(
            (pl.col(f"{side}_tp_size") <= 8) & (pl.col(f"{side}_pp_size").fill_null(1) == 1) for side in SIDES
        ),
    ),
    *FILTERS[-3:],
)


# minimum ratio of the TPOTs of otherwise equal runs with and without speculative decoding
SPECULATIVE_RATIO = 1.05
EQUAL_RUNS = (
    *("backend", "system", "precision", "isl", "osl", "tp_size", "moe_tp_size", "moe_ep_size", "concurrency"),
)
SPECULATIVE = tuple(each for each in FILTERS if each[0] != UNRECORDED)


def shipped_file() -> Path:
    """Return the file in the installed package; InvalidInput: it is not installed."""
    return installed_package() / FILE


def read(path: Path) -> Runs:
    """Return the runs of the package's file; InvalidInput: columns are missing."""
    return _clean(pl.read_csv(path, infer_schema_length=None, glob=False), path)


def _kept(rows: pl.DataFrame, filters: tuple[tuple[str, pl.Expr], ...]) -> tuple[pl.DataFrame, list[tuple[str, int]]]:
    """Return the rows that pass all filters, and (reason, number of rows) of the others."""
    excluded = []
    for reason, condition in filters:
        before, rows = rows.height, rows.filter(condition.fill_null(False))
        if rows.height < before:
            excluded.append((reason, before - rows.height))
    return rows, excluded


def _pairs(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the runs whose use of speculative decoding follows from otherwise equal runs, with ``speculative``.

    Of two or more different TPOTs, the smallest was measured with speculative decoding, the largest without; runs in
    between, and runs with equal TPOTs, are excluded.
    """
    distinct_runs = rows.with_columns(concurrency=_concurrency, rounded=pl.col("silicon_tpot_ms").round(4))
    key = (*EQUAL_RUNS, "rounded", pl.col("silicon_ttft_ms").round(2))
    distinct_runs = distinct_runs.unique(key, keep="first", maintain_order=True)
    lowest, highest = (getattr(pl.col("rounded"), name)().over(EQUAL_RUNS) for name in ("min", "max"))
    pairs = distinct_runs.with_columns(least=lowest, most=highest).filter(
        pl.col("most") > SPECULATIVE_RATIO * pl.col("least")
    )
    pairs = pairs.with_columns(speculative=pl.col("rounded") == pl.col("least"))
    pairs = pairs.filter(pl.col("speculative") | (pl.col("rounded") == pl.col("most")))
    return pairs.select(*rows.columns, "speculative")


def _clean(raw: pl.DataFrame, path: Path) -> Runs:
    """Apply the filters in order, and return the remaining rows with the contract's column names."""
    missing = [name for name in COLUMNS if name not in raw.columns]
    if missing:
        raise InvalidInput(
            f"{path} is missing the columns {', '.join(missing)}; use the file of aiconfigurator-core 0.12."
        )
    run_rows = raw.select(COLUMNS).with_columns(pl.col(WORKERS).cast(pl.Int64))
    served = with_launched_sizes(run_rows.filter(pl.col("mode") == "agg"))
    # rows whose sizes were stated as launched come first: of equal measurements the first is kept
    aggregated, excluded = _kept(served.sort(pl.col("scored_separately").is_not_null(), maintain_order=True), FILTERS)
    before, aggregated = aggregated.height, measured_elsewhere(aggregated, _concurrency)
    excluded = [(reason, count + (before - aggregated.height) * (reason == REPEATED)) for reason, count in excluded]
    pairs = _pairs(_kept(served.filter(_unrecorded & pl.col("scored_separately").is_null()), SPECULATIVE)[0])
    split, exclusions = _kept(run_rows.filter(pl.col("mode") != "agg"), DISAGGREGATED)
    excluded += [(f"disaggregated: {reason}", count) for reason, count in exclusions]
    split = split.with_columns(
        # of TensorRT-LLM images the version is Dynamo's
        backend_version=pl.when(pl.col("backend") != "trtllm").then("backend_version"),
        **{f"{name}_size": pl.col(f"decode_{name}_size") for name in ("tp", "pp", "moe_ep", "attention_dp")},
        batch_size=pl.lit(None, aggregated["batch_size"].dtype),
        scored_separately=pl.when(
            pl.any_horizontal(pl.col(f"{side}_attention_dp_size").fill_null(1) > 1 for side in SIDES)
        ).then(pl.lit(f"disaggregated, {DATA_PARALLEL}")),
    )
    aggregated, split = (frame.with_columns(speculative=pl.lit(None, pl.Boolean)) for frame in (aggregated, split))
    rows = _contract_columns(pl.concat([aggregated, pairs, split], how="vertical_relaxed"))
    return Runs(
        conform(rows.to_arrow(compat_level=pl.CompatLevel.oldest()), contracts()["measured_runs"], origin=path.name),
        raw.height,
        excluded,
    )


def _contract_columns(runs: pl.DataFrame) -> pl.DataFrame:
    """Return rows of aiconfigurator's file with the columns of ``measured_runs``."""
    disaggregated = pl.col("mode") != "agg"
    batch, concurrency = pl.col("batch_size"), _concurrency
    # if the batch size is smaller than the concurrency, the concurrency is the total of several engines
    workers = pl.when(batch.is_between(1, concurrency - 1)).then(concurrency // batch).otherwise(1)
    return runs.select(
        run_id="id",
        campaign=pl.when(_source.str.contains(INFERENCEX)).then(pl.lit("inferencex")).otherwise(pl.lit("gap_analysis")),
        # later files of the source name the same weights so
        model=pl.when(_unrecorded).then(pl.lit("deepseek-ai/DeepSeek-V3")).otherwise("model_path"),
        gpu="system",
        tp="tp_size",
        pp="pp_size",
        dp=_ranks,
        ep=pl.col("moe_ep_size").fill_null(1),
        prefill_workers=pl.when(disaggregated).then("prefill_num_workers"),
        prefill_tp=pl.when(disaggregated).then("prefill_tp_size"),
        prefill_dp=pl.when(disaggregated).then(pl.col("prefill_attention_dp_size").fill_null(1)),
        prefill_ep=pl.when(disaggregated).then(pl.col("prefill_moe_ep_size").fill_null(1)),
        decode_workers=pl.when(disaggregated).then("decode_num_workers"),
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
        num_speculative_tokens=pl.lit(None, pl.Int64),
        draft_acceptance_rate=pl.lit(None, pl.Float64),
        speculative="speculative",
        scored_separately="scored_separately",
        ttft_ms="silicon_ttft_ms",
        tpot_ms="silicon_tpot_ms",
        source="silicon_data_source",
    )
