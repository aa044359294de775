"""Reader of the sweeps of ``aiconfigurator-core`` and its successor ``aisimulate`` (NVIDIA, Apache-2.0).

Only their Parquet files are read; their code is never imported.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from kernelsight.errors import InvalidInput, extra_missing, unknown
from kernelsight.fitting.kernel_sweeps.aiconfigurator_tables import (
    MODULES,
    OPTIONAL,
    SPLIT,
    TABLES,
    Table,
    known_columns,
)
from kernelsight.fitting.kernel_sweeps.devices import SEALED
from kernelsight.fitting.kernel_sweeps.package_files import SweepFile, files_of, read_table
from kernelsight.fitting.kernel_sweeps.points import Batch, Reader, first_reason

PACKAGE, SOURCE = "aiconfigurator_core", "aiconfigurator-core"
ENGINES = ("vllm", "sglang", "trtllm")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
DEVICES = {"b60": r"\bB60\b|0xe211", "rtx_pro_6000_server": r"RTX PRO 6000"}  # other GPUs: the name's first word
NODE_GPUS = {"gb200": 4, "gb300": 4}  # compute trays of an NVL72; other GPUs: boards of eight
MOSTLY = 0.5
# vLLM's block-scaled products were measured outside a CUDA graph in 0.24.0, and on B200 in 0.27.1: at least 55 us on
# Hopper and 282 us on L40S. In a graph the smallest takes 5 to 8 us
BLOCK_SCALED = (pl.col("engine") == "vllm") & (pl.col("dtype") == "fp8_block")
LEAST_HOST_BOUND_US = 40.0
SMALLEST = pl.col("latency_us").min().over("engine", "engine_version", "dtype")
HOST_BOUND = BLOCK_SCALED & (SMALLEST >= LEAST_HOST_BOUND_US)
# a second collector times Python calls of whole modules, launches included; its tables alone have this column
PYTHON_CALLS = "sample_count"
# XQA of TensorRT-LLM 1.0.0 on A100 would read its cache at 1.3 to 1.6 times the peak memory bandwidth when the cache
# exceeds L2; multi-head rows of the same sweep do not. The grouped-query rows did other work than labelled.
TOO_FAST_KIN = (
    (pl.col("engine") == "trtllm") & (pl.col("engine_version") == "1.0.0") & (pl.col("heads") > pl.col("kv_heads"))
)
# TensorRT-LLM 1.0.0 (A100, L40S) takes the same time for MLA with an FP8 and a BF16 cache, to 0.2 % per row, and 2.5
# times the time of the FP8 bytes: the FP8 label is wrong
CACHE_RAN_IN_BF16 = (
    (pl.col("engine") == "trtllm") & (pl.col("engine_version") == "1.0.0") & (pl.col("dtype") == "bf16/fp8")
)
# all-reduce over 4 and 8 L40S runs at 3.4 and 0.8 GB/s, at most a tenth of PCIe
FAR_BELOW_LINK = {"l40s": 4}
# sweeps that a slow machine ran, by equal calls of the GPU's other sweeps; no prediction counts. Products of bf16 are
# the same library calls in every engine: of a throttled sweep, one in twenty that lasts takes this many times their
# median (1.57 to 1.68 in three sweeps of GB200, of others at most 1.37). Products below half as much work are sound
SWEEP = ["engine", "engine_version"]
LASTING_FLOPS, THROTTLED_RATIO, ONE_IN_TWENTY = 1e12, 1.5, 0.95
# large all-reduces are bound by the link: three sweeps of RTX PRO 6000 take 2.4 times their median (15 GB/s of PCIe's
# 64), others at most 1.2
LARGE_BYTES, SLOW_LINK_RATIO, HALF = 2**22, 2.0, 0.5
# experts spread over GPUs: vLLM 0.19's MXFP4 experts took as long with a 128th of them on each GPU as with all, so that
# the collector computed all on each. Nine of ten large calls take 0.99 times as long; elsewhere at most 0.63
UNSPREAD_RATIO, FEWEST_TOKENS, FEWEST_GPUS, ONE_IN_TEN = 0.95, 1024, 4, 0.1
EXPERTS = [*SWEEP, "kernel_source", "dtype"]
DEEPEP_DEFAULT = "_20sm"
# SGLang expands the keys and values of prompts; its collector ran what it runs for decode steps
ABSORBED = ("flash_attention", "triton")
# vLLM's dynamic quantisation is one kernel; the published time is its time minus that of the static kernel (in steps of
# 0.1 us): their sum was measured
DYNAMIC_LESS_STATIC = "dynamic_per_token_scaled_fp8_quant_minus_static_scaled_fp8_quant:compute_scale"
STATIC = "static_scaled_fp8_quant:scale_matrix"


def _reader(source: str, sealed: Sequence[str] = ()) -> Reader:
    """Return the reader of a package; ``source``: its name; ``sealed``: GPUs that are read only where named."""

    def read(path: Path | None, gpus: frozenset[str] | None, families: frozenset[str] | None) -> Iterator[Batch]:
        """Yield the sweeps below ``path`` (None: of the installed package), by family and GPU; None selects all.

        InvalidInput: no sweep at the path, or no installed package. UnknownName: no such GPU or family.
        """
        if path is None and source != SOURCE:
            raise InvalidInput(f"{source} needs PATH: its wheel (`pip download --no-deps --pre {source}`) or a folder.")
        files = files_of(path or installed_package())
        every_family = {table.family for tables in TABLES.values() for table in tables.values()}
        for wanted, published, what in (
            (gpus, set(files), "GPU of the sweep"),
            (families, every_family, "kernel family"),
        ):
            for name in sorted((wanted or set()) - published):
                raise unknown(what, name, published, f"Known: {', '.join(sorted(published))}.")
        wanted_gpus = sorted(set(files) - set(sealed) if gpus is None else gpus)
        for family in sorted(every_family if families is None else families):
            for gpu in wanted_gpus:
                yield from _batch(gpu, family, files[gpu], source)
        if families is None:
            for gpu in wanted_gpus:
                yield _without_family(gpu, files[gpu])

    return read


def installed_package() -> Path:
    """Return the folder of the installed package, found without importing it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise extra_missing(
            "an import without a PATH", "aiconfigurator-core", "silicon", "give the folder with its systems/data"
        )
    return Path(spec.submodule_search_locations[0])


