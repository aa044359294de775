"""Energy of kernels: what their work draws beside the power of a GPU that is active anyway.

P = idle + active + memory_w * (bytes / (t * bandwidth)) + compute_w * (FLOP / (t * rate)) + expand_w * (of the bytes,
weights narrower than the arithmetic) + link_w * (wire time / t). ``memory_w`` over the bandwidth is the
energy of a byte, ``compute_w`` over the rate of a format that of a FLOP. Work adds up over kernels; the limit of the
board holds for the mean over many of them (``scenario_energy``). Latencies were measured at that limit: under a lower
one the clock falls until the power of a kernel fits. Its arithmetic gets longer then, and costs less energy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import facts as catalogue
from kernelsight.dataflow.cache import remembered
from kernelsight.dataflow.columns import in_one_piece, numeric
from kernelsight.errors import InvalidInput
from kernelsight.kernels.columns import positions
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.hardware import MATH, hardware_columns
from kernelsight.number_format import number

# columns of gpu_power
DRAWN_AT_REST = ("idle_w", "active_w")
DRAWN_BY_WORK = ("memory_w", "compute_w", "expand_w", "link_w")
DRAWN = (*DRAWN_AT_REST, *DRAWN_BY_WORK, "cap_w", "cap_sharpness", "clock_exponent")
MICRO = 1e-6
# lowest clock that a power limit brings about, as a share of that at the board's own limit; halvings of what is left
LOWEST_CLOCK, HALVINGS = 0.2, 32
# rows of an expert that kernels pad to, up to one token an expert and beyond (vLLM, fused_moe.py get_default_config)
PADDED_ROWS = (16.0, 64.0)
# bits of an operand of each arithmetic
MATH_BITS = {"bf16": 16, "fp16": 16, "fp32": 32, "fp8": 8, "fp4": 4, "int8": 8}


class Work(NamedTuple):
    """What calls do, each as the microseconds that it takes at the full rate; arrays of a call each.

    ``compute``: with the rows that pad the tiles of experts; ``expand``: traffic of weights narrower than the
    arithmetic, which are expanded on their way; ``link``: the busiest link.
    """

    memory: np.ndarray
    compute: np.ndarray
    expand: np.ndarray
    link: np.ndarray


def drawn_by(work: Work, latency_us: np.ndarray, at: dict[str, np.ndarray]) -> np.ndarray:
    """Return what work draws beside ``idle_w`` and ``active_w``, W; ``at``: constants by name (``DRAWN``)."""
    busy = work._replace(compute=np.minimum(work.compute, latency_us))
    return sum(at[name] * time for name, time in zip(DRAWN_BY_WORK, busy, strict=True)) / latency_us


def work_of(family: str, calls: pa.Table, gpus: pa.Table, fabrics: pa.Table) -> Work:
    """Return the work of a family's calls; ``calls`` has the columns of ``latency.columns_read``."""
    hardware = remembered((gpus, fabrics), "hardware", lambda: hardware_columns(gpus, fabrics))
    return work_on(family, calls, hardware, positions(calls["gpu"], gpus["gpu"]))


def work_on(family: str, calls: pa.Table, hardware: Mapping[str, np.ndarray], row: np.ndarray) -> Work:
    """Return the work of a family's calls, each on the hardware of its ``row`` of the hardware columns."""
    names = ["flops", "bytes", "group_size", "tokens", "top_k", "moe_ep"]
    names += ["local_experts", "active_experts", "block_rows"]
    columns = numeric(calls, [name for name in names if name in calls.column_names])
    nothing = np.zeros(calls.num_rows)
    if share := FAMILIES[family].wire_share:
        link = columns["bytes"] * share(columns["group_size"]) / hardware["peak_link_bytes_per_us"][row]
        return Work(nothing, nothing, nothing, link)
    memory = columns["bytes"] / hardware["memory_bytes_per_us"][row]
    if FAMILIES[family].vector_work or "math" not in calls.column_names:
        return Work(memory, columns["flops"] / hardware["vector_flops_per_us"][row], nothing, nothing)
    math = positions(calls["math"], pa.array(MATH))
    compute = columns["flops"] / hardware["math_flops_per_us"][row, math]
    if family == "moe":
        compute = compute * padded_rows(columns)
    if family not in ("gemm", "moe"):
        return Work(memory, compute, nothing, nothing)
    narrow = narrow_weights(calls["format"], np.array([MATH_BITS[name] for name in MATH])[math])
    return Work(memory, compute, np.where(narrow, memory, 0.0), nothing)


