"""Reader of LLMServingSim's profiles (Cho et al., IISWC 2024; repository casys-kaist/LLMServingSim), both layouts.

``perf_models/<gpu>/<owner>/<model>/tp<N>/``: layers.csv (layer_name, input, kv_cache, tp_size, latency(ns)) and an
attention.csv with the columns of Vidur's. ``perf/<gpu>/<owner>/<model>/<dtype>/tp<N>/``: dense.csv (layer, tokens,
time_us), per_sequence.csv (layer, sequences, time_us), attention.csv (prefill_chunk, kv_prefill, n_decode, kv_decode,
time_us) and moe.csv (ep, tokens, activated_experts, time_us). Widths come from the catalogue's model of that name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from kernelsight.fitting.kernel_sweeps.devices import NOT_IN_CATALOGUE
from kernelsight.fitting.kernel_sweeps.points import Batch, measured, read_csv, reader, without_family
from kernelsight.laboratory.kernel_sweeps import vidur
from kernelsight.models.config import load_catalogue

PUBLISHER = "LLMServingSim"
# GPUs by folder; H100 is the SXM board of its paper's testbed
GPUS = {"H100": "h100_sxm", "A6000": "a6000", "RTX3090": "rtx_3090", "RTX4090": "rtx_4090"}
FORMATS = ("bf16", "fp16", "fp8")
PLACE = re.compile(r"(?P<gpu>[^/]+)/(?P<model>[^/]+/[^/]+)(?:/(?P<format>bf16|fp16|fp8))?/tp(?P<tp>\d+)/[^/]+\.csv$")
Model = dict[str, Any]
Shape = dict[str, pl.Expr]


def _batches(file: Path) -> Iterator[Batch]:
    path_match = PLACE.search(file.resolve().as_posix())
    reader = _READERS.get(file.name)
    rows = read_csv(file, (), PUBLISHER)
    device = path_match["gpu"] if path_match else file.parent.name
    gpu = GPUS.get(device)
    model = _models().get(path_match["model"]) if path_match else None
    if path_match is None or reader is None:
        yield without_family(gpu or device, "unknown_table", rows.height)
    elif gpu is None:
        yield without_family(device, NOT_IN_CATALOGUE, rows.height)
    elif model is None:
        yield without_family(gpu, "model_not_in_catalogue", rows.height)
    else:
        number_format = path_match["format"] or "bf16"
        source = pl.lit(f"LLMServingSim/{'/'.join(path_match[0].split('/'))}").alias("source")
        for family, points, reason in reader(file, model, int(path_match["tp"]), number_format):
            if family:
                yield Batch(gpu, family, points.with_columns(source), {})
            else:
                yield without_family(gpu, reason, points.height)


@cache
def _models() -> dict[str, Model]:
    return {row["huggingface_id"]: row for row in load_catalogue()[0]}


def _labels(number_format: str, engine: str = "vllm") -> dict[str, str]:
    same = dict.fromkeys(("dtype", "format", "math"), number_format)
    return {"engine": engine, "engine_version": "unstated"} | same


def _shapes(model: Model, tp: int, tokens: pl.Expr) -> dict[str, tuple[str, Shape]]:
    """Return family and per-GPU shape by layer name, for ``tokens`` rows."""
    hidden, queries = model["hidden"], model["heads"] * model["head_dim"] // tp
    keys, ffn = model["kv_heads"] * model["head_dim"] // tp, model["intermediate"] // tp

    def product(n: int, k: int) -> tuple[str, Shape]:
        return "gemm", {"m": tokens, "n": pl.lit(n), "k": pl.lit(k)}

    def wide(family: str, columns: int) -> tuple[str, Shape]:
        return family, {"rows": tokens, "columns": pl.lit(columns)}

    norms = dict.fromkeys(("input_layernorm", "post_layernorm", "final_layernorm"), wide("norm", hidden))
    return norms | {
        "embedding": wide("embedding", hidden),
        "qkv_proj": product(queries + 2 * keys, hidden),
        "q_proj": product(queries, hidden),
        "k_proj": product(keys, hidden),
        "v_proj": product(keys, hidden),
        "rope": wide("rope", queries + keys),
        "rotary_emb": wide("rope", queries + keys),
        "o_proj": product(hidden, queries),
        "gate_up_proj": product(2 * ffn, hidden),
        "gate_proj": product(ffn, hidden),
        "up_proj": product(ffn, hidden),
        "act_fn": wide("activation", ffn),
        "down_proj": product(hidden, ffn),
        "lm_head": product(model["vocab"] // tp, hidden),
        "sampler": wide("sampling", model["vocab"]),
    }


# family or "", measurements or the rows of no family, and the reason for those
FamilyRows = tuple[str, pl.DataFrame, str]


def _layers(file: Path, model: Model, tp: int, number_format: str) -> Iterator[FamilyRows]:
    """Read the older per-layer times, measured with Hugging Face's modules."""
    rows = read_csv(file, ("layer_name", "input", "tp_size", "latency(ns)"), PUBLISHER)
    labels = _labels(number_format, "transformers")
    yield from _by_layer(rows, "layer_name", "input", pl.col("latency(ns)") / 1e3, labels, model, tp)


