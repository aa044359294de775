"""Routed experts: load of the busiest rank against simulated routings, order, smoothness, and what bounds a kernel."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kernelsight.catalog.tables import facts
from kernelsight.kernels import moe
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.hardware import BY_MATH, MATH, hardware_columns
from kernelsight.serving.costs.knots import edge_knots

COLD = 1e18  # bytes between two uses of a weight: nothing is left in L2
KERNELS = {"cutlass": {}, "triton": {"least_tile": 64.0, "most_tile": 64.0}, "marlin": {"warp_level": 1.0}}
# hidden, width on one GPU, experts per token, experts on one GPU, ranks
LAYERS = [(2048, 768, 8, 128, 1), (4096, 14336, 2, 8, 1), (7168, 2048, 8, 32, 8), (2048, 128, 8, 256, 1)]


def hardware(gpu: str, math: str = "bf16") -> dict[str, float]:
    gpus = facts("gpus")
    columns = hardware_columns(gpus, facts("fabrics"))
    row = gpus["gpu"].to_pylist().index(gpu)
    numbers = {name: values[row] for name, values in columns.items() if values.ndim == 1}
    return numbers | {name: columns[name][row, MATH.index(math)] for name in BY_MATH}


def calls(tokens: np.ndarray, layer: tuple[int, ...], element_bytes: float = 2.0, **more: float) -> dict:
    """Return the columns of a call table with gated experts of 16-bit elements, or of ``element_bytes``."""
    hidden, width, top_k, local, ranks = (np.full(tokens.shape, float(size)) for size in layer)
    active = local * (1.0 - (1.0 - top_k / (local * ranks)) ** tokens)
    call = {
        "tokens": tokens,
        "hidden": hidden,
        "intermediate": width,
        "top_k": top_k,
        "local_experts": local,
        "moe_ep": ranks,
        "active_experts": active,
        "flops": 2.0 * tokens * top_k / ranks * 3.0 * hidden * width,
        "bytes": active * 3.0 * hidden * width * element_bytes + 4.0 * tokens * np.minimum(1.0, top_k / ranks) * hidden,
        "working_set_bytes": np.full(tokens.shape, COLD),
        "small_tiles": np.zeros(tokens.shape),
        "block_rows": np.zeros(tokens.shape),
    }
    return {**call, **{name: np.full(tokens.shape, value) for name, value in more.items()}}


def latency(call: dict, gpu: dict, **chosen: float) -> np.ndarray:
    at = {one.name: one.start for one in FAMILIES["moe"].latency_model.coefficients} | chosen
    return moe.moe(np, moe.view(np, call), gpu, at)[0]


def routed(tokens: int, experts: int, top_k: int, ranks: int, variance: float, random: np.random.Generator) -> tuple:
    """Return (rows, active experts) of the busiest rank of one random routing, drawn token by token."""
    popularity = random.gamma(1.0 / variance, variance, experts)
    # the top_k largest of log(weight) + Gumbel noise are a draw without replacement
    keys = np.log(popularity) + random.gumbel(size=(tokens, experts))
    chosen = np.argpartition(-keys, top_k - 1, axis=1)[:, :top_k]
    counts = np.bincount(chosen.ravel(), minlength=experts).reshape(ranks, -1)
    busiest = counts.sum(axis=1).argmax()
    return counts[busiest].sum(), (counts[busiest] > 0).sum()


@pytest.mark.parametrize(("experts", "top_k", "ranks"), [(128, 8, 8), (256, 8, 4), (64, 4, 2)])
def test_random_load_is_what_random_routings_give(experts: int, top_k: int, ranks: int) -> None:
    chosen, variance = top_k / experts, moe.POPULARITY_VARIANCE
    for tokens in (4, 32, 256, 2048):
        random = np.random.default_rng(experts + tokens)
        simulated = [routed(tokens, experts, top_k, ranks, variance, random) for _ in range(60)]
        missed = (1.0 - variance * np.log(1.0 - chosen) * (tokens - 1)) ** (-1.0 / variance)
        reached = experts / ranks * (1.0 - (1.0 - chosen) * missed)
        rows, active = moe.random_load(np, float(tokens), float(top_k), experts / ranks, float(ranks), reached)
        assert rows == pytest.approx(np.mean([one[0] for one in simulated]), rel=0.12), tokens
        assert active == pytest.approx(np.mean([one[1] for one in simulated]), rel=0.16), tokens


def drawn(tokens: int, experts: int, top_k: int, ranks: int, exponent: float, random: np.random.Generator) -> tuple:
    """Return (rows, active experts) of the busiest rank of a collector's draw: shares, rounding, repair of the sum."""
    low, high = (1.0, 0.8 * tokens) if tokens * top_k > experts else (0.01, 2.0)
    power = 1.0 - exponent
    shares = ((high**power - low**power) * random.random(experts) + low**power) ** (1.0 / power)
    counts = np.minimum(np.rint(shares / shares.sum() * tokens * top_k), tokens).reshape(ranks, -1)
    missing = tokens * top_k - int(counts.sum())
    rank = 0
    while missing:
        local = counts[rank % ranks]
        local[local.argmin() if missing > 0 else local.argmax()] += np.sign(missing)
        missing -= np.sign(missing)
        rank += 1
    busiest = counts.sum(axis=1).argmax()
    return counts[busiest].sum(), (counts[busiest] > 0).sum()