def _batch(gpu: str, family: str, files: list[SweepFile], source: str) -> Iterator[Batch]:
    frames, unread = [], set()
    for file in files:
        tables = {name: table for name, table in TABLES.get(file.table, {}).items() if table.family == family}
        if not tables:
            continue
        raw = _raw(file, gpu)
        unread |= set(raw.columns) - known_columns()
        for operation, table in tables.items():
            split = file.table in SPLIT
            rows = raw if split or not operation else raw.filter(pl.col("op_name") == operation)
            frames.append(_measured(rows, table, file, source, 1 / len(tables) if split else 1.0))
    if frames:
        yield Batch(gpu, family, _checked(pl.concat(frames, how="diagonal"), gpu, family), {}, tuple(unread))


def _raw(file: SweepFile, gpu: str) -> pl.DataFrame:
    raw = read_table(file)
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in OPTIONAL.items() if name not in raw.columns]
    return raw.with_columns(*missing, pl.lit(NODE_GPUS.get(gpu, 8), pl.Int64).alias("node_gpus"))


def _measured(raw: pl.DataFrame, table: Table, file: SweepFile, source: str, weight: float) -> pl.DataFrame:
    folder, gpu = file.engine, file.gpu
    device = DEVICES.get(gpu, rf"\b{gpu.split('_')[0].upper()}\b")
    framework = pl.col("framework").str.to_lowercase()
    faults = (
        ("device_not_of_folder", ~pl.col("device").str.contains(device)),
        # the folder of a collective library is not an engine's: its container may be of any engine
        ("python_call", pl.lit(PYTHON_CALLS in raw.columns)),
        ("copy_of_another_engine", framework != folder if folder in ENGINES else pl.lit(False)),
        *table.faults,
    )
    labels = {"distribution": pl.lit(None, pl.String)} | table.labels
    try:
        rows = raw.with_columns(element_bytes=table.element_bytes).select(
            pl.lit(folder).alias("engine"),
            pl.col("version").replace("unknown", None).fill_null(file.version).alias("engine_version"),
            table.kernel_source.fill_null("unknown").alias("kernel_source"),
            *(expression.alias(name) for name, expression in labels.items()),
            *(expression.cast(pl.Int64).alias(name) for name, expression in table.shape.items()),
            table.latency_us.alias("latency_us"),
            (~pl.col("default_eligible").fill_null(True)).alias("not_default"),
            pl.lit(f"{source}/{file.place}").alias("source"),
            pl.lit(weight).alias("weight"),
            pl.lit(None, pl.String).alias("reason"),
            *(bad.fill_null(False).alias(reason) for reason, bad in faults),
        )
    except pl.exceptions.ColumnNotFoundError as error:
        column = str(error).splitlines()[0]
        raise InvalidInput(f"{file} is not {file.table} of {source} as known: {column}.") from None
    return first_reason(rows, *((reason, pl.col(reason)) for reason, _ in faults)).drop(reason for reason, _ in faults)