def _dense(file: Path, model: Model, tp: int, number_format: str) -> Iterator[FamilyRows]:
    rows = read_csv(file, ("layer", "tokens", "time_us"), PUBLISHER)
    yield from _by_layer(rows, "layer", "tokens", pl.col("time_us"), _labels(number_format), model, tp)


def _per_sequence(file: Path, model: Model, tp: int, number_format: str) -> Iterator[FamilyRows]:
    rows = read_csv(file, ("layer", "sequences", "time_us"), PUBLISHER)
    yield from _by_layer(rows, "layer", "sequences", pl.col("time_us"), _labels(number_format), model, tp)


def _by_layer(
    rows: pl.DataFrame, name: str, tokens: str, latency_us: pl.Expr, labels: dict[str, str], model: Model, tp: int
) -> Iterator[FamilyRows]:
    """Yield the measurements of each layer; ``name``, ``tokens``: the columns of the layer's name and its tokens."""
    shapes = _shapes(model, tp, pl.col(tokens))
    for (layer,), layer_rows in rows.group_by(name, maintain_order=True):
        family, shape = shapes.get(str(layer), ("", {}))
        if not family or any(size.meta.is_literal() and pl.select(size).item() < 1 for size in shape.values()):
            yield "", layer_rows, "layer_without_family"
        else:
            yield family, measured(layer_rows, shape, labels | {"kernel_source": str(layer)}, latency_us), ""


def _attention(file: Path, model: Model, tp: int, number_format: str) -> Iterator[FamilyRows]:
    rows = read_csv(file, (), PUBLISHER)
    labels = _labels(number_format) | {"dtype": f"{number_format}/{number_format}"}
    if "is_prefill" in rows.columns:
        rows = read_csv(file, vidur.ATTENTION + vidur.ATTENTION_TIMES, PUBLISHER)
        yield from ((family, points, "") for family, points in vidur.attention(rows, labels))
        return
    rows = read_csv(file, ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"), PUBLISHER)
    heads = {
        "heads": pl.lit(model["heads"] // tp),
        "kv_heads": pl.lit(max(1, model["kv_heads"] // tp)),
        "head_dim": pl.lit(model["head_dim"]),
        "window": pl.lit(0),
    }
    chunk = {"batch": pl.lit(1), "new_tokens": pl.col("prefill_chunk"), "cached_tokens": pl.col("kv_prefill")}
    decodes = {"batch": pl.col("n_decode"), "context": pl.col("kv_decode")}
    prompts, steps = pl.col("prefill_chunk") > 0, pl.col("n_decode") > 0
    for family, is_of_family, shape in (
        ("prefill_attention", prompts & ~steps, chunk),
        ("decode_attention", steps & ~prompts, decodes),
    ):
        attention_labels = labels | {"kernel_source": "attention"}
        yield family, measured(rows.filter(is_of_family), shape | heads, attention_labels, pl.col("time_us")), ""
    yield "", rows.filter(prompts & steps), "prompts_and_decodes_in_one_call"


def _moe(file: Path, model: Model, tp: int, number_format: str) -> Iterator[FamilyRows]:
    rows = read_csv(file, ("ep", "tokens", "activated_experts", "time_us"), PUBLISHER)
    shape = {
        "tokens": pl.col("tokens"),
        "hidden": pl.lit(model["hidden"]),
        "intermediate": pl.lit(model["expert_intermediate"] // tp),
        "experts": pl.lit(model["experts"]) // pl.col("ep"),
        "top_k": pl.lit(model["top_k"]),
        "moe_tp": pl.lit(tp),
        "moe_ep": pl.col("ep"),
        "expert_matrices": pl.lit(3),
    }
    routing = pl.format("activated_{}", pl.col("activated_experts"))
    labels = _labels(number_format) | {"kernel_source": "moe", "distribution": routing}
    yield "moe", measured(rows, shape, labels, pl.col("time_us")), ""


_READERS: dict[str, Callable[[Path, Model, int, str], Iterator[FamilyRows]]] = {
    "layers.csv": _layers,
    "dense.csv": _dense,
    "per_sequence.csv": _per_sequence,
    "attention.csv": _attention,
    "moe.csv": _moe,
}


read = reader(PUBLISHER, "llmservingsim", "its perf or perf_models folder, or a subfolder", _batches)