def narrow_weights(formats: pa.ChunkedArray, math_bits: np.ndarray) -> np.ndarray:
    """Return where weights have fewer bits than the arithmetic; a format that the catalogue lacks counts as wide."""
    words = in_one_piece(formats)
    words = words if pa.types.is_dictionary(words.type) else pc.dictionary_encode(words)
    bits_of_format = dict(
        zip(*(catalogue("number_formats")[name].to_pylist() for name in ("format", "weight_bits")), strict=True)
    )
    bits = np.array([bits_of_format.get(name, np.inf) for name in words.dictionary.to_pylist()])
    # formats with scales have some bits more than their numbers
    return bits[words.indices.to_numpy()] + 1.0 < math_bits


def padded_rows(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Return by how much the rows that experts multiply grow when each expert's fill whole tiles, or to ``block_rows``.

    >>> sizes = {"tokens": 128.0, "top_k": 8.0, "moe_ep": 1.0, "local_experts": 128.0, "active_experts": 128.0}
    >>> one = {name: np.array([value, value]) for name, value in sizes.items()}
    >>> padded_rows(one | {"block_rows": np.array([0.0, 17280.0])}).round(2).tolist()
    [2.31, 16.88]
    """
    rows = columns["tokens"] * columns["top_k"] / columns["moe_ep"] / columns["active_experts"]
    tile = np.where(columns["tokens"] <= columns["local_experts"], *PADDED_ROWS)
    # counts of an expert spread exponentially: see ``moe.expert_tiles``
    padded = np.maximum(tile / rows / -np.expm1(-tile / rows), 1.0)
    blocks = columns["block_rows"] / (rows * columns["active_experts"])
    return np.where(columns["block_rows"] > 0.0, blocks, padded)


def dynamic_j(
    family: str, calls: pa.Table, latency_us: np.ndarray, facts: Sequence[pa.Table]
) -> tuple[np.ndarray, np.ndarray]:
    """Return (latency in microseconds, dynamic energy in joules) of one GPU, for each call.

    ``facts``: deployment_settings, gpus, fabrics, eta_coefficients, kernel_implementations, gpu_power. The latency is
    that given, but under a power limit of the deployment. InvalidInput: a limit below what the GPU draws without work.
    """
    settings, gpus, fabrics, *_, gpu_power = facts
    work = work_of(family, calls, gpus, fabrics)
    row = positions(calls["gpu"], gpu_power["gpu"])
    gpu_facts = remembered((gpu_power,), "drawn", lambda: {name: gpu_power[name].to_numpy() for name in DRAWN})
    at = {name: values[row] for name, values in gpu_facts.items()}
    drawn = drawn_by(work, latency_us, at)
    if has_limit(settings):
        latency_us, drawn = under_limit(work, latency_us, drawn, limits_of(calls, settings), at)
    return latency_us, drawn * latency_us * MICRO


def has_limit(settings: pa.Table) -> bool:
    """Whether some deployment has a power limit; ``settings``: deployment_settings."""
    return "power_limit_w" in settings.column_names and settings["power_limit_w"].null_count < len(settings)


def limits_of(calls: pa.Table, settings: pa.Table) -> np.ndarray:
    """Return the power limit of each call's deployment, W; infinite where none is stated."""
    limit = pc.fill_null(settings["power_limit_w"].combine_chunks(), np.inf).to_numpy()
    setting_row = positions(calls["deployment_id"], settings["deployment_id"]) if len(settings) > 1 else 0
    return np.broadcast_to(limit[setting_row], calls.num_rows)


def under_limit(
    work: Work, latency_us: np.ndarray, drawn: np.ndarray, limit: np.ndarray, at: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return (latency, power beside idle and active) with the clock at which the power is at most ``limit``.

    Power of logic goes with the clock to ``clock_exponent``: voltage falls with it. A kernel is as much longer as its
    arithmetic is of its arithmetic and its traffic; where the lowest clock does not do, all of it is.
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
    # what is spent at the board's own limit, in W us
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
    """Return a power below the limit of the board: a smooth minimum of both.

    >>> round(float(held(np.array(100.0), 700.0, 5.0))), round(float(held(np.array(3000.0), 700.0, 5.0)))
    (100, 700)
    """
    return power_w / (1.0 + (power_w / cap_w) ** sharpness) ** (1.0 / sharpness)
