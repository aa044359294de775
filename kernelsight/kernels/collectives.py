"""Latency of collectives, alpha-beta models: NCCL's protocols, and the custom all-reduce kernels of serving engines.

``bytes`` is the tensor of the collective: the reduced tensor, the gathered tensor, the tensor before it is scattered,
what one GPU sends (all-to-all), or the message (p2p). Times in microseconds; those of work on the multiprocessors hold
at 1.8 GHz and scale with their clock. Sizes at which one kernel takes over from another are facts of the
implementation; past such a size the time is never below that of the kernel before it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kernelsight.kernels.latency_model import Coefficients, Columns

REFERENCE_CLOCK_PER_US = 1800.0
# rate of links at which the sizes of NCCL's pipeline hold, bytes per microsecond
REFERENCE_BYTES_PER_US = 450e3
# GPUs of a node: where bridges join fewer, a larger group communicates over PCIe
NODE_GPUS = 8.0
# rate of messages through host memory over PCIe's rate: each byte is written there, and read (estimate)
HOST_SHARE = 0.5
# smallest group for which NCCL reduces inside the switch: in its sweeps it does with 8 GPUs, not with 4
SWITCH_REDUCTION_GPUS = 8.0


# wire shares: the least bytes over the busiest link, as a multiple of the tensor, which give a collective's roofline
def share_twice(n: Any) -> Any:
    """Return the wire share of an all-reduce over ``n`` GPUs: a reduce-scatter and an all-gather."""
    return 2.0 * (n - 1.0) / n


def share_once(n: Any) -> Any:
    """Return the wire share of an all-gather, reduce-scatter or all-to-all over ``n`` GPUs."""
    return (n - 1.0) / n


def share_whole(n: Any) -> Any:
    """Return the wire share of a message from one GPU to another: all of it."""
    return 1.0 + 0.0 * n


class Link(NamedTuple):
    """Interconnect of a group of GPUs; arrays, one value a row."""

    joined: Any  # GPUs that the links or PCIe of one node join
    over_pcie: Any  # whether these communicate over PCIe
    peak: Any  # its peak rate, bytes per microsecond
    hop_us: Any  # latency of one hop
    network_us: Any  # time of hops between nodes, 0 within one


def link(xp: Any, call: Columns, gpu: Columns, at: Coefficients) -> Link:
    """Return the interconnect of a group: the GPU's links; PCIe beyond the few GPUs of a bridge; the network beyond."""
    n, joined = call["group_size"], gpu["link_max_gpus"]
    beyond_bridge = (n > joined) & (joined < NODE_GPUS)
    over_pcie = (gpu["link_over_pcie"] > 0.0) | beyond_bridge
    bytes_per_us = xp.where(beyond_bridge, gpu["pcie_bytes_per_us"], gpu["peak_link_bytes_per_us"])
    share = at["pcie_share"] * xp.where(gpu["link_peers"] > 0.0, 1.0, HOST_SHARE)
    joined = xp.where(beyond_bridge, NODE_GPUS, joined)
    return Link(
        joined,
        over_pcie,
        bytes_per_us * xp.where(over_pcie, share, 1.0),
        xp.where(beyond_bridge, gpu["pcie_latency_us"], gpu["link_latency_us"]),
        xp.where(n <= joined, 0.0, 2.0 * at["internode_latency_us"]),
    )


def pace(gpu: Columns) -> Any:
    """Return the time of a clock cycle over that at the reference clock."""
    return REFERENCE_CLOCK_PER_US / gpu["clock_per_us"]


def saturating(size: Any, half: Any) -> Any:
    """Return size / (size + half): a share that rises with the size from 0 to 1, 0.5 at ``half``."""
    return size / (size + half)


def ring(xp: Any, call: Columns, gpu: Columns, at: Coefficients, passes: float) -> tuple[Any, Any]:
    """Return (time, floor) of NCCL's ring, microseconds: the faster of its low-latency and its bulk protocol.

    t = start + hops + min(W/(e_ll B), bulk + growth + W/(e B) + S/(n own)), W = passes (n-1)/n S; ``passes``: 2 for an
    all-reduce, 1 for a gather or scatter. Beyond eight GPUs the hops are those of a tree; beyond a node, rings leave it
    through the network adapters of all of its GPUs.
    """
    n, size = call["group_size"], call["bytes"]
    joined, _, peak, hop_us, network_us = link(xp, call, gpu, at)
    rate = xp.where(n <= joined, peak, xp.minimum(peak, joined * gpu["network_bytes_per_us"]))
    sent = passes * (n - 1.0) / n * size
    steps = 1.0 + passes * xp.minimum(n - 1.0, 7.0 + 2.0 * xp.log2(xp.maximum(n, 8.0) / 8.0))
    woken = at["nccl_ramp_us"] * saturating(size, at["nccl_ramp_bytes"])
    hops_us = steps * at["nccl_hop"] * hop_us
    start = pace(gpu) * (at["nccl_floor_us"] + woken) + hops_us + network_us
    small = start + sent / (rate * at["nccl_low_latency"])
    bulk_us = pace(gpu) * at["nccl_bulk_us"]
    pipeline = saturating(size, at["nccl_growth_bytes"] * rate / REFERENCE_BYTES_PER_US)
    own_copy_us = size / (n * at["own_bytes_per_clock"] * gpu["sm_count"] * gpu["clock_per_us"])
    bulk = (
        start
        + bulk_us
        + pace(gpu) * at["nccl_growth_us"] * pipeline
        + sent / (rate * at["nccl_efficiency"])
        + own_copy_us
    )
    if passes == 2.0:
        in_switch = (gpu["link_multicast"] > 0.0) & (n >= SWITCH_REDUCTION_GPUS) & (n <= gpu["link_max_gpus"])
        switch = start + bulk_us + pace(gpu) * at["switch_us"] + sent / (rate * at["switch_efficiency"])
        bulk = xp.where(in_switch, xp.minimum(bulk, switch), bulk)
    return xp.minimum(small, bulk), pace(gpu) * at["nccl_floor_us"] + hops_us + network_us