@pytest.mark.parametrize(("experts", "top_k", "ranks"), [(128, 8, 1), (128, 8, 8), (256, 8, 8), (512, 22, 4)])
def test_drawn_load_is_what_the_collectors_draw(experts: int, top_k: int, ranks: int) -> None:
    for exponent, tokens in itertools.product((1.01, 1.2), (8, 64, 512, 4096)):
        random = np.random.default_rng(experts)
        simulated = [drawn(tokens, experts, top_k, ranks, exponent, random) for _ in range(40)]
        rows, active, touched = moe.drawn_load(
            np, float(tokens), float(top_k), experts / ranks, float(ranks), np.float64(exponent)
        )
        assert (rows, active) == pytest.approx(tuple(np.mean(simulated, axis=0)), rel=0.12), (exponent, tokens)
        assert active <= touched <= experts / ranks, (exponent, tokens)


def test_an_even_draw_reaches_every_expert_once_there_are_tokens_enough() -> None:
    tokens = np.array([1.0, 8.0, 16.0, 4096.0])
    rows, active, touched = moe.drawn_load(np, tokens, 8.0, 16.0, 8.0, 0.0 * tokens)
    assert rows.tolist() == tokens.tolist()
    assert active.tolist() == touched.tolist() == [1.0, 8.0, 16.0, 16.0]


def test_expert_tiles_are_the_mean_of_whole_tiles() -> None:
    random = np.random.default_rng(3)
    for filling in (0.05, 0.5, 1.0, 4.0, 40.0):
        counts = random.exponential(filling, 200_000)
        assert moe.expert_tiles(np, filling, 0.0) == pytest.approx(np.ceil(counts).mean(), rel=0.01)
    assert moe.expert_tiles(np, np.array([0.2, 1.0, 1.5]), 1.0).tolist() == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("kernel", KERNELS)
def test_lines_between_the_knots_of_step_costs_err_little(kernel: str) -> None:
    """Below 256 tokens decode steps are padded to captured sizes, which are knots; half a per cent is kept above."""
    tokens, knots = np.arange(1.0, 16385.0), edge_knots(16384)
    for layer, gpu in itertools.product(LAYERS, ("l40s", "h100_sxm", "b200_sxm")):
        times = latency(calls(tokens, layer), hardware(gpu), **KERNELS[kernel])
        errors = np.abs(np.interp(tokens, knots, times[knots - 1]) / times - 1.0)
        assert errors[256:].max() < 0.005, (layer, gpu)
        assert errors.max() < 0.015, (layer, gpu)


def test_a_small_batch_reads_its_experts_at_the_memory_rate() -> None:
    """64 tokens through 8 large experts: 8 x 3 x 4096 x 14336 weights of 2 bytes in 841 us at 3.35 TB/s."""
    gpu = hardware("h100_sxm")
    call = calls(np.array([64.0]), (4096, 14336, 2, 8, 1))
    least_us = call["bytes"][0] / gpu["memory_bytes_per_us"]
    assert least_us == pytest.approx(841.0, rel=0.01)
    assert 1.0 < latency(call, gpu)[0] / least_us < 1.35


