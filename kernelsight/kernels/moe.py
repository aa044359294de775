"""Latency of a MoE layer's routed experts: grouped GEMMs over active experts, their weights, permuted activations.

t = floor + experts + (compute^p + weights^p)^(1/p) + moved rows. Two grouped GEMMs (up, with its gate, and down) run
sum over experts of ceil(rows / tile) tiles; the row tile is the fastest of a list, as libraries choose it by rows per
expert. Only the weights of experts with tokens are read, and the busiest expert-parallel rank sets the time.

How many tokens an expert gets is not known before a run. :func:`random_load` is the expectation for a router that draws
experts at random, some more popular than others; :func:`drawn_load` that of the draws of AIConfigurator's collectors.
"""

from __future__ import annotations

from typing import Any

from kernelsight.kernels.latency_model import Columns, power_mean, with_cut_rate

# rows of one expert in a tile
ROW_TILES = (16.0, 32.0, 64.0, 128.0, 256.0)
# bytes per clock and multiprocessor that L2 feeds: 64 on NVIDIA GPUs since Volta (A100 white paper, section L2 cache)
L2_BYTES_PER_CLOCK = 64.0
# bytes per clock and multiprocessor of a kernel that only moves data (estimate)
COPIED_BYTES_PER_CLOCK = 20.0
# squared coefficient of variation of expert popularity, from which the load of expert-parallel ranks follows (estimate:
# trained routers are balanced by a loss or a bias, but similar prompts prefer the same experts). The number of experts
# that a batch reaches follows from the same figure: popularity_variance of sql/macros/work.sql
POPULARITY_VARIANCE = 0.3
# routings that a collector replays one after another: weights that two of them share may still be in L2
ROUTINGS_IN_A_SWEEP = 5.0
# default tile of an engine without a tuned file, rows x columns and depth (engine_expert_tiles), and clocks of a step
# of its depth: of one thread block, which waits for its next operands, and of a multiprocessor that runs several
# blocks. These, and the exponent by which they add to the other limits, are from published sweeps of SGLang 0.5.14
# (these tiles) against vLLM 0.22 and 0.24 (other tiles) for equal shapes on H100, H200 and B200: 2,561 pairs of up to
# 512 tokens without a tuned file differ by 21 % without these terms, by 9 % with them
SMALL_TILE, SMALL_DEPTH = 64.0, 32.0
BLOCK_STEP_CLOCKS, UNIT_STEP_CLOCKS = 630.0, 206.0
SMALL_EXPONENT = 1.9
# share of the peak of DeepGEMM's grouped GEMMs, the activation between them included: the highest in published sweeps
# of evenly loaded experts (SGLang 0.5, TensorRT-LLM 1.x: 0.57 on H100, 0.62 on H200 and B200)
BLOCK_EFFICIENCY = 0.6
# load exponent of a sweep in which every expert gets the same number of tokens
EVEN = 0.0