def all_reduce(xp: Any, call: Columns, gpu: Columns, at: Coefficients) -> tuple[Any, Any, Any]:
    """Return (latency_us, None, floor_us) of an all-reduce: an engine's kernel for small messages, else NCCL's ring.

    One shot reads all peers, (n-1) S/B; two shots scatter and gather, 2 (n-1)/n S/B (Thakur et al. 2005); multicast
    reduces in the switch. A larger message never takes less time than the largest one of the kernel before.
    """
    n, size = call["group_size"], call["bytes"]
    joined, over_pcie, peak, hop_us, _ = link(xp, call, gpu, at)
    # over PCIe only for few GPUs, and with peer access
    most = xp.where(gpu["link_peers"] > 0.0, at["pcie_gpus"], 0.0)
    usable = n <= xp.where(over_pcie, most, xp.minimum(joined, NODE_GPUS))
    floor = pace(gpu) * (at["kernel_floor_us"] + at["peer_us"] * (n - 1.0)) + at["kernel_hops"] * hop_us
    share = 2.0 * (n - 1.0) / n
    kernels = (  # name, us at 0 bytes, us per byte
        ("multicast", floor + pace(gpu) * at["multicast_us"], share / (peak * at["multicast_efficiency"])),
        ("two_shot", floor + pace(gpu) * at["two_shot_us"] * n / 4.0, share / (peak * at["two_shot_efficiency"])),
        ("one_shot", floor, (n - 1.0) / (peak * at["one_shot_efficiency"])),
    )
    (time, floor_us), outgrown_us = ring(xp, call, gpu, at, 2.0), 0.0
    for name, start, slope in kernels:
        below = xp.where(usable, largest(xp, n, at, name), 0.0)
        time = xp.where(size < below, start + slope * size, time)
        floor_us = xp.where(size < below, start, floor_us)
        outgrown = (below > 0.0) & (size >= below)
        outgrown_us = xp.maximum(outgrown_us, xp.where(outgrown, start + slope * below, 0.0))
    return xp.maximum(time, outgrown_us), None, floor_us


def largest(xp: Any, n: Any, at: Coefficients, kernel: str) -> Any:
    """Return the size below which a kernel is used with ``n`` GPUs, bytes."""
    many = xp.where(n <= 4.0, at[f"{kernel}_below_4"], at[f"{kernel}_below_8"])
    return xp.where(n <= 2.0, at[f"{kernel}_below_2"], many)


def half_ring(xp: Any, call: Columns, gpu: Columns, at: Coefficients) -> tuple[Any, Any, Any]:
    """Return (latency_us, None, floor_us) of an all-gather or reduce-scatter: one pass of NCCL's ring."""
    time_us, floor_us = ring(xp, call, gpu, at, 1.0)
    return time_us, None, floor_us


def exchange(xp: Any, call: Columns, gpu: Columns, at: Coefficients) -> tuple[Any, Any, Any]:
    """Return (latency_us, None, floor_us) of an all-to-all: S/n to every peer at once, over links or the network."""
    n = call["group_size"]
    near = xp.minimum(n, link(xp, call, gpu, at).joined)
    time_us, floor_us = sent_at_once(xp, call, gpu, at, (near - 1.0) / n, (n - near) / n, 1.0 + xp.log2(n))
    return time_us, None, floor_us


def transfer(xp: Any, call: Columns, gpu: Columns, at: Coefficients) -> tuple[Any, Any, Any]:
    """Return (latency_us, None, floor_us) of a point-to-point message: start + hop + S/B."""
    near = xp.where(call["group_size"] <= link(xp, call, gpu, at).joined, 1.0, 0.0)
    time_us, floor_us = sent_at_once(xp, call, gpu, at, near, 1.0 - near, 1.0)
    return time_us, None, floor_us


def sent_at_once(
    xp: Any, call: Columns, gpu: Columns, at: Coefficients, near: Any, far: Any, hops: Any
) -> tuple[Any, Any]:
    """Return (start + hops + terms that saturate with the size + bytes over links and network, start + hops), us.

    ``near``, ``far``: shares of the bytes that go over the node's links and over the network.
    """
    size = call["bytes"]
    _, _, peak, hop_us, network_us = link(xp, call, gpu, at)
    pipeline = saturating(size, at["growth_bytes"] * peak / REFERENCE_BYTES_PER_US)
    on_gpu = at["start_us"] + at["ramp_us"] * saturating(size, at["ramp_bytes"]) + at["growth_us"] * pipeline
    sent = size * (near / (peak * at["exchange_efficiency"]) + far / xp.minimum(peak, gpu["network_bytes_per_us"]))
    hops_us = hops * at["hop"] * hop_us
    return pace(gpu) * on_gpu + hops_us + network_us + sent, pace(gpu) * at["start_us"] + hops_us + network_us