def test_a_large_batch_runs_all_its_products_at_the_tensor_rate() -> None:
    """262,144 tokens through 2 of 8 experts: 3 x 2 x 262,144 x 2 x 4096 x 14336 FLOP in 187 ms at 989.4 TFLOP/s."""
    gpu, call = hardware("h100_sxm"), calls(np.array([262_144.0]), (4096, 14336, 2, 8, 1))
    least_us = call["flops"][0] / gpu["math_flops_per_us"]
    assert least_us == pytest.approx(186_700.0, rel=0.01)
    nothing_else = {"compute_efficiency": 1.0, "l2_bytes_per_clock": 1e9, "tile_overhead_us": 0.0, "moved_factor": 0.0}
    assert latency(call, gpu, **nothing_else)[0] / least_us == pytest.approx(1.0, rel=0.01)


def test_small_tiles_take_longer_than_those_of_a_tuned_file() -> None:
    # published for a GPU's share of Scout's experts in 64 tokens: 207 us with other tiles, 291 with these
    call = calls(np.array([64.0]), (5120, 8192, 1, 2, 8))
    tuned, small = (latency(call | {"small_tiles": np.array([flag])}, hardware("h100_sxm"))[0] for flag in (0.0, 1.0))
    assert 1.25 < small / tuned < 1.6
    # a second product of 160 blocks steps no faster than one block does alone
    steps_us = moe.small_tiles_us(np, moe.view(np, call), 2.0, 4.0, 132.0, 1830.0)
    assert steps_us == pytest.approx((5120 / 32 * 206 * 512 / 132 + 8192 / 32 * 630) / 1830, rel=0.01)


def test_blocks_without_tokens_are_computed_whatever_the_batch() -> None:
    # Qwen3-235B in FP8 on two H200, vLLM 0.12: 94 layers take 24 ms longer than their tokens need, at 16 users
    gpu, call = hardware("h200_sxm", "fp8"), calls(np.array([16.0]), (4096, 768, 8, 128, 1), 1.0)
    without, with_blocks = (latency(call | {"block_rows": np.array([rows])}, gpu)[0] for rows in (0.0, 16384.0))
    assert 94 * (with_blocks - without) / 1e3 == pytest.approx(24.0, rel=0.15)


def test_weights_that_stay_in_l2_are_read_faster() -> None:
    """A sweep that repeats one even routing of few tokens; 100 MB of L2 hold two experts of 9 MB, not eight of 350."""
    gpu = hardware("l40s")
    one, few = np.array([1.0]), (2048, 768, 2, 8, 1)
    assert latency(calls(one, few, load_exponent=0.0), gpu) < 0.75 * latency(calls(one, few), gpu)
    large = (4096, 14336, 2, 8, 1)
    sweep = latency(calls(16.0 * one, large, load_exponent=0.0), gpu)
    assert sweep == pytest.approx(latency(calls(16.0 * one, large), gpu), rel=0.05)


def test_warp_level_kernels_do_not_gain_from_a_faster_tensor_core() -> None:
    gpu, call = hardware("h100_sxm"), calls(np.array([16384.0]), (4096, 1536, 8, 128, 1), 0.53)
    faster = {**gpu, **{name: 4.0 * gpu[name] for name in BY_MATH}}
    assert latency(call, faster, warp_level=1.0) == pytest.approx(latency(call, gpu, warp_level=1.0), rel=1e-9)
    assert latency(call, faster) < 0.9 * latency(call, gpu) < 0.9 * latency(call, gpu, warp_level=1.0)


def test_the_busiest_rank_sets_the_pace() -> None:
    """Experts over eight GPUs: an eighth of the work would take less than what the busiest GPU gets."""
    tokens, gpu = np.array([8192.0]), hardware("h100_sxm")
    whole, shared = (
        latency(calls(tokens, (7168, 2048, 8, 256, 1)), gpu),
        latency(calls(tokens, (7168, 2048, 8, 32, 8)), gpu),
    )
    assert whole / 8.0 < shared < whole / 3.0
