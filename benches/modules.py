"""Whole attention layers that the sweeps time in one piece, beside the sum of our kernels of such a layer.

    python benches/modules.py --wheel FOLDER_WITH_systems/data

The sweeps time MLA, DeepSeek's sparse and compressed attention and MiniMax's sparse attention as one module of a layer:
projections, norms, positions, cache writes, indexer, attention. No kernel is fitted to them. A row is a module of a
sample by digest (`SAMPLE` a sweep), in the format in which the model is published; the prediction is the sum of the
calls of one such layer of the model, without residual norm, collectives and feed-forward. *Lasting*: modules at least
three times as long as the shortest twentieth of their sweep and phase: the others hold the host's launches where the
collector used no CUDA graph (0.3 to 1.5 ms in prompts of SGLang, 0.04 to 0.24 ms elsewhere).

Two versions of one engine and GPU with at least 100 equal modules are a pair: the median change of a sample of them,
measured and predicted, where kernels that the sweeps time alone are known in both versions.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from record import record

from kernelsight.fitting.kernel_sweeps.devices import SEALED
from kernelsight.fitting.kernel_sweeps.package_files import files_of, read_table
from kernelsight.kernels.engine_versions import version_key
from kernelsight.present.output import table_lines
from kernelsight.session import connect

SAMPLE = 40
ENGINES = ("vllm", "sglang", "trtllm")
NOT_OF_THE_MODULE = ("residual_norm", "all_reduce", "all_gather", "stream", "ffn", "shared", "router", "expert", "topk",
                     "gate_up", "down_proj")  # fmt: skip


class Module(NamedTuple):
    """A table of modules: our name, and whether its layers have an indexer and entries of a compressed cache."""

    name: str
    has_indexer: bool = False
    has_entries: bool = False


MODULES = {
    "mla": Module("latent attention (MLA)"),
    "dsa": Module("sparse attention (DSA)", has_indexer=True),
    "dsv4_csa": Module("compressed attention with a selection (DeepSeek-V4)", True, True),
    "dsv4_hca": Module("heavily compressed attention (DeepSeek-V4)", False, True),
    "msa": Module("selected blocks (MSA)", has_indexer=True),
}
# model of a table: ours, heads, and the format of its published weights
MODELS = {
    "deepseek-ai/DeepSeek-V3": ("deepseek-v3", 128, "fp8_block"),
    "deepseek-ai/DeepSeek-V3.2": ("deepseek-v3.2", 128, "fp8_block"),
    "zai-org/GLM-5.2": ("glm-5.2", 64, "bfloat16"),
    "MiniMaxAI/MiniMax-M3": ("minimax-m3", 64, "bfloat16"),
    "sgl-project/DeepSeek-V4-Flash-FP8": ("deepseek-v4-flash", 64, "fp8_block"),
    "sgl-project/DeepSeek-V4-Pro-FP8": ("deepseek-v4-pro", 128, "fp8_block"),
}
CACHE = {"bfloat16": "bf16", "fp8": "fp8", "fp8_e4m3": "fp8"}
COLUMNS = ("module", "phase", "engine", "rows", "median", "mean", "p90", "bias", "covers", "lasting", "their median")
LASTING = 3.0
PAIR = ("module", "phase", "engine", "gpu", "from", "to", "equal", "measured", "predicted")
FEWEST = 100
SAME = ["op_name", "model", "kv_cache_dtype", "num_heads", "batch_size", "isl", "step", "gemm_type"]


def tables_of(wheel: Path) -> Iterator[tuple[dict[str, Any], pl.DataFrame]]:
    """Yield the tables of modules: stem, phase, GPU, engine and version, and the rows of known models."""
    for gpu, files in files_of(wheel).items():
        for file in files if gpu not in SEALED else ():
            stem, _, phase = file.table.removesuffix("_module_perf").rpartition("_")
            if stem in MODULES and phase in ("context", "generation") and file.engine in ENGINES:
                rows = read_table(file).filter(pl.col("model").is_in(list(MODELS)), pl.col("step") < 131_072)
                yield {"stem": stem, "phase": phase, "gpu": gpu, "engine": file.engine, "version": file.version}, rows


def sampled(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Return a sample of modules in the published format of their models."""
    return sorted((row for row in rows.iter_rows(named=True) if _is_published(row)), key=_digest)[:SAMPLE]


