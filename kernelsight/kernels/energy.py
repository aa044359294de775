"""Energy of kernels in joules: the power that their work draws above an active GPU's, and the effect of a power limit.

P = idle + active + memory_w * (bytes / (t * bandwidth)) + compute_w * (FLOP / (t * rate)) + expand_w * (time of weights
narrower than the arithmetic / t) + link_w * (wire time / t), watts. ``memory_w`` over the bandwidth is the energy of a
byte, ``compute_w`` over the rate of a format that of a FLOP. Energies add up over kernels; the board's power limit
holds for the mean over many of them (``scenario_energy``). Latencies were measured at the board's limit: under a lower
one the clock falls until a kernel's power is within it. Its arithmetic then takes longer, and less energy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.caches.memory_cache import memoised
from kernelsight.catalog.tables import facts as catalogue
from kernelsight.dataflow.array_expressions import in_one_piece, numeric
from kernelsight.dataflow.python_nodes import produces
from kernelsight.errors import InvalidInput
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.hardware import MATH, hardware_columns
from kernelsight.kernels.pricing_tables import PricingTables
from kernelsight.kernels.string_columns import positions
from kernelsight.number_format import number

# architecture of the constants that hold for GPUs of an architecture without its own
ANY = "*"
# constants of energy_constants that are shares of the board's limit, made columns <name>_w (watts), and those without
# a unit of power
SHARES = ("active", "memory", "compute", "expand", "link", "cap")
PLAIN = ("cap_sharpness", "clock_exponent")
# half widths of 90 % intervals, of log power and log energy
HALVES = ("power_log_half", "energy_log_half")
# columns of gpu_power: watts, but for the last two
DRAWN_AT_REST = ("idle_w", "active_w")
DRAWN_BY_WORK = ("memory_w", "compute_w", "expand_w", "link_w")
POWER_COLUMNS = (*DRAWN_AT_REST, *DRAWN_BY_WORK, "cap_w", "cap_sharpness", "clock_exponent")
MICRO = 1e-6
# lowest clock under a power limit, as a share of the clock at the board's own limit; steps of the bisection
LOWEST_CLOCK, HALVINGS = 0.2, 32
# rows that kernels pad an expert's tokens to: up to one token per expert, and beyond (vLLM, fused_moe.py
# get_default_config)
PADDED_ROWS = (16.0, 64.0)
# bits of an operand of each arithmetic
MATH_BITS = {"bf16": 16, "fp16": 16, "fp32": 32, "fp8": 8, "fp4": 4, "int8": 8}


class Work(NamedTuple):
    """Work of calls, each kind as its time at full rate, microseconds; arrays (calls,)."""

    memory: np.ndarray
    compute: np.ndarray  # with the rows that pad the tiles of experts
    expand: np.ndarray  # memory time of weights narrower than the arithmetic, which are expanded on their way
    link: np.ndarray  # of the busiest link


def drawn_by(work: Work, latency_us: np.ndarray, constants: dict[str, np.ndarray]) -> np.ndarray:
    """Return the power that work draws above ``idle_w`` and ``active_w``, watts, (calls,).

    ``constants``: POWER_COLUMNS of each call's GPU, (calls,) each.
    """
    busy_us = work._replace(compute=np.minimum(work.compute, latency_us))
    return sum(constants[name] * time for name, time in zip(DRAWN_BY_WORK, busy_us, strict=True)) / latency_us


def work_of(family: str, calls: pa.Table, gpus: pa.Table, fabrics: pa.Table) -> Work:
    """Return the work of a family's calls; ``calls`` has the columns of ``latency.columns_read``."""
    hardware = memoised((gpus, fabrics), "hardware", lambda: hardware_columns(gpus, fabrics))
    row = positions(calls["gpu"], gpus["gpu"])
    names = ["flops", "bytes", "group_size", "tokens", "top_k", "moe_ep"]
    names += ["local_experts", "active_experts", "block_rows"]
    columns = numeric(calls, [name for name in names if name in calls.column_names])
    zeros = np.zeros(calls.num_rows)
    if share := FAMILIES[family].wire_share:
        link = columns["bytes"] * share(columns["group_size"]) / hardware["peak_link_bytes_per_us"][row]
        return Work(zeros, zeros, zeros, link)
    memory = columns["bytes"] / hardware["memory_bytes_per_us"][row]
    if FAMILIES[family].vector_work or "math" not in calls.column_names:
        return Work(memory, columns["flops"] / hardware["vector_flops_per_us"][row], zeros, zeros)
    math = positions(calls["math"], pa.array(MATH))
    compute = columns["flops"] / hardware["math_flops_per_us"][row, math]
    if family == "moe":
        compute = compute * padded_rows(columns)
    if family not in ("gemm", "moe"):
        return Work(memory, compute, zeros, zeros)
    narrow = narrow_weights(calls["format"], np.array([MATH_BITS[name] for name in MATH])[math])
    return Work(memory, compute, np.where(narrow, memory, 0.0), zeros)


