"""What a tier may rest on: the cross-generation tier of a measured GPU forgets its whole generation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.fitting.pack_rows import correction_arrays
from kernelsight.kernels.intervals import DRIFT_HALF
from kernelsight.kernels.pack import pack_table
from tests.kernels.calls import FACTS, call_table, price, with_column, work

SIZES = {"m": np.array([16.0]), "n": np.array([512.0]), "k": np.array([512.0])}
# floor_us of three fits: of all GPUs, without Hopper, without Ada; and what a sweep of the H100 found on it
ALL, NO_HOPPER, NO_ADA, OWN_FACTOR = 1.5, 3.0, 4.5, 2.0


def row(part: str, coefficient: str, value: float, **more: Any) -> dict[str, Any]:
    named = {"family": "gemm", "part": part, "level": "family", "unit": "1", "source": "a test"}
    return {**named, "coefficient": coefficient, "value": value, **more}


def pack(*without: tuple[str | None, float]) -> pa.Table:
    """Return fits of the floor, and what marks an H100 as measured: what ran there, and a constant of its own."""
    where = {"gpu": "h100_sxm", "level": "gpu", "engine": "vllm", "implementation": "cublas", "dtype": "bf16"}
    rows = [row("constant", "floor_us", floor, without=name) for name, floor in without]
    rows += [row("choice", "rows", 1.0, **where)]
    rows += [row("constant", "floor_us", OWN_FACTOR, gpu="h100_sxm", level="device")]
    return pack_table(rows)


FITS = pack((None, ALL), ("hopper", NO_HOPPER), ("ada", NO_ADA))


def answer(gpu: str, tier: str, coefficients: pa.Table = FITS, **tables: pa.Table) -> dict[str, Any]:
    """Return the latency row of a small BF16 product."""
    calls = call_table({**SIZES, **work("gemm", SIZES), "format": ["bf16"]}, gpu, "bf16")
    return price("gemm", calls, tier=tier, eta_coefficients=coefficients, **tables).to_pylist()[0]


def floor_of(gpu: str, tier: str, coefficients: pa.Table = FITS) -> float:
    """Return the floor that an answer has in it: what is left once the same answer with a floor of ALL is taken off."""
    rest = answer(gpu, "cross-generation", pack_table([row("constant", "floor_us", ALL)]))["latency_us"] - ALL
    return answer(gpu, tier, coefficients)["latency_us"] - rest


def test_a_measured_gpu_is_answered_by_all_gpus_and_its_own_sweep() -> None:
    assert floor_of("h100_sxm", "auto") == pytest.approx(ALL * OWN_FACTOR)
    assert answer("h100_sxm", "auto")["tier"] == "target-measured"


def test_across_generations_a_measured_gpu_is_answered_without_its_generation() -> None:
    assert floor_of("h100_sxm", "cross-generation") == pytest.approx(NO_HOPPER)
    found = answer("h100_sxm", "cross-generation")
    assert found["tier"] == "cross-generation" and found["evidence"].startswith("sweeps of other GPUs")


def test_a_gpu_that_no_sweep_holds_is_answered_by_all_gpus() -> None:
    for gpu in ("a100_sxm", "l40s", "b200_sxm"):
        assert floor_of(gpu, "auto") == floor_of(gpu, "cross-generation") == pytest.approx(ALL)


def test_a_gpu_that_no_sweep_holds_has_the_factors_of_its_measured_sibling() -> None:
    for gpu, evidence in (
        ("h200_sxm", "fit of h100_sxm"),
        ("h20", "sweeps of other"),
        ("h100_pcie", "sweeps of other"),
    ):
        found = answer(gpu, "auto")
        assert floor_of(gpu, "auto") == pytest.approx(ALL * OWN_FACTOR)
        assert found["tier"] == "cross-generation" and found["evidence"].startswith(evidence)
    # asked for what other generations say, a twin has no fit of its own either
    assert answer("h200_sxm", "cross-generation")["evidence"].startswith("sweeps of other GPUs")


def test_a_twin_of_a_measured_gpu_has_its_fit_and_the_interval_of_a_gpu_that_no_sweep_holds() -> None:
    sizes = {"m": np.array([17.0, 800.0, 5000.0]), "n": np.full(3, 4096.0), "k": np.full(3, 3000.0)}
    calls = {
        gpu: price("gemm", call_table({**sizes, **work("gemm", sizes), "format": ["bf16"] * 3}, gpu, "bf16"))
        for gpu in ("h100_sxm", "h800_sxm", "h20")
    }
    swept, twin, other = (found["latency_us"].to_numpy() for found in calls.values())
    assert twin == pytest.approx(swept, rel=1e-12)
    assert (np.abs(other / swept - 1.0) > 1e-2).all()
    assert set(calls["h800_sxm"]["tier"].to_pylist()) == {"cross-generation"}
    width = {gpu: found["latency_p95_us"].to_numpy() / found["latency_us"].to_numpy() for gpu, found in calls.items()}
    # calls of the H20 take longer, and longer ones have narrower intervals at equal distance
    assert (width["h800_sxm"] > width["h100_sxm"]).all() and width["h20"].mean() > width["h800_sxm"].mean()


def test_a_fit_that_left_nothing_out_answers_with_what_it_has() -> None:
    assert floor_of("h100_sxm", "cross-generation", pack((None, ALL))) == pytest.approx(ALL)


def curve(width: float, **more: Any) -> list[dict[str, Any]]:
    """Return an interval of one factor for BF16 kernels, whatever they take."""
    half = float(np.log(width))
    names = ("*", "bf16|seen", "bf16|unseen")
    return [row("interval", "half", half, dtype=name, position=knot, **more) for name in names for knot in range(5)]


def test_intervals_are_those_of_the_fit_that_answers() -> None:
    curves = [*curve(1.5), *curve(2.5, without="hopper"), *curve(3.5, without="ada")]
    both = pa.concat_tables([FITS, pack_table(correction_arrays(curves))])
    for gpu, tier, width in (("h100_sxm", "cross-generation", 2.5), ("gh200", "cross-generation", 1.5)):
        found = answer(gpu, tier, both)
        assert found["latency_p95_us"] / found["latency_us"] == pytest.approx(width)
    # far from the one GPU that was fitted
    found = answer("l40s", "cross-generation", both)
    assert found["latency_p95_us"] / found["latency_us"] > 1.6


@pytest.mark.parametrize(
    ("engine", "asked", "tier", "evidence"),
    [
        ("vllm", "", "target-measured", "sweep of h100_sxm: cublas"),
        ("sglang", "", "gpu-measured", "sweep of h100_sxm, without sglang cublas bf16: cublas"),
        ("vllm", "triton", "gpu-measured", "sweep of h100_sxm, without vllm triton bf16: cublas"),
        ("sglang", "library", "target-measured", "sweep of h100_sxm: library"),
    ],
)
def test_what_is_called_measured_is_the_kernel_that_runs(engine: str, asked: str, tier: str, evidence: str) -> None:
    """The sweep ran cuBLAS in vLLM, and a library by itself; another engine's or another kernel is another one."""
    at = {"level": "gpu", "gpu": "h100_sxm", "dtype": "bf16"}
    library = row("choice", "rows", 1.0, engine="library", implementation="library", **at)
    held = [row("interval", "half", 0.1, gpu="h100_sxm", dtype=f"{name}|bf16", position=knot)
            for name in ("vllm|cublas", "library|library") for knot in range(5)]  # fmt: skip
    swept = pa.concat_tables([FITS, pack_table([library, *correction_arrays(held)])])
    calls = call_table({**SIZES, **work("gemm", SIZES), "format": ["bf16"]}, "h100_sxm", "bf16")
    calls = with_column(calls, "engine", [engine]).append_column("implementation", pa.array([asked]))
    found = price("gemm", calls, tier="auto", eta_coefficients=swept).to_pylist()[0]
    assert (found["tier"], found["evidence"]) == (tier, evidence)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_library_that_was_swept_by_itself_has_its_own_constants_in_every_engine(engine: str) -> None:
    at = {"level": "gpu", "gpu": "h100_sxm", "engine": "library", "implementation": "library", "dtype": "bf16"}
    rows = [row("choice", "rows", 1.0, **at), row("constant", "floor_us", 3.0, lineage="library", **at)]
    held = [row("interval", "half", 0.1, gpu="h100_sxm", dtype="library|library|bf16", position=n) for n in range(5)]
    calls = call_table({**SIZES, **work("gemm", SIZES), "format": ["bf16"]}, "h100_sxm", "bf16")
    calls = with_column(calls, "engine", [engine]).append_column("implementation", pa.array(["library"]))

    def latency(*swept: dict[str, Any]) -> float:
        tables = [FITS, pack_table([*swept, *correction_arrays(held)])]
        return price("gemm", calls, tier="auto", eta_coefficients=pa.concat_tables(tables))["latency_us"][0].as_py()

    assert latency(*rows) - latency(rows[0]) == pytest.approx(ALL * (3.0 - 1.0), rel=1e-5)