def pairs_of(tables: list[tuple[dict[str, Any], pl.DataFrame]]) -> Iterator[tuple[tuple, int, list[dict[str, Any]]]]:
    """Yield pairs of neighbouring releases: their place and versions, their equal modules, and a sample of both."""
    places = defaultdict(dict)
    for words, rows in tables:
        if words["version"].replace(".", "").replace("rc", "").isdigit():
            places[tuple(words[name] for name in ("stem", "phase", "engine", "gpu"))][words["version"]] = rows
    mean = pl.col("latency").mean()
    for place, versions in sorted(places.items()):
        ordered = sorted(versions, key=version_key)
        for earlier, later in pairwise(ordered):
            before, after = (versions[name].group_by(SAME).agg(mean) for name in (earlier, later))
            both = before.join(after, on=SAME, nulls_equal=True, suffix="_new")
            if both.height >= FEWEST:
                words = dict(zip(("stem", "phase", "engine", "gpu"), place, strict=True))
                sample = [{**words, **row} for row in sampled(both)]
                yield (*place, earlier, later), both.height, sample


def changes(tables: list[tuple[dict[str, Any], pl.DataFrame]]) -> list[list[str]]:
    """Return the table of pairs of versions: the median change of equal modules in %, measured and predicted."""
    rows = []
    for (stem, *place, earlier, later), equal, sample in pairs_of(tables):
        sides = [predicted([{**row, "version": version} for row in sample]) for version in (earlier, later)]
        logs = [np.log(new[0] / old[0]) for (_, old), (_, new) in zip(*sides, strict=True)]
        measured = np.median([np.log(row["latency_new"] / row["latency"]) for row in sample])
        figures = [f"{100 * np.expm1(log):+.1f}" if np.isfinite(log) else "–" for log in (measured, np.median(logs))]
        rows.append([MODULES[stem].name, *place, earlier, later, f"{equal:,}", *figures])
    return rows


def _is_published(row: dict[str, Any]) -> bool:
    _, heads, weights = MODELS[row["model"]]
    return row["gemm_type"] == weights and heads % row["num_heads"] == 0 and heads // row["num_heads"] <= 8


def _digest(row: dict[str, Any]) -> str:
    names = ("op_name", "model", "kv_cache_dtype", "num_heads", "batch_size", "isl", "step")
    return hashlib.sha256(",".join(str(row[name]) for name in names).encode()).hexdigest()