def narrow_weights(formats: pa.ChunkedArray, math_bits: np.ndarray) -> np.ndarray:
    """Return whether weights have fewer bits than the arithmetic, (calls,); False for formats of no known width."""
    words = in_one_piece(formats)
    words = words if pa.types.is_dictionary(words.type) else pc.dictionary_encode(words)
    bits_of_format = dict(
        zip(*(catalogue("number_formats")[name].to_pylist() for name in ("format", "weight_bits")), strict=True)
    )
    bits = np.array([bits_of_format.get(name, np.inf) for name in words.dictionary.to_pylist()])
    # scales add a fraction of a bit to each weight
    return bits[words.indices.to_numpy()] + 1.0 < math_bits


def padded_rows(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Return padded rows over rows of routed experts, (calls,): each expert's fill tiles, or ``block_rows`` all."""
    rows = columns["tokens"] * columns["top_k"] / columns["moe_ep"] / columns["active_experts"]
    tile = np.where(columns["tokens"] <= columns["local_experts"], *PADDED_ROWS)
    # tokens per expert are taken as exponentially distributed: see ``moe.expert_tiles``
    padded = np.maximum(tile / rows / -np.expm1(-tile / rows), 1.0)
    blocks = columns["block_rows"] / (rows * columns["active_experts"])
    return np.where(columns["block_rows"] > 0.0, blocks, padded)


def dynamic_j(
    family: str, calls: pa.Table, latency_us: np.ndarray, tables: PricingTables
) -> tuple[np.ndarray, np.ndarray]:
    """Return latency, microseconds, and dynamic energy of one GPU, joules, (calls,) each.

    The latency is ``latency_us``, longer where the deployment's power limit lowers the clock. InvalidInput: a limit is
    below what the GPU draws without work.
    """
    settings, gpu_power = tables.settings, tables.gpu_power
    work = work_of(family, calls, tables.gpus, tables.fabrics)
    row = positions(calls["gpu"], gpu_power["gpu"])
    columns = memoised((gpu_power,), "drawn", lambda: {name: gpu_power[name].to_numpy() for name in POWER_COLUMNS})
    at = row[0] if row.size and (row == row[0]).all() else row  # of one GPU, the common case: numbers
    drawn_w = drawn_by(work, latency_us, {name: columns[name][at] for name in DRAWN_BY_WORK})
    if has_limit(settings):
        constants = {name: values[row] for name, values in columns.items()}
        latency_us, drawn_w = under_limit(work, latency_us, drawn_w, limits_of(calls, settings), constants)
    return latency_us, drawn_w * latency_us * MICRO


def has_limit(settings: pa.Table) -> bool:
    """Whether some deployment has a power limit; ``settings``: deployment_settings."""
    return "power_limit_w" in settings.column_names and settings["power_limit_w"].null_count < len(settings)


def limits_of(calls: pa.Table, settings: pa.Table) -> np.ndarray:
    """Return the power limit of each call's deployment, watts, (calls,); infinite where it has none."""
    limit = pc.fill_null(settings["power_limit_w"].combine_chunks(), np.inf).to_numpy()
    setting_row = positions(calls["deployment_id"], settings["deployment_id"]) if len(settings) > 1 else 0
    return np.broadcast_to(limit[setting_row], calls.num_rows)


def under_limit(
    work: Work, latency_us: np.ndarray, drawn: np.ndarray, limit: np.ndarray, at: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return latency, microseconds, and power above idle and active, watts, at the clock that keeps to the limit.

    ``drawn``: power above idle and active without the limit, watts; ``limit``: watts; ``at``: POWER_COLUMNS; (calls,)
    each. Power of logic grows as the clock to ``clock_exponent``, because voltage falls with it. At a lower clock the
    share of arithmetic takes longer, compute^2 / (compute^2 + memory^2) of the latency; where even LOWEST_CLOCK exceeds
    the limit, the whole kernel does. InvalidInput: a limit is below what the GPU draws without work.
    """
    static, exponent = at["idle_w"] + at["active_w"], at["clock_exponent"]
    over = held(static + drawn, at["cap_w"], at["cap_sharpness"]) > limit
    if not over.any():
        return latency_us, drawn
    at_rest = at["idle_w"] + at["active_w"] * LOWEST_CLOCK**exponent
    if (limit <= at_rest).any():
        least = float(at_rest[limit <= at_rest].max())
        raise InvalidInput(
            f"a power limit of {limit.min():g} W is less than the {number(least, 3)} W that the GPU draws at rest; "
            "give more."
        )
    logic = at["compute_w"] * np.minimum(work.compute, latency_us) + at["expand_w"] * work.expand
    traffic = at["memory_w"] * work.memory + at["link_w"] * work.link
    # dynamic energy at the board's own limit, W us
    spent = np.maximum(held(static + drawn, at["cap_w"], at["cap_sharpness"]) - static, 0.0) * latency_us
    scale = spent / np.maximum(logic + traffic, 1e-300)
    share = work.compute**2 / np.maximum(work.compute**2 + work.memory**2, 1e-300)

    def at_clock(clock: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        took = latency_us * (1.0 - share + share / clock)
        energy = scale * (logic * clock ** (exponent - 1.0) + traffic)
        return at["idle_w"] + at["active_w"] * clock**exponent + energy / took, took, energy

    low, high = np.full(limit.shape, LOWEST_CLOCK), np.ones(limit.shape)
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        fits = at_clock(middle)[0] <= limit
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    power, took, energy = at_clock(low)
    took = np.where(power > limit, energy / (limit - at_rest), took)
    return np.where(over, took, latency_us), np.where(over, limit - static, drawn)


def held(power_w: Any, cap_w: Any, sharpness: Any) -> Any:
    """Return the smooth minimum of a power and the board's limit, watts: p / (1 + (p / cap)^s)^(1/s)."""
    return power_w / (1.0 + (power_w / cap_w) ** sharpness) ** (1.0 / sharpness)


@produces("gpu_power")
def power_of_gpus(gpus: pa.Table, energy_constants: pa.Table) -> pa.Table:
    """Power of each GPU by constants of its architecture, else general ones, as shares of its limit.

    ``gpus``: architecture, tdp_w, idle_w (null: the architecture's share of tdp_w); constants:
    those of the architecture, else those of ANY. ``basis``: fitted (the GPU was measured),
    architecture (another GPU of its architecture was), estimated.
    """
    architectures, tdp_w = gpus["architecture"].to_pylist(), gpus["tdp_w"].to_numpy()
    rows = {(row["architecture"], row["constant"]): row for row in energy_constants.to_pylist()}
    fitted = {name for (name, _), row in rows.items() if name != ANY and row["basis"] == "fitted"}
    measured = {name for row in rows.values() for name in (row.get("gpus") or "").split(",")}
    basis = [
        "fitted" if name in fitted and gpu in measured else "architecture" if name in fitted else "estimated"
        for gpu, name in zip(gpus["gpu"].to_pylist(), architectures, strict=True)
    ]

    def values(constant: str, of_architectures: list[str] = architectures) -> np.ndarray:
        return np.array([(rows.get((name, constant)) or rows[ANY, constant])["value"] for name in of_architectures])

    # intervals of an architecture hold for its measured GPUs; for others, the errors of one architecture on another
    interval_architectures = [name if how == "fitted" else ANY for name, how in zip(architectures, basis, strict=True)]
    idle_w = np.asarray(gpus["idle_w"].to_numpy(), float)
    return pa.table(
        {
            "gpu": gpus["gpu"],
            "idle_w": np.where(np.isnan(idle_w), tdp_w * values("idle"), idle_w),
            **{f"{name}_w": tdp_w * values(name) for name in SHARES},
            "limit_w": tdp_w,
            **{name: values(name) for name in PLAIN},
            **{name: values(name, interval_architectures) for name in HALVES},
            "basis": basis,
        }
    )