def test_a_hypothetical_gpu_has_the_fit_of_its_likeness_and_an_interval_of_its_own() -> None:
    """What a sweep says of the errors on its own GPU says nothing of a GPU that nobody has built."""
    gpus = FACTS["gpus"]
    likeness = gpus.slice(gpus["gpu"].to_pylist().index("h100_sxm"), 1)
    mine = with_column(with_column(likeness, "gpu", ["mine"]), "measured_as", ["h100_sxm"])
    known = {"gpus": pa.concat_tables([gpus, mine.cast(gpus.schema)])}
    own = curve(1.1, gpu="h100_sxm", level="gpu")
    for knot in range(5):
        own.append({**own[knot], "dtype": "vllm|cublas|bf16"})
    curves = pack_table(correction_arrays([*curve(1.5), *own]))
    coefficients = pa.concat_tables([FITS, curves])
    swept, built = (answer(gpu, "auto", coefficients, **known) for gpu in ("h100_sxm", "mine"))
    assert (swept["tier"], built["tier"]) == ("target-measured", "hypothetical")
    assert built["latency_us"] == swept["latency_us"]
    drift = np.exp(np.hypot(np.log(1.1), DRIFT_HALF))
    assert swept["latency_p95_us"] / swept["latency_us"] == pytest.approx(drift)
    assert built["latency_p95_us"] / built["latency_us"] == pytest.approx(1.5)


