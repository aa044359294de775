"""Random call tables of every family, with the work that their sizes imply, and the tables that price them."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pyarrow as pa

from kernelsight.catalog.tables import facts as catalogue
from kernelsight.kernels import blocks
from kernelsight.kernels.energy import power_of_gpus
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.latency import latencies
from kernelsight.kernels.pack import pack_table, with_assumed
from kernelsight.kernels.pricing_tables import PricingTables
from kernelsight.session import connect

NAMES = ("gpus", "fabrics", "eta_coefficients", "kernel_implementations", "dies", "gpu_power")
with connect() as _session:
    FACTS = {name: _session.table(name) for name in NAMES}
ENERGY = catalogue("energy_constants")
# the constants as the expressions declare them, with no fit
DECLARED = with_assumed(pack_table([]))
GPUS = FACTS["gpus"]["gpu"].to_pylist()
STREAMING = ("norm", "activation", "rope", "kv_write", "quantize", "hyper_connection", "embedding", "sampling")
LINKED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")


def settings(tier: str = "auto") -> pa.Table:
    """Return what latencies read of ``deployment_settings``: one deployment and its tier."""
    return pa.table({"deployment_id": ["d"], "tier": [tier]})


def price(family: str, calls: pa.Table, block_rows: int = 1 << 40, tier: str = "auto", **tables: pa.Table) -> pa.Table:
    """Return latencies of a call table by the embedded facts; ``tables`` replaces some of these.

    ``block_rows``: from how many rows on JAX evaluates them; without it numpy does.
    """
    facts = {**FACTS, **tables}
    calls = with_format(calls)
    if "gpus" in tables:
        facts["gpu_power"] = power_of_gpus(tables["gpus"], ENERGY)
    tables = PricingTables(settings(tier), *(facts[name] for name in NAMES))
    with mock.patch.object(blocks, "BLOCK_ROWS", block_rows):
        return latencies(family, calls, tables)


def with_format(calls: pa.Table) -> pa.Table:
    """Return calls that state the format of their operands: bfloat16, where they do not state it."""
    if "format" in calls.column_names:
        return calls
    return calls.append_column("format", pa.array(["bf16"] * calls.num_rows, pa.string()))


def drawn_constants(seed: int) -> pa.Table:
    """Return a pack that a fit could have made: every constant anywhere between its bounds."""
    random = np.random.default_rng(seed)
    bounds = {
        (family, one.name): (one.low, one.high)
        for family, declared in FAMILIES.items()
        for one in declared.latency_model.coefficients
    }
    names = zip(DECLARED["family"].to_pylist(), DECLARED["coefficient"].to_pylist(), strict=True)
    return with_column(DECLARED, "value", [np.exp(random.uniform(*np.log(bounds[name]))) for name in names])


def call_table(columns: dict[str, object], gpu: object = "h100_sxm", math: object = None) -> pa.Table:
    """Return a call table: sizes and work are given, the columns that name a call are filled in."""
    rows = max(np.size(values) for values in columns.values())
    filled = {name: np.broadcast_to(values, rows) for name, values in columns.items()}
    named = {"deployment_id": ["d"] * rows, "call": ["layer.call"] * rows, "name": ["call"] * rows}
    named["engine"] = ["vllm"] * rows
    named["gpu"] = np.broadcast_to(gpu, rows).tolist()
    if math is not None:
        named["math"] = np.broadcast_to(math, rows).tolist()
    numbers = {"step_shape_id": np.arange(rows), "count": np.ones(rows, np.int64)}
    return pa.table({**named, **numbers, **filled})


def with_column(table: pa.Table, name: str, values: object) -> pa.Table:
    """Return the table with one column replaced."""
    return table.set_column(table.column_names.index(name), name, pa.array(values, table.schema.field(name).type))


def sizes_of(random: np.random.Generator, rows: int, largest: float = 1e6) -> np.ndarray:
    """Return whole numbers from 1 to ``largest``, each magnitude as likely as another."""
    return np.floor(np.exp(random.uniform(0.0, np.log(largest + 1.0), rows))).clip(1.0, largest)


def random_calls(family: str, seed: int, rows: int, largest: float = 1e6, gpus: int = len(GPUS)) -> pa.Table:
    """Return ``rows`` calls of a family with sizes up to ``largest``, on so many GPUs of the catalogue, drawn as well.

    Constants are looked up for each pair of GPU and arithmetic, which takes most of the time of a small table.
    """
    random = np.random.default_rng(seed)
    gpu = random.choice(random.choice(GPUS, gpus, replace=False) if gpus < len(GPUS) else GPUS, rows)
    math = random.choice(["bf16", "fp16", "fp8", "fp4", "int8"], rows)
    sizes = _sizes(family, random, rows, largest)
    return call_table({**sizes, **work(family, sizes)}, gpu, None if family in STREAMING + LINKED else math)


def _sizes(family: str, random: np.random.Generator, rows: int, largest: float) -> dict[str, np.ndarray]:
    def size(most: float = largest) -> np.ndarray:
        return sizes_of(random, rows, min(most, largest))

    heads = 2.0 ** random.integers(0, 8, rows)
    kv_heads = heads / 2.0 ** random.integers(0, 1 + np.log2(heads).astype(int))
    head_dim = random.choice([64.0, 128.0, 256.0], rows)
    window = random.choice([0.0, 128.0, 4096.0], rows)
    experts = 2.0 ** random.integers(1, 9, rows)
    one_shape = {
        "gemm": lambda: {"m": size(), "n": size(), "k": size()},
        "batched_gemm": lambda: {"batch": heads, "m": size(), "n": size(), "k": size()},
        "prefill_attention": lambda: {
            "batch": size(64), "new_tokens": size(), "cached_tokens": size() - 1.0, "heads": heads,
            "kv_heads": kv_heads, "head_dim": head_dim, "window": 0.0 * heads,
        },
        "encoder_attention": lambda: {
            "batch": size(64), "new_tokens": size(), "cached_tokens": 0.0 * heads, "heads": heads,
            "kv_heads": heads, "head_dim": head_dim,
        },
        "sparse_attention": lambda: {
            "queries": size(), "keys": size(), "heads": heads, "width": random.choice([128.0, 576.0], rows),
        },
        "linear_attention": lambda: {
            "sequences": size(4096), "tokens": size(4096), "columns": 128.0 * heads,
            "taps": random.choice([0.0, 4.0], rows),
        },
        "decode_attention": lambda: {
            "batch": size(4096), "context": size() - 1.0, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
            "window": window,
        },
        "mla_decode": lambda: {
            "batch": size(4096), "context": size() - 1.0, "heads": heads, "kv_lora_rank": np.full(rows, 512.0),
            "rope_dim": np.full(rows, 64.0),
        },
        "moe": lambda: {
            "tokens": size(), "hidden": size(16384), "intermediate": size(16384), "experts": experts,
            "top_k": np.minimum(experts, random.integers(1, 9, rows)),
            "moe_ep": 2.0 ** random.integers(0, 2, rows),
        },
    }  # fmt: skip
    one_shape["mla_prefill"] = one_shape["prefill_attention"]
    if family in LINKED:
        return {"group_size": random.integers(2, 129, rows).astype(float), "elements": size(1e9)}
    return one_shape.get(family, lambda: {"rows": size(), "columns": size()})()


def work(family: str, of: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return FLOPs and least bytes (16-bit elements) that the sizes imply, and what else an expression reads."""
    if family in ("gemm", "batched_gemm"):
        batch = of.get("batch", 1.0)
        m, n, k = of["m"], of["n"], of["k"]
        return {"flops": 2.0 * batch * m * n * k, "bytes": 2.0 * batch * (m * k + n * k + m * n)}
    if family in ("prefill_attention", "mla_prefill"):
        new, cached = of["new_tokens"], of["cached_tokens"]
        pairs = of["batch"] * (new * cached + new * (new + 1.0) / 2.0)
        tensors = 2.0 * new * of["heads"] + 2.0 * (new + cached) * of["kv_heads"]
        width = of["heads"] * of["head_dim"]
        return {
            "visible_pairs": pairs, "flops": 4.0 * width * pairs, "bytes": 2.0 * of["batch"] * of["head_dim"] * tensors,
        }  # fmt: skip
    if family == "decode_attention":
        window = of["window"]
        keys = np.where(window > 0, np.minimum(of["context"] + 1.0, window), of["context"] + 1.0)
        width, kv_width = of["heads"] * of["head_dim"], of["kv_heads"] * of["head_dim"]
        return {"flops": 4.0 * of["batch"] * width * keys, "bytes": of["batch"] * (4.0 * width + 4.0 * keys * kv_width)}
    if family == "mla_decode":
        keys, latent = of["context"] + 1.0, 2.0 * of["kv_lora_rank"] + of["rope_dim"]
        read = 2.0 * keys * (of["kv_lora_rank"] + of["rope_dim"]) + 2.0 * of["heads"] * latent
        return {"flops": 2.0 * of["batch"] * of["heads"] * latent * keys, "bytes": of["batch"] * read}
    if family == "encoder_attention":
        pairs = of["batch"] * of["new_tokens"] ** 2
        width = of["heads"] * of["head_dim"]
        read = 8.0 * of["batch"] * of["new_tokens"] * width
        return {"visible_pairs": pairs, "flops": 4.0 * width * pairs, "bytes": read}
    if family == "sparse_attention":
        pairs = of["queries"] * of["keys"]
        flops = 2.0 * pairs * of["heads"] * of["width"]
        return {"visible_pairs": pairs, "flops": flops, "bytes": 2.0 * of["width"] * (of["keys"] + of["queries"])}
    if family == "linear_attention":
        rows = of["sequences"] * of["tokens"]
        each = np.where(of["taps"] > 0.0, 2.0 * of["taps"], 6.0 * 128.0)
        return {"rows": rows, "flops": each * rows * of["columns"], "bytes": 4.0 * rows * of["columns"]}
    if family == "moe":
        local = of["experts"] / of["moe_ep"]
        active = local * (1.0 - (1.0 - of["top_k"] / of["experts"]) ** of["tokens"])
        width = 3.0 * of["intermediate"] * of["hidden"]
        share = of["top_k"] / of["moe_ep"]
        rows_read = 4.0 * of["tokens"] * np.minimum(1.0, share) * of["hidden"]
        flops, moved = 2.0 * of["tokens"] * share * width, 2.0 * active * width + rows_read
        tiles = {"small_tiles": 0, "block_rows": 0}
        return {"local_experts": local, "active_experts": active, **tiles, "flops": flops, "bytes": moved}
    if family in LINKED:
        return {"flops": 0.0 * of["elements"], "bytes": 2.0 * of["elements"]}
    elements = of["rows"] * of["columns"]
    return {"flops": 3.0 * elements, "bytes": 4.0 * elements}