def moe(xp: Any, call: Columns, gpu: Columns, at: Columns) -> tuple[Any, Any, Any]:
    """Return (latency_us, tiles, floor_us), (rows,) each, of both grouped GEMMs and the kernels around them.

    ``call``: columns of :func:`view`.
    """
    rows, active = call["rank_rows"], call["active_experts"]
    hidden, width = call["hidden"], call["intermediate"]
    up_width = (call["matrices"] - 1.0) * width
    units, clock = gpu["sm_count"], gpu["clock_per_us"]
    column_tile = at["column_tile"]
    warp_limit = units * at["warp_flops_per_clock"] * clock
    reached = {name: xp.minimum(gpu[name], warp_limit) for name in ("math_flops_per_us", "uncut_flops_per_us")}
    reached = {name: gpu[name] + at["warp_level"] * (rate - gpu[name]) for name, rate in reached.items()}
    row_us = 2.0 * column_tile * units / (at["compute_efficiency"] * reached["uncut_flops_per_us"])
    operand_us = call["element_bytes"] / (at["l2_bytes_per_clock"] * clock)
    per_expert = rows / active
    # (time, tiles) of the fastest tile, and of the fastest that the kernel uses above one token per expert
    free, beyond = None, (float("inf"), 0.0)
    for listed in ROW_TILES:
        tile = xp.minimum(listed, at["most_tile"])
        tiles = expert_tiles(xp, per_expert / tile, call["even"]) * active
        whole_us = tile * row_us + (tile + column_tile) * operand_us
        step_us = with_cut_rate(xp, whole_us, 2.0 * tile * column_tile * units, reached)
        compute_us = 0.0
        for columns, depth in ((up_width, hidden), (hidden, width)):
            waves = tiles * xp.maximum(columns / column_tile, 1.0) / units
            # a part-filled wave takes as long as a full one; smooth, so that costs between knots can be interpolated
            compute_us = compute_us + xp.sqrt(1.0 + waves * waves) * (depth * step_us + at["tile_overhead_us"])
        free = (compute_us, tiles) if free is None else cheaper(xp, free, (compute_us, tiles))
        allowed = xp.where(listed >= at["least_tile"], compute_us, float("inf"))
        beyond = cheaper(xp, beyond, (allowed, tiles))
    # from 0 at one token per expert to 1 at one and a half
    ramp = xp.clip(2.0 * (call["tokens"] / call["local_experts"] - 1.0), 0.0, 1.0)
    compute_us, tiles = (small + ramp * (large - small) for small, large in zip(free, beyond, strict=True))
    dram = gpu["memory_bytes_per_us"] * at["dram_share"] * (1.0 - at["ecc_share"] * gpu["inline_ecc"])
    l2 = xp.maximum(L2_BYTES_PER_CLOCK * units * clock, gpu["memory_bytes_per_us"])
    # both partitions of a split L2 keep a line that both read
    kept_bytes = at["l2_share"] * gpu["l2_bytes"] / gpu["l2_partitions"]

    def byte_us(touched: Any, rate: Any) -> Any:
        hits = 1.0 / (1.0 + (touched / kept_bytes) ** at["l2_sharpness"])
        return (1.0 - hits) / rate + hits / l2

    weights_us = active * call["expert_bytes"] * byte_us(call["working_set_bytes"], dram * at["memory_efficiency"])
    other_rows = xp.maximum(call["tokens"] * call["top_k"] - rows, 0.0)
    # 16-bit elements: permuted in (2), written and read between the products, written, read and summed (4)
    row_bytes = 6.0 * hidden + 2.0 * up_width + 4.0 * width
    moved = (rows + at["remote_share"] * other_rows) * row_bytes + 4.0 * call["tokens"] * hidden
    copied_us = 1.0 / (COPIED_BYTES_PER_CLOCK * units * clock)
    moved_us = at["moved_factor"] * moved * (byte_us(moved, dram) + copied_us)
    core_us = power_mean(xp, compute_us, weights_us, at["norm_exponent"])
    small_us = call["small_tiles"] * small_tiles_us(xp, call, active, per_expert, units, clock)
    core_us = power_mean(xp, core_us, small_us, SMALL_EXPONENT)
    # whole blocks: those with tokens come first and wait for their weights, the others compute after them
    block_flops = 2.0 * call["block_rows"] * hidden * width * call["matrices"]
    blocks_us = weights_us + block_flops / (BLOCK_EFFICIENCY * gpu["math_flops_per_us"])
    core_us = xp.where(call["block_rows"] > 0.0, blocks_us, core_us)
    return at["floor_us"] + at["gap_us"] + at["expert_us"] * active + core_us + moved_us, tiles, at["floor_us"]


def small_tiles_us(xp: Any, call: Columns, active: Any, per_expert: Any, units: Any, clock: Any) -> Any:
    """Return the time of small tiles over both GEMMs, microseconds: of one block's steps, or of a multiprocessor's."""
    hidden, width = call["hidden"], call["intermediate"]
    tiles = expert_tiles(xp, per_expert / SMALL_TILE, call["even"]) * active
    steps_us = 0.0
    for columns, depth in (((call["matrices"] - 1.0) * width, hidden), (hidden, width)):
        blocks = tiles * xp.maximum(columns / SMALL_TILE, 1.0) / units
        steps_us = steps_us + depth / SMALL_DEPTH * xp.maximum(BLOCK_STEP_CLOCKS, UNIT_STEP_CLOCKS * blocks) / clock
    return steps_us