def test_the_roofline_has_no_interval() -> None:
    found = answer("h100_sxm", "roofline")
    assert found["latency_p05_us"] == found["latency_us"] == found["latency_p95_us"] == found["roofline_us"]


def test_collectives_follow_the_link_that_is_stated() -> None:
    """Whoever has an H100 on PCIe does not get what its NVLink sweep says: no constants, no correction of it."""
    sizes = {"group_size": np.full(3, 8.0), "elements": np.array([8e3, 5e5, 3e7])}
    calls = call_table({**sizes, **work("all_reduce", sizes)}, "mine")
    gpus, links = FACTS["gpus"], {}
    [likeness] = [row for row in gpus.to_pylist() if row["gpu"] == "h100_sxm"]
    for name, link in {
        "nvlink": {},
        "pcie": {"link_fabric": None, "link_bytes_per_s": 64e9},
        "fabric": {"link_fabric": "pcie5_x16", "link_bytes_per_s": 64e9},
        "unswept": {"link_fabric": None, "link_bytes_per_s": 64e9, "measured_as": None},
    }.items():
        row = {**likeness, "gpu": "mine", "measured_as": "h100_sxm", **link}
        known = pa.concat_tables([gpus, pa.Table.from_pylist([row], schema=gpus.schema)])
        links[name] = price("all_reduce", calls, gpus=known).to_pylist()
    assert [row["tier"] for row in links["nvlink"]] == ["hypothetical"] * 3
    assert [row["tier"] for row in links["pcie"]] == ["cross-generation"] * 3
    for nvlink, pcie, fabric, unswept in zip(*links.values(), strict=True):
        assert pcie["latency_us"] == fabric["latency_us"] == unswept["latency_us"] > 3.0 * nvlink["latency_us"]
        assert pcie["latency_p95_us"] / pcie["latency_us"] > 1.1
    # products know nothing of links
    products = call_table({**SIZES, **work("gemm", SIZES), "format": ["bf16"]}, "mine", "bf16")
    row = {**likeness, "gpu": "mine", "measured_as": "h100_sxm", "link_fabric": None}
    known = pa.concat_tables([gpus, pa.Table.from_pylist([row], schema=gpus.schema)])
    assert price("gemm", products, gpus=known)["tier"].to_pylist() == ["hypothetical"]


@pytest.mark.parametrize(("gpus", "tier"), [(8, "target-measured"), (16, "gpu-measured")])
@pytest.mark.parametrize("family", ["all_reduce", "all_gather", "all_to_all"])
def test_a_sweep_inside_a_node_measures_no_exchange_between_nodes(family: str, gpus: int, tier: str) -> None:
    sizes = {"group_size": np.array([float(gpus)]), "elements": np.array([2.0**20])}
    found = answer_of(family, sizes, "h100_sxm")
    assert found["tier"] == tier
    assert found["evidence"].endswith("in groups of up to 8 GPUs") == (gpus == 16)


def test_deepep_was_measured_between_nodes() -> None:
    calls = call_table({**EXCHANGED, **work("all_to_all", EXCHANGED), "format": ["bf16"]}, "h100_sxm", None)
    calls = with_column(calls, "engine", ["sglang"])
    calls = calls.append_column("implementation", pa.array(["deepep_normal_dispatch"]))
    assert price("all_to_all", calls).to_pylist()[0]["tier"] == "target-measured"


EXCHANGED = {"group_size": np.array([16.0]), "elements": np.array([2.0**20])}


def answer_of(family: str, sizes: dict[str, Any], gpu: str, math: str | None = None) -> dict[str, Any]:
    """Return the latency row of one call by the pack that ships."""
    return price(family, call_table({**sizes, **work(family, sizes)}, gpu, math)).to_pylist()[0]


def test_what_a_sweep_does_not_hold_is_at_least_as_uncertain_as_without_a_sweep() -> None:
    """Widths of a product at sizes of the sweep, beyond them, and on the same GPU as if no sweep held it."""
    widths = {}
    for name, n in (("within", 4096.0), ("beyond", 2.0**22)):
        sizes = {"m": np.array([4096.0]), "n": np.array([n]), "k": np.array([4096.0])}
        calls = call_table({**sizes, **work("gemm", sizes), "format": ["bf16"]}, "h100_sxm", "bf16")
        for tier in ("auto", "cross-generation"):
            row = price("gemm", calls, tier=tier).to_pylist()[0]
            widths[name, tier] = row["tier"], row["latency_p95_us"] / row["latency_us"]
    assert widths["within", "auto"][0] == "target-measured" and widths["beyond", "auto"][0] == "gpu-measured"
    assert widths["within", "auto"][1] < 0.95 * widths["within", "cross-generation"][1]
    assert widths["beyond", "auto"][1] > 1.2 and widths["beyond", "auto"][1] > widths["within", "auto"][1] + 0.05
