"""Times of collectives: which kernel takes a message, what it takes then, and what never falls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from kernelsight.catalog.tables import facts
from kernelsight.kernels.families import COMMUNICATION, FAMILIES

KIB, MIB = 1024.0, 1024.0**2
H100 = {
    "sm_count": 132.0,
    "clock_per_us": 1830.0,
    "peak_link_bytes_per_us": 450e3,
    "link_latency_us": 1.5,
    "link_max_gpus": 8.0,
    "network_bytes_per_us": 42.5e3,
    "link_over_pcie": 0.0,
    "link_multicast": 1.0,
    "link_peers": 1.0,
    "pcie_bytes_per_us": 64e3,
    "pcie_latency_us": 2.5,
}
L40S = {**H100, "sm_count": 142.0, "clock_per_us": 2520.0, "peak_link_bytes_per_us": 32e3, "link_latency_us": 2.5}
L40S |= {"link_over_pcie": 1.0, "link_multicast": 0.0}
A100 = {**H100, "sm_count": 108.0, "clock_per_us": 1410.0, "peak_link_bytes_per_us": 300e3, "link_multicast": 0.0}


def constants(family: str, implementation: str = "nccl") -> dict[str, float]:
    """Return the coefficients that a family starts with, and the structure that the facts state."""
    values = {one.name: one.start for one in FAMILIES[family].latency_model.coefficients}
    rows = facts("kernel_implementations")
    rows = rows.filter(pc.and_(pc.equal(rows["family"], family), pc.equal(rows["implementation"], implementation)))
    return values | {row["coefficient"]: row["value"] for row in rows.to_pylist() if row["coefficient"]}


def time_us(
    family: str, size: Any, gpus: Any, gpu: dict = H100, implementation: str = "nccl", **changed: float
) -> np.ndarray:
    at = constants(family, implementation) | changed
    call = {"bytes": np.asarray(size, dtype=float), "group_size": np.asarray(gpus, dtype=float)}
    return FAMILIES[family].latency_model.expression(np, call, gpu, at)[0]


@pytest.mark.parametrize(
    ("gpus", "size", "start", "bytes_per_us"),
    [
        # 1.3 us + 0.1 a peer at 1.8 GHz, 1.4 hops of 1.5 us; all other GPUs are read at once
        (2, 1 * MIB, 1.4 * 1800 / 1830 + 2.1, 450e3 * 0.6),
        (8, 128 * KIB, 2.0 * 1800 / 1830 + 2.1, 450e3 * 0.6 / 7),
        # beyond 512 KiB four GPUs scatter and gather
        (4, 2 * MIB, 5.3 * 1800 / 1830 + 2.1, 450e3 * 0.6 / 1.5),
        # beyond 256 KiB eight let the switch add up
        (8, 16 * MIB, 6.8 * 1800 / 1830 + 2.1, 450e3 * 0.78 / 1.75),
    ],
)
def test_an_engine_kernel_takes_small_messages(gpus: int, size: float, start: float, bytes_per_us: float) -> None:
    found = time_us("all_reduce", size, gpus, implementation="vllm_all_reduce_sm90")
    assert found == pytest.approx(start + size / bytes_per_us, rel=1e-9)


@pytest.mark.parametrize(
    ("implementation", "gpus", "largest"),
    [
        ("vllm_custom_all_reduce", 4, 8 * MIB),
        ("vllm_all_reduce_sm90", 8, 64 * MIB + 16),
        ("sglang_all_reduce_v2", 8, 16 * MIB + 16),
        ("trtllm_all_reduce", 8, 4 * MIB + 16),
    ],
)
def test_nccl_takes_over_where_the_engine_says_so(implementation: str, gpus: int, largest: float) -> None:
    sizes = np.array([largest - 16, largest, 4 * largest])
    ours, nccl = (time_us("all_reduce", sizes, gpus, implementation=name) for name in (implementation, "nccl"))
    assert ours[0] != pytest.approx(nccl[0], rel=1e-3)
    assert ours[1] >= ours[0]
    assert ours[2] == pytest.approx(nccl[2], rel=1e-12)


def test_over_pcie_two_gpus_use_the_engine_kernel_and_four_nccl() -> None:
    two, four = (time_us("all_reduce", 64 * KIB, n, L40S, "vllm_custom_all_reduce") for n in (2, 4))
    assert two < time_us("all_reduce", 64 * KIB, 2, L40S)
    assert four == time_us("all_reduce", 64 * KIB, 4, L40S)
    assert time_us("all_reduce", 64 * KIB, 2, L40S, "trtllm_all_reduce") == time_us("all_reduce", 64 * KIB, 2, L40S)


@pytest.mark.parametrize("family", ["all_gather", "reduce_scatter"])
def test_a_huge_message_goes_at_the_link_and_the_own_part_beside_it(family: str) -> None:
    slope = np.diff(time_us(family, np.array([4.0, 5.0]) * 2**40, 4))[0] / 2**40
    assert slope == pytest.approx(0.75 / (450e3 * 0.775) + 1 / (4 * 4.0 * 132 * 1830), rel=1e-4)


def test_a_tiny_message_pays_floor_and_hops() -> None:
    found = time_us("all_gather", 1.0, np.array([2.0, 4.0, 8.0]))
    assert found == pytest.approx(4.0 * 1800 / 1830 + np.array([2.0, 4.0, 8.0]) * 0.6 * 1.5, rel=1e-3)


def test_the_switch_adds_up_for_eight_gpus_that_have_one() -> None:
    with_switch, without = (
        time_us("all_reduce", 512 * MIB, 8, {**H100, "link_multicast": multicast}) for multicast in (1.0, 0.0)
    )
    assert with_switch < 0.85 * without
    four = [time_us("all_reduce", 512 * MIB, 4, {**H100, "link_multicast": multicast}) for multicast in (1.0, 0.0)]
    assert four[0] == four[1]


@pytest.mark.parametrize("family", COMMUNICATION)
def test_a_group_beyond_the_node_goes_over_the_network(family: str) -> None:
    size = 256 * MIB
    inside, beyond = time_us(family, size, 8), time_us(family, size, 16)
    assert beyond > 1.3 * inside
    slower = time_us(family, size, 16, {**H100, "network_bytes_per_us": 4.25e3})
    if family in ("all_to_all", "p2p"):
        # each GPU reaches the eight others, or the one, through its own adapter
        far = size * (8 / 16 if family == "all_to_all" else 1.0)
        assert slower - beyond == pytest.approx(far / 4.25e3 - far / 42.5e3, rel=1e-9)
    else:
        # eight rings leave a node through the adapters of its eight GPUs
        share = 2 * 15 / 16 if family == "all_reduce" else 15 / 16
        assert slower == pytest.approx(share * size / (8 * 4.25e3 * 0.775), rel=0.1)


def implementations(family: str) -> list[str]:
    rows = facts("kernel_implementations")
    return sorted(set(rows.filter(pc.equal(rows["family"], family))["implementation"].to_pylist()))


@pytest.mark.parametrize("implementation", implementations("all_reduce"))
@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_a_later_kernel_takes_larger_messages(implementation: str, gpus: int) -> None:
    at = constants("all_reduce", implementation)
    limits = [at[f"{kernel}_below_{gpus}"] for kernel in ("one_shot", "two_shot", "multicast")]
    used = [limit for limit in limits if limit]
    assert used == sorted(set(used))


# half-precision rows of aiconfigurator-core 0.12.0: NCCL 2.29.2 on H100, 2.27.3 on A100 and L40S; engines inside graphs
MEASURED = [
    ("all_reduce", H100, "nccl", 8, 512.0, 15.6),
    ("all_reduce", H100, "nccl", 8, 512 * MIB, 2111.1),
    ("all_reduce", H100, "nccl", 2, 64 * MIB, 254.6),
    ("all_reduce", H100, "vllm_all_reduce_sm90", 8, 64 * KIB, 6.4),
    ("all_reduce", H100, "vllm_all_reduce_sm90", 8, 256 * KIB, 10.8),
    ("all_reduce", H100, "vllm_all_reduce_sm90", 8, 32 * MIB, 177.8),
    ("all_reduce", A100, "vllm_custom_all_reduce", 4, 2 * MIB, 26.0),
    ("all_reduce", A100, "nccl", 8, 128 * MIB, 1169.1),
    ("all_reduce", L40S, "vllm_custom_all_reduce", 2, 1 * MIB, 60.2),
    ("all_reduce", L40S, "nccl", 2, 64 * MIB, 3358.8),
    ("all_gather", H100, "nccl", 4, 128 * MIB, 350.3),
    ("all_gather", A100, "nccl", 8, 16 * MIB, 135.0),
    ("reduce_scatter", H100, "nccl", 8, 1 * MIB, 14.6),
    ("all_to_all", H100, "nccl", 8, 64 * MIB, 221.3),
    ("all_to_all", A100, "nccl", 2, 512.0, 10.5),
]


@pytest.mark.parametrize(("family", "gpu", "implementation", "gpus", "size", "measured_us"), MEASURED)
def test_starting_constants_are_near_what_was_measured(
    family: str, gpu: dict, implementation: str, gpus: int, size: float, measured_us: float
) -> None:
    assert time_us(family, size, gpus, gpu, implementation) == pytest.approx(measured_us, rel=0.3)


def test_a_bridge_joins_two_and_more_gpus_of_a_node_go_over_pcie() -> None:
    bridged = {**H100, "link_max_gpus": 2.0, "link_multicast": 0.0, "peak_link_bytes_per_us": 300e3}
    pcie = {
        **H100,
        "peak_link_bytes_per_us": 64e3,
        "link_latency_us": 2.5,
        "link_over_pcie": 1.0,
        "link_multicast": 0.0,
    }
    for family in COMMUNICATION:
        sizes = np.array([4 * KIB, 1 * MIB, 256 * MIB])
        assert time_us(family, sizes, 4, bridged) == pytest.approx(time_us(family, sizes, 4, pcie), rel=1e-12)
        assert (time_us(family, sizes, 2, bridged) < time_us(family, sizes, 2, pcie)).all()
    # the engine's kernel is for a pair of them
    for name in ("vllm_custom_all_reduce", "nccl"):
        assert time_us("all_reduce", 64 * KIB, 4, bridged, name) == time_us("all_reduce", 64 * KIB, 4, bridged)
    assert time_us("all_reduce", 64 * KIB, 2, bridged, "vllm_custom_all_reduce") < time_us(
        "all_reduce", 64 * KIB, 2, bridged
    )


def test_without_peer_access_nccl_copies_through_the_host() -> None:
    alone = {**L40S, "link_peers": 0.0, "link_latency_us": 5.0}
    for size in (4 * KIB, 64 * KIB, 4 * MIB):
        nccl = time_us("all_reduce", size, 2, alone)
        assert time_us("all_reduce", size, 2, alone, "vllm_custom_all_reduce") == nccl
        assert nccl > 1.4 * time_us("all_reduce", size, 2, L40S)
    slope, with_peers = (
        np.diff(time_us("all_gather", np.array([4.0, 5.0]) * 2**30, 2, gpu))[0] for gpu in (alone, L40S)
    )
    own = 2**30 / (2 * 4.0 * 142 * 2520)
    assert slope - own == pytest.approx(2.0 * (with_peers - own), rel=1e-3)
