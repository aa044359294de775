"""Reader of measured end-to-end runs: ``aiconfigurator-core``, files of ``measured_runs``, other campaigns' files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa

from kernelsight.catalog.tables import contracts, from_rows, read_columns, renamed
from kernelsight.dataflow.bounded_files import ROWS_BYTES, check_file
from kernelsight.dataflow.contract import conform
from kernelsight.dataflow.parquet_files import read_parquet
from kernelsight.errors import InvalidInput
from kernelsight.evaluation.runs.parallel_sizes import DATA_PARALLEL, measured_elsewhere, with_launched_sizes
from kernelsight.evaluation.runs.sources import http_stages, inference_perf, mlenergy, trtllm_tables
from kernelsight.fitting.kernel_sweeps.aiconfigurator import installed_package
from kernelsight.fitting.kernel_sweeps.devices import SEALED

AICONFIGURATOR = "aiconfigurator"
FILE = "systems/silicon_sample.csv"
ENDINGS = (".csv", ".parquet")
# readers of known source files, which are recognised by their header
SOURCES = (mlenergy, trtllm_tables, http_stages)
# names of columns in older files
FORMER = {"harness": "campaign"}
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
        pl.col("model_path").str.contains("Qwen3-32B|Llama-3.1")
        | (pl.col("moe_tp_size") * pl.col("moe_ep_size") == pl.col("tp_size") * _ranks),
    ),
    (UNRECORDED, ~_unrecorded),
    (REPEATED, pl.struct("silicon_ttft_ms", "silicon_tpot_ms").is_first_distinct()),
    ("GPU held out for the final evaluation", ~pl.col("system").is_in(SEALED)),
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


class Runs(NamedTuple):
    """Rows of ``measured_runs`` to simulate, number of rows read, and exclusions: (reason, number of rows)."""

    table: pa.Table
    read: int
    excluded: list[tuple[str, int]]


def read_runs(*sources: str) -> Runs:
    """Return the measured runs of files and folders; ``aiconfigurator``: those shipped in the installed package.

    A file is a Parquet or CSV of ``measured_runs``, or has the columns of a known source (``SOURCES``); a folder holds
    such files, or the reports of one run of inference-perf. Runs on held-out GPUs are excluded and counted.
    InvalidInput: none of these, or a run that is read twice.
    """
    sources_read = [source_runs for source in sources for source_runs in _runs_of_source(source)]
    table = pa.concat_tables(source_runs.table for source_runs in sources_read)
    run_ids, duplicates = set(), []
    for name in table["run_id"].to_pylist():
        duplicates += [name] if name in run_ids else []
        run_ids.add(name)
    if duplicates:
        raise InvalidInput(f"run {duplicates[0]!r} is in --runs twice; name each file once, and each run differently.")
    counted: dict[str, int] = {}
    for reason, count in (exclusion for source_runs in sources_read for exclusion in source_runs.excluded):
        counted[reason] = counted.get(reason, 0) + count
    return Runs(table, sum(source_runs.read for source_runs in sources_read), list(counted.items()))


def _runs_of_source(source: str) -> list[Runs]:
    """Return the runs of each file of a path, or of the installed package."""
    path = installed_package() / FILE if source == AICONFIGURATOR else Path(source)
    if not path.is_dir():
        return [_read_file(path)]
    if list(path.glob(inference_perf.STAGES)):
        rows, excluded = inference_perf.read(path)
        return [_of_source(rows, excluded, path)]
    files = [file for file in sorted(path.iterdir()) if file.suffix in ENDINGS and not _describes_workloads(file)]
    if not files:
        raise _refusal(path, "holds no such file")
    return [_read_file(file) for file in files]


def _describes_workloads(path: Path) -> bool:
    """Whether a file only describes the workloads of another file."""
    return path.suffix == ".csv" and set(_header(path)) >= http_stages.STAGES


def _header(path: Path) -> list[str]:
    """Return the column names of a CSV file."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        return next(csv.reader(file), [])


def _refusal(path: Path, problem: str) -> InvalidInput:
    takes = "--runs takes aiconfigurator, or a .csv or .parquet file of measured_runs or of a known source, or a folder"
    return InvalidInput(f"file {path} {problem}; {takes}.")


def _read_file(path: Path) -> Runs:
    """Return the runs of one file; InvalidInput: it cannot be read as ``measured_runs`` or a known source."""
    check_file(path, lambda problem: _refusal(path, problem), ROWS_BYTES)
    if path.suffix not in ENDINGS:
        raise InvalidInput(f"{path} ends in {path.suffix!r}; --runs takes a .csv or .parquet file of measured_runs.")
    # pyarrow refuses damaged Parquet files at which polars panics
    parquet_rows = read_parquet(path, lambda problem: _refusal(path, problem)) if path.suffix == ".parquet" else None
    columns = set(_header(path) if parquet_rows is None else parquet_rows.column_names)
    try:
        for reader in SOURCES:
            if columns >= reader.COLUMNS and parquet_rows is None:
                return _of_source(*reader.read(path), path)
        raw = (
            pl.read_csv(path, infer_schema_length=None, glob=False)
            if parquet_rows is None
            else pl.DataFrame(parquet_rows)
        )
        if "silicon_ttft_ms" in columns:
            return _clean(raw, path)
        contract = contracts()["measured_runs"]
        rows = read_columns(path, contract, FORMER) if parquet_rows is None else renamed(parquet_rows, FORMER)
        table = conform(_with_defaults(rows, path), contract, origin=path.name)
    except (pl.exceptions.PolarsError, pa.ArrowException, OSError, ValueError) as error:
        raise _refusal(path, f"cannot be read ({str(error).splitlines()[0].rstrip('.')})") from None
    return _unsealed(table, table.num_rows, [])


def _with_defaults(rows: pa.Table, path: Path) -> pa.Table:
    """Return rows with the columns that a file may lack: sizes of 1, and the name of the file."""
    defaults = {"campaign": path.stem, **dict.fromkeys(("pp", "dp", "ep", "workers"), 1), "source": path.name}
    for name, value in defaults.items():
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return rows


def _of_source(rows: list[dict[str, Any]], excluded: list[tuple[str, int]], path: Path) -> Runs:
    contract = contracts()["measured_runs"]
    table = conform(from_rows(rows, contract), contract, origin=path.name)
    return _unsealed(table, table.num_rows + sum(count for _, count in excluded), excluded)


def _unsealed(table: pa.Table, read: int, excluded: list[tuple[str, int]]) -> Runs:
    """Return the runs without those on held-out GPUs, which are counted as excluded."""
    sealed = pa.compute.is_in(table["gpu"], pa.array(SEALED))
    counted = pa.compute.sum(sealed).as_py() or 0
    final_only = [(FILTERS[-1][0], counted)] if counted else []
    return Runs(table.filter(pa.compute.invert(sealed)), read, [*excluded, *final_only])


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