def _checked(rows: pl.DataFrame, gpu: str, family: str) -> pl.DataFrame:
    """Return the rows with reasons to reject some, and with ``not_fitted``: why a valid row is not fitted."""
    if family == "gemm":
        rows = first_reason(rows, ("host_bound", HOST_BOUND))
    if family == "decode_attention" and gpu == "a100_sxm":
        rows = first_reason(rows, ("kin_faster_than_memory", TOO_FAST_KIN))
    if family in ("mla_prefill", "mla_decode"):
        rows = first_reason(rows, ("cache_ran_in_bf16", CACHE_RAN_IN_BF16))
    if family == "quantize":
        # a difference that is mostly clipped to 0 is noise
        clipped = (pl.col("reason") == "clipped_difference").fill_null(False).mean().over("engine", "kernel_source")
        rows = _with_static(first_reason(rows, ("mostly_clipped", clipped > MOSTLY)))
    checks = [("not_the_engine_s_choice", pl.col("not_default")), *_not_fitted(gpu, family)]
    is_slow, work = pl.struct(SWEEP), 2.0 * pl.col("m") * pl.col("n") * pl.col("k")
    if family == "gemm":
        lasting = rows.filter(pl.col("dtype").eq("bf16") & (work >= LASTING_FLOPS))
        is_slow = is_slow.is_in(slow_sweeps(lasting, ["m", "n", "k"], ONE_IN_TWENTY, THROTTLED_RATIO))
        checks.append(("throttled", is_slow & (work >= LASTING_FLOPS / 2)))
    elif family == "all_reduce":
        large = rows.filter(pl.col("bytes") >= LARGE_BYTES)
        checks.append(("slow_link", is_slow.is_in(slow_sweeps(large, ["bytes", "gpus"], HALF, SLOW_LINK_RATIO))))
    elif family == "moe":
        is_unspread = pl.struct(EXPERTS).is_in(unspread_experts(rows))
        checks.append(("experts_not_spread", is_unspread & (pl.col("moe_ep") > 1)))
    reasons = [pl.when(bad).then(pl.lit(reason)) for reason, bad in checks]
    return rows.with_columns(pl.coalesce(*reasons, pl.lit(None, pl.String)).alias("not_fitted")).drop("not_default")


def slow_sweeps(rows: pl.DataFrame, key: list[str], quantile: float, least_ratio: float) -> list[dict[str, str]]:
    """Return the sweeps (columns SWEEP) whose rows take ``least_ratio`` times the others' median, at a quantile.

    ``rows``: SWEEP, ``key``, latency_us, reason, of one GPU; rows of equal ``key`` are equal calls.
    """
    latency = rows.filter(pl.col("reason").is_null()).group_by(*SWEEP, *key).agg(pl.col("latency_us").median())
    pairs = latency.join(latency.rename({"latency_us": "other_us"}), on=key, suffix="_other")
    is_other = pl.any_horizontal(pl.col(name) != pl.col(f"{name}_other") for name in SWEEP)
    ratio = pl.col("latency_us").first() / pl.col("other_us").median()
    ratios = pairs.filter(is_other).group_by(*SWEEP, *key).agg(ratio.alias("ratio"))
    slow = ratios.group_by(SWEEP).agg(pl.col("ratio").quantile(quantile)).filter(pl.col("ratio") >= least_ratio)
    return slow.sort(SWEEP).select(SWEEP).to_dicts()


