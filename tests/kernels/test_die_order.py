"""GPUs of one die: where every fact of one is at least as good as a sibling's, no kernel of it is predicted slower."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kernelsight.catalog.tables import facts
from kernelsight.kernels.die_order import REPEAT_NOISE, comparisons, in_order
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.hardware import at_least_matrix
from kernelsight.kernels.intervals import DRIFT_HALF
from kernelsight.kernels.kernel_constants import rows_of_part
from kernelsight.kernels.latency import _of_own_fits
from kernelsight.kernels.pricing_tables import PricingTables
from tests.kernels.calls import (
    FACTS,
    GPUS,
    LINKED,
    NAMES,
    STREAMING,
    _sizes,
    call_table,
    price,
    settings,
    with_column,
    work,
)

ROUNDING = 1.0 + 1e-6
SHAPES = 6
# kernels of a family, evenly among those that sweeps ran: most time goes into resolving each on each GPU
MOST_KERNELS = 8
# number formats of cells that are not named after them: format and arithmetic
FORMATS = {
    "w4a16_mxfp4": ("mxfp4", "bf16"), "w4a8_mxfp4_mxfp8": ("mxfp4", "fp8"), "w4afp8": ("int4_wo", "fp8"),
    "int4_wo": ("int4_wo", "bf16"), "int8_wo": ("int8_wo", "bf16"), "nvfp4": ("nvfp4", "fp4"),
    "fp8_block": ("fp8_block", "fp8"),
}  # fmt: skip


def dies() -> dict[str, list[str]]:
    """Return the GPUs of each die with several."""
    by_die: dict[str, list[str]] = {}
    for row in facts("dies").to_pylist():
        by_die.setdefault(row["die"], []).append(row["gpu"])
    return {die: gpus for die, gpus in by_die.items() if len(gpus) > 1}


def test_every_gpu_has_a_die_of_its_own_architecture() -> None:
    assert facts("dies")["gpu"].to_pylist() == facts("gpus")["gpu"].to_pylist()
    capability = dict(zip(GPUS, FACTS["gpus"]["compute_capability"].to_pylist(), strict=True))
    for gpus in dies().values():
        assert len({capability[gpu] for gpu in gpus}) == 1, gpus
    assert {"h100_sxm", "h200_sxm", "gh200", "h20"} <= set(dies()["GH100"])
    assert dies()["GB100"] == ["b200_sxm", "gb200"] and "l4" not in dies()["AD102"]


def kernels(family: str) -> list[tuple[str, str, str]]:
    """Return the engine, cell and implementation of every kernel that a sweep of the family ran."""
    rows = rows_of_part(FACTS["eta_coefficients"], family, "choice").to_pylist()
    return sorted({(row["engine"], row["dtype"], row["implementation"]) for row in rows}) or [("vllm", "bf16", "")]


def calls_of(family: str, gpus: list[str]) -> tuple[pa.Table, int]:
    """Return drawn shapes of a family's kernels, by kernel, GPU and shape, and the number of kernels."""
    sizes = _sizes(family, np.random.default_rng(3), SHAPES, 16384.0 if family == "gemm" else 1e5)
    sizes |= work(family, sizes)
    tables = []
    of_family = kernels(family)
    for engine, cell, implementation in of_family[:: 1 + len(of_family) // MOST_KERNELS]:
        math, _, number_format = cell.partition("/")
        number_format, math = (number_format, math) if number_format else FORMATS.get(cell, (cell, cell))
        for gpu in gpus:
            calls = call_table(sizes, gpu, None if family in STREAMING + LINKED else math)
            calls = with_column(calls, "engine", [engine] * SHAPES)
            for name, word in (("format", number_format), ("implementation", implementation)):
                calls = calls.append_column(name, pa.array([word] * SHAPES))
            tables.append(calls)
    return pa.concat_tables(tables), len(tables) // len(gpus)


def is_lesser(family: str, math: str, lesser: str, better: str) -> bool:
    """Return whether the facts that a family's expressions read are at least as good on ``better``."""
    of_tensors = math if family not in STREAMING + LINKED else None
    matrix = at_least_matrix(FACTS["gpus"], FACTS["fabrics"], family in LINKED, of_tensors)
    return bool(matrix[GPUS.index(lesser), GPUS.index(better)])


@pytest.mark.parametrize("family", FAMILIES)
def test_no_kernel_is_slower_on_the_better_sibling(family: str) -> None:
    """In all tiers, beyond the noise of repeated measurements, unless the sweeps of both ran the kernel and differ."""
    for gpus in dies().values():
        calls, count = calls_of(family, gpus)
        own = _of_own_fits(family, calls, PricingTables(settings(), *(FACTS[name] for name in NAMES)))
        found = price(family, calls)["latency_us"].to_numpy().reshape(count, len(gpus), SHAPES)
        swept = (own.tier == 2).reshape(found.shape)
        raw = own.latency_us.reshape(found.shape)
        maths = calls["math"].to_pylist()[:: SHAPES * len(gpus)] if "math" in calls.column_names else ["bf16"] * count
        for (at, lesser), (to, better) in itertools.permutations(enumerate(gpus), 2):
            ordered = np.array([is_lesser(family, math, lesser, better) for math in maths])
            most = found[:, at] * (1.0 + REPEAT_NOISE)
            # a difference beyond the interval of the better one's own sweep was measured
            differs = swept[:, at] & swept[:, to]
            most = np.where(differs, np.maximum(most, raw[:, to] * np.exp(-DRIFT_HALF)), most)
            assert (found[:, to] <= most * ROUNDING)[ordered].all(), (lesser, better)


def test_comparisons_on_disk_are_those_of_the_same_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls, _ = calls_of("gemm", ["h100_sxm", "h200_sxm"])
    gpus = FACTS["gpus"]
    wider = pa.array([gpu == "h100_sxm" for gpu in GPUS])  # than its sibling: it is no lesser one then
    name = "memory_bandwidth_bytes_per_s"
    other = gpus.set_column(gpus.column_names.index(name), name, pc.if_else(wider, 1e13, gpus[name]))
    found = []
    for folder, rows in (("", gpus), (str(tmp_path), gpus), (str(tmp_path), other), (str(tmp_path), gpus), ("", other)):
        monkeypatch.setenv("KERNELSIGHT_CACHE", folder)
        rows = rows.slice(0)  # another object: nothing is in memory
        tables = PricingTables(settings(), *({**FACTS, "gpus": rows}[name] for name in NAMES))
        found.append(repr(comparisons("gemm", _of_own_fits("gemm", calls, tables).kinds, tables)))
    assert found[0] == found[1] == found[3] != found[2] == found[4]
    assert "Comparison" in found[0] and any(path.is_file() for path in tmp_path.rglob("*"))


def experts(gpu: str, tier: str = "auto", **tables: pa.Table) -> dict[str, object]:
    """Return the routed experts of gpt-oss-120b on one of 4 GPUs, of 160 tokens in all, by vLLM."""
    sizes = {name: np.array([value]) for name, value in EXPERTS.items()}
    calls = call_table({**sizes, "flops": 3.98e9, "bytes": 3.9e8, "small_tiles": 0.0, "block_rows": 0.0}, gpu, "bf16")
    return price("moe", calls.append_column("format", pa.array(["mxfp4"])), tier=tier, **tables).to_pylist()[0]


EXPERTS = {
    "tokens": 160.0, "hidden": 2880.0, "intermediate": 2880.0, "local_experts": 32.0, "top_k": 4.0, "moe_ep": 4.0,
    "active_experts": 31.5,
}  # fmt: skip


def test_experts_of_an_h200_are_no_slower_than_of_an_h100() -> None:
    """The sweep of the H200 holds an older and slower vLLM as well: by its own fit, 8 % slower."""
    lesser, better = experts("h100_sxm"), experts("h200_sxm")
    assert (lesser["tier"], lesser["evidence"]) == ("target-measured", "sweep of h100_sxm: triton_kernels_moe")
    assert better["latency_us"] == lesser["latency_us"]
    assert better["tier"] == "gpu-measured"
    said = "sweep of h200_sxm: triton_kernels_moe; no slower than h100_sxm, of the same die"
    assert better["evidence"] == said
    # the answer of its own sweep stays inside the interval
    own = price_of_own_fit("h200_sxm")
    assert own > 1.05 * lesser["latency_us"] and better["latency_p05_us"] < own < better["latency_p95_us"]


def price_of_own_fit(gpu: str) -> float:
    """Return the experts where no GPU shares its die."""
    alone = FACTS["dies"].filter(pa.array([name != "h100_sxm" for name in GPUS]))
    return float(experts(gpu, dies=alone)["latency_us"])


@pytest.mark.parametrize("bandwidth", [1.0, 1.2, 3.0])
def test_a_hypothetical_gpu_keeps_the_order_of_the_die_of_its_likeness(bandwidth: float) -> None:
    gpus = FACTS["gpus"]
    row = gpus.slice(GPUS.index("h200_sxm"), 1).to_pylist()[0]
    row |= {"gpu": "mine", "measured_as": "h200_sxm"}
    row["memory_bandwidth_bytes_per_s"] *= bandwidth
    known = pa.concat_tables([gpus, pa.Table.from_pylist([row], schema=gpus.schema)])
    mine = experts("mine", gpus=known)
    assert mine["tier"] == "hypothetical"
    assert mine["latency_us"] <= experts("h100_sxm")["latency_us"]


def test_a_tier_that_forgets_a_generation_knows_no_siblings() -> None:
    alone = FACTS["dies"].slice(0, 0)
    assert experts("h200_sxm", "cross-generation") == experts("h200_sxm", "cross-generation", dies=alone)
    assert "die" not in experts("l40s", "cross-generation")["evidence"]


BOTH = np.array([[True, True], [False, True]])  # the second is the better one


@pytest.mark.parametrize(
    ("raw", "rank", "expected"),
    [
        ((240.0, 270.0), (2, 2), (240.0, 240.0)),  # within the interval of its sweep
        ((240.0, 400.0), (2, 2), (240.0, 400.0 / 1.5)),  # the sweeps differ: as far as the interval goes
        ((240.0, 400.0), (1, 1), (240.0, 240.0)),
        ((240.0, 400.0), (2, 0), (240.0, 240.0)),  # measured on the lesser alone
        ((240.0, 400.0), (0, 2), (400.0, 400.0)),  # measured on the better alone
        ((270.0, 240.0), (0, 2), (270.0, 240.0)),  # in order: nothing moves
    ],
)
def test_what_was_measured_better_decides(
    raw: tuple[float, float], rank: tuple[int, int], expected: tuple[float, float]
) -> None:
    found = in_order(np.array(raw)[:, None], np.array(rank)[:, None], BOTH, np.array([1.5, 1.5]))
    assert found[:, 0].tolist() == pytest.approx(expected)