def cheaper(xp: Any, one: tuple[Any, Any], other: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the (time, tiles) of the faster of two, elementwise."""
    return xp.minimum(one[0], other[0]), xp.where(other[0] < one[0], other[1], one[1])


def expert_tiles(xp: Any, filling: Any, even: Any) -> Any:
    """Return the mean number of tiles of an expert whose rows fill ``filling`` tiles on average.

    ceil(filling) where loads are ``even``; else the mean of ceil over exponentially distributed rows, 1 / (1 - exp(-1 /
    filling)): 1 where tiles are hardly filled, filling + 1/2 where many are.
    """
    spread = 1.0 / (1.0 - xp.exp(-1.0 / filling))
    return xp.where(even > 0.0, xp.ceil(filling - 1e-6), spread)


def view(xp: Any, call: Columns) -> dict[str, Any]:
    """Return the columns that :func:`moe` reads, (rows,) each: load of the busiest rank, bytes of an expert's weights.

    ``load_exponent``, a column of sweeps alone, is the exponent by which their collector drew the experts.
    """
    tokens, top_k, ranks = call["tokens"], call["top_k"], call["moe_ep"]
    hidden, width, local = call["hidden"], call["intermediate"], call["local_experts"]
    mean_rows = tokens * top_k / ranks
    matrices = call["flops"] / (2.0 * mean_rows * hidden * width)
    token_bytes = 4.0 * tokens * xp.minimum(1.0, top_k / ranks) * hidden
    # weights have at least a quarter of a byte per element
    elements = matrices * hidden * width
    expert_bytes = xp.maximum((call["bytes"] - token_bytes) / call["active_experts"], 0.25 * elements)
    if "load_exponent" in call:
        rows, active, touched = drawn_load(xp, tokens, top_k, local, ranks, call["load_exponent"])
        even, working_set = 1.0 * (call["load_exponent"] == EVEN), touched * expert_bytes
    else:
        rows, active = random_load(xp, tokens, top_k, local, ranks, call["active_experts"])
        even, working_set = 0.0 * tokens, call["working_set_bytes"]
    return {
        **call,
        "rank_rows": rows,
        "active_experts": active,
        "even": even,
        "matrices": xp.maximum(matrices, 2.0),
        "expert_bytes": expert_bytes,
        "element_bytes": expert_bytes / elements,
        "working_set_bytes": working_set,
    }


def random_load(xp: Any, tokens: Any, top_k: Any, local_experts: Any, ranks: Any, active: Any) -> tuple[Any, Any]:
    """Return expected (rows, active experts) of the busiest rank, for a router that draws experts at random.

    Rows of a rank vary by the draw (relative variance 1 / mean) and by the popularity of its experts. ``active``:
    experts with tokens on a rank of mean load; the busiest rank has fewer idle ones.
    """
    mean_rows = tokens * top_k / ranks
    busiest = busiest_share(xp, ranks, POPULARITY_VARIANCE / local_experts + 1.0 / mean_rows)
    busiest = xp.minimum(busiest, most_share(xp, top_k, local_experts, ranks))
    idle = xp.maximum(1.0 - active / local_experts, 0.0) ** busiest
    return mean_rows * busiest, local_experts * (1.0 - idle)


def busiest_share(xp: Any, ranks: Any, variance: Any) -> Any:
    """Return the expected load of the busiest rank over the mean: 1 + z(ranks) sqrt(variance (1 - 1/ranks)).

    ``variance``: relative variance of a rank's load. z: expected maximum of ``ranks`` normal draws, times 1.3 for the
    right skew of loads; within 12 % of simulated routings.
    """
    octaves = xp.log(ranks)
    return 1.0 + octaves / (0.86 + 0.1215 * octaves) * xp.sqrt(variance * (1.0 - 1.0 / ranks))


def most_share(xp: Any, top_k: Any, local_experts: Any, ranks: Any) -> Any:
    """Return the largest possible load of a rank over the mean: a token reaches an expert at most once."""
    return ranks * xp.minimum(1.0, local_experts / top_k)


def drawn_load(xp: Any, tokens: Any, top_k: Any, local_experts: Any, ranks: Any, exponent: Any) -> tuple[Any, Any, Any]:
    """Return (rows, active experts, experts of all routings) of the rank that a collector measures, (rows,) each.

    Collectors of AIConfigurator (collector/helper.py) draw each expert's share from x^-exponent between 1 and 0.8
    tokens (between 0.01 and 2 while there are fewer rows than experts), round the counts, give the missing rows to idle
    experts in order, and measure the busiest rank; ``exponent`` 0: the same count for every expert. Computed by
    integrals of that density, within 12 % of simulated draws from 4 tokens on, mostly within 5 %.
    """
    even = exponent == EVEN
    mean = tokens * top_k / (local_experts * ranks)
    low = xp.where(mean > 1.0, 1.0, 0.01)
    high = xp.where(mean > 1.0, xp.maximum(0.8 * tokens, 1.001), 2.0)
    power = 1.0 - xp.where(even, 1.2, exponent)

    def moment(order: float, top: Any) -> Any:
        norm = (high**power - low**power) / power
        return (top ** (power + order) - low ** (power + order)) / (power + order) / norm

    scale = mean / moment(1.0, high)
    rounded_off = xp.clip(0.5 / scale, low, high)
    drawn = 1.0 - moment(0.0, rounded_off)
    rank_share = xp.minimum(scale * moment(1.0, rounded_off), 1.0 - drawn)
    share = xp.minimum(xp.minimum(drawn + rank_share, mean), 1.0)
    variance = moment(2.0, high) / moment(1.0, high) ** 2 - 1.0
    busiest = busiest_share(xp, ranks, variance / local_experts)
    busiest = xp.where(even, 1.0, xp.minimum(busiest, most_share(xp, top_k, local_experts, ranks)))
    rows = xp.maximum(mean * local_experts * busiest, 1.0)
    # the busiest rank has a larger share of active experts, the more so the fewer are active
    active = local_experts * xp.where(even, xp.minimum(mean, 1.0), share * busiest ** (1.0 - share))
    active = xp.maximum(xp.minimum(active, xp.minimum(local_experts, rows)), 1.0)
    # drawn experts differ between routings; those that get the missing rows are in the same order each time
    missed = (1.0 - drawn) ** ROUTINGS_IN_A_SWEEP * (1.0 - xp.clip(share - drawn, 0.0, 1.0))
    touched = xp.where(even, active, xp.clip(local_experts * (1.0 - missed), active, local_experts))
    return rows, active, touched