def unspread_experts(rows: pl.DataFrame) -> list[dict[str, str]]:
    """Return the kernels (columns EXPERTS) that take as long with a part of the experts on each GPU as with all.

    ``rows``: measured calls of experts on one GPU, with latency_us and reason.
    """
    large = rows.filter(pl.col("reason").is_null() & (pl.col("tokens") >= FEWEST_TOKENS))
    large = large.with_columns(all_experts=pl.col("experts") * pl.col("moe_ep"))
    call = [*EXPERTS, "distribution", "tokens", "hidden", "intermediate", "all_experts", "top_k", "moe_tp"]
    whole = large.filter(pl.col("moe_ep") == 1).group_by(call).agg(pl.col("latency_us").median().alias("whole_us"))
    parts = large.filter(pl.col("moe_ep") >= FEWEST_GPUS).join(whole, on=call)
    ratio = (pl.col("latency_us") / pl.col("whole_us")).quantile(ONE_IN_TEN)
    return parts.group_by(EXPERTS).agg(ratio).filter(pl.col("latency_us") >= UNSPREAD_RATIO).select(EXPERTS).to_dicts()


def _with_static(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the subtracted static time back to differences; reason ``no_static_row`` if it is missing."""
    key = ["engine", "engine_version", "rows", "columns"]
    static = rows.filter((pl.col("kernel_source") == STATIC) & pl.col("reason").is_null())
    static = static.group_by(key).agg(pl.col("latency_us").mean().alias("static_us"))
    rows = rows.join(static, on=key, how="left", maintain_order="left")
    is_difference = pl.col("kernel_source") == DYNAMIC_LESS_STATIC
    rows = first_reason(rows, ("no_static_row", is_difference & pl.col("static_us").is_null()))
    full_us = pl.when(is_difference).then(pl.col("latency_us") + pl.col("static_us")).otherwise(pl.col("latency_us"))
    return rows.with_columns(full_us.alias("latency_us")).drop("static_us")


def _not_fitted(gpu: str, family: str) -> list[tuple[str, pl.Expr]]:
    """Return the reasons to exclude valid rows from fits, as (reason, true if it applies): engines do not run them."""
    name = pl.col("kernel_source")
    checks = {
        "all_reduce": [("launched_eagerly", name.str.ends_with("_eager"))],
        "all_to_all": [("not_default_multiprocessors", name.str.ends_with("sm") & ~name.str.ends_with(DEEPEP_DEFAULT))],
        "mla_prefill": [("absorbed_kernel", name.is_in(ABSORBED))],
        "linear_attention": [
            ("prompt_kernel_on_single_tokens", name.str.ends_with(":single_tokens")),
            ("speculative_decoding", name.str.ends_with(":verify")),
        ],
    }
    slow = [("far_below_link", pl.col("gpus") >= FAR_BELOW_LINK[gpu])] if gpu in FAR_BELOW_LINK else []
    return checks.get(family, []) + (slow if family in COLLECTIVES else [])


def _without_family(gpu: str, files: list[SweepFile]) -> Batch:
    """Count the rows of no kernel family: tables of modules, unknown tables (by name), operations without a table."""
    dropped: Counter[str] = Counter()
    for file in files:
        operations = [name for name in TABLES.get(file.table, {}) if name]
        if file.table in TABLES and (not operations or file.table in SPLIT):
            continue
        rows, reason = read_table(file), f"unknown_table_{file.table}"
        if operations:
            rows, reason = rows.filter(~pl.col("op_name").is_in(operations)), "unknown_operation"
        elif file.table in MODULES:
            reason = "module_not_one_kernel"
        dropped[reason] += rows.height
    return Batch(gpu, "", pl.DataFrame(), {reason: count for reason, count in dropped.items() if count})


read = _reader(SOURCE)
read_aisimulate = _reader("aisimulate", SEALED)