def predicted(modules: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """Yield each module with our latency of such a layer in us: p50, p05, p95."""
    deployments, steps, numbers = {}, [], {}
    for module in modules:
        model, heads, _ = MODELS[module["model"]]
        key = (model, module["gpu"], module["engine"], module["version"], heads // module["num_heads"],
               CACHE[module["kv_cache_dtype"]])  # fmt: skip
        name = deployments.setdefault(key, str(len(deployments)))
        step = numbers[id(module)] = (name, len(steps))
        steps.append(_step(*step, module))
    names = ("model", "gpu", "engine", "engine_version", "tp", "kv_cache_dtype")
    with connect() as session:
        stated = [{"deployment_id": name, "pp": 1, "dp": 1, "ep": 1, **dict(zip(names, key, strict=True))}
                  for key, name in deployments.items()]  # fmt: skip
        session.give("deployments", pa.Table.from_pylist(stated))
        session.give("step_shapes", pa.Table.from_pylist(steps))
        calls = defaultdict(list)
        for row in session.table("kernel_latencies").to_pylist():
            calls[row["deployment_id"], row["step_shape_id"]].append(row)
    for module in modules:
        yield module, _layer(calls[numbers[id(module)]], MODULES[module["stem"]], module["op_name"])


def _step(deployment: str, number: int, module: dict[str, Any]) -> dict[str, Any]:
    """Return the step of a module: decodes with ``step`` cached tokens, or prompts of ``isl`` tokens after them."""
    batch, new, cached = module["batch_size"], module["isl"], module["step"]
    decodes = module["phase"] == "generation"
    context = cached + new - 1
    return {
        "deployment_id": deployment, "step_shape_id": number, "part": "whole", "x": 0.0, "y": 0.0,
        "tokens": batch if decodes else batch * new, "sampled": batch, "decode_requests": batch if decodes else 0,
        "decode_context": context if decodes else None, "decode_window_context": context if decodes else None,
        "prefill_requests": 0 if decodes else batch, "prefill_tokens": 0 if decodes else new,
        "prefill_cached": 0 if decodes else cached,
    }  # fmt: skip


def _layer(calls: list[dict[str, Any]], module: Module, operation: str) -> np.ndarray:
    """Return the sum of the calls of one layer as the module has it; of several kinds of layers, the commonest."""
    layers = defaultdict(list)
    for call in calls:
        layers[call["call"].partition(".")[0]].append(call)
    has_indexer = module.has_indexer and "skip_indexer" not in operation
    fitting = []
    for own in layers.values():
        names = " ".join(call["call"] for call in own)
        kept = [call for call in own if not any(word in call["call"] for word in NOT_OF_THE_MODULE)]
        if ("indexer" in names) == has_indexer and ("entries" in names) == module.has_entries and "kv_write" in names:
            fitting.append((max(call["count"] for call in kept), kept))
    if not fitting:
        return np.full(3, np.nan)
    _, kept = max(fitting, key=lambda pair: pair[0])
    return np.array([sum(call[name] for call in kept) for name in ("latency_us", "latency_p05_us", "latency_p95_us")])


def report(pairs: list[tuple[dict[str, Any], np.ndarray]]) -> list[list[str]]:
    """Return the table of errors in %, by module, phase and engine."""
    groups, sweeps = defaultdict(list), defaultdict(list)
    place = itemgetter("stem", "phase", "gpu", "engine", "version")
    for module, _ in pairs:
        sweeps[place(module)].append(1e3 * module["latency"])
    lasting = {sweep: LASTING * np.quantile(found, 0.05) for sweep, found in sweeps.items()}
    for module, (latency, low, high) in pairs:
        true = 1e3 * module["latency"]
        groups[MODULES[module["stem"]].name, module["phase"], module["engine"]].append(
            (latency / true - 1.0, low <= true <= high, true >= lasting[place(module)])
        )
    rows = []
    for key, found in sorted(groups.items()):
        kept = np.array([row for row in found if not np.isnan(row[0])])
        if len(kept):
            size, lasts = np.abs(kept[:, 0]), kept[:, 2] == 1.0
            figures = (np.median(size), np.mean(size), np.quantile(size, 0.9))
            long = f"{100 * np.median(size[lasts]):.1f}" if lasts.any() else "–"
            bias, covers = f"{100 * np.median(kept[:, 0]):+.1f}", f"{kept[:, 1].mean():.0%}"
            errors = (f"{100 * value:.1f}" for value in figures)
            rows.append([*key, str(len(kept)), *errors, bias, covers, str(lasts.sum()), long])
    return rows


def main() -> None:
    """Score every module, print and record the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=Path, required=True, help="the wheel of aisimulate, or a folder of its data")
    arguments = parser.parse_args()
    tables = list(tables_of(arguments.wheel))
    pairs = list(predicted([{**words, **row} for words, rows in tables for row in sampled(rows)]))
    figures = {"modules": (COLUMNS, report(pairs)), "versions": (PAIR, changes(tables))}
    for columns, rows in figures.values():
        print(*table_lines([dict(zip(columns, row, strict=True)) for row in rows], list(columns)), sep="\n")
    kept = {name: {"columns": list(columns), "rows": rows} for name, (columns, rows) in figures.items()}
    print(record("kernels_modules", kept, "python benches/modules.py --wheel aisimulate.whl"))


if __name__ == "__main__":
    main()
