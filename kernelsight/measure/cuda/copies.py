"""Prepares memory copies: within the device, between host and device (pinned or pageable), and to a peer GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelsight.measure.cuda.buffers import Memory, Prepared
from kernelsight.measure.cuda.gpu import Gpu
from kernelsight.measure.device import CannotMeasure
from kernelsight.measure.suite import Point

# limit of a point's host memory: 32 sets of large buffers would not fit
HOST_BYTES = 2**30


def copy(gpu: Gpu, point: Point) -> Prepared:
    """Prepare a copy of ``bytes``; from pageable memory the driver stages it, and the host launches it."""
    size, memory = point.sizes["bytes"], Memory(gpu)
    _, _, path = point.implementation.partition("_")  # device, or direction and memory, such as h2d_pinned
    sets, most = [], gpu.copies_of(2 * size, point.cache)
    if path != "device":
        most = min(most, max(HOST_BYTES // size, 1))
    for _ in range(most):
        device = memory.filled("int8", size)
        if path == "device":
            sets.append(_copying(gpu, memory.empty(size), device, size, gpu.runtime.memcpyDeviceToDevice))
            continue
        direction, _, storage = path.partition("_")
        host = _host(gpu, memory, size, storage)
        buffers = (device, host) if direction == "h2d" else (host, device)
        name = "memcpyHostToDevice" if direction == "h2d" else "memcpyDeviceToHost"
        sets.append(_copying(gpu, *buffers, size, getattr(gpu.runtime, name)))
    moved = 2 * size if path == "device" else size
    return Prepared(point.implementation, _engine(gpu), moved, sets, memory, captured=not path.endswith("pageable"))


def peer(gpu: Gpu, point: Point) -> Prepared:
    """Prepare a copy of ``bytes`` to another GPU of this machine; CannotMeasure if there is none within reach."""
    size, runtime = point.sizes["bytes"], gpu.runtime
    other_devices = [number for number in range(runtime.getDeviceCount()) if number != gpu.ordinal]
    if point.sizes["gpus"] != 2:
        raise CannotMeasure("a peer copy is between two GPUs; gpus must be 2")
    if not other_devices:
        raise CannotMeasure("a peer copy needs two GPUs, but this machine has one")
    if not runtime.deviceCanAccessPeer(gpu.ordinal, other_devices[0]):
        raise CannotMeasure("the GPUs cannot access each other's memory")
    _enable_peer_access(gpu, other_devices[0])
    memory = Memory(gpu)
    source = memory.filled("int8", size)
    with gpu.cupy.cuda.Device(other_devices[0]):
        target = gpu.cupy.cuda.alloc(size)
        memory.held.append(target)
    arguments = (target.ptr, other_devices[0], source, gpu.ordinal, size, gpu.stream.ptr)
    launch = lambda: runtime.memcpyPeerAsync(*arguments)  # noqa: E731 - one call with its arguments bound
    return Prepared(point.implementation, _engine(gpu), size, [launch], memory)


def _enable_peer_access(gpu: Gpu, peer_device: int) -> None:
    """Enable peer access: without it the driver stages the copy in host memory."""
    if peer_device not in gpu.reached:
        gpu.runtime.deviceEnablePeerAccess(peer_device)
        gpu.reached.add(peer_device)


def _copying(gpu: Gpu, to: int, source: int, size: int, direction: int) -> Any:
    return lambda: gpu.runtime.memcpyAsync(to, source, size, direction, gpu.stream.ptr)


def _host(gpu: Gpu, memory: Memory, size: int, storage: str) -> int:
    """Return the address of ``size`` bytes of host memory, pinned or pageable."""
    if storage == "pinned":
        block = gpu.cupy.cuda.alloc_pinned_memory(size)
        memory.held.append(block)
        return block.ptr
    array = np.ones(size, dtype=np.uint8)
    memory.held.append(array)
    return array.ctypes.data


def _engine(gpu: Gpu) -> tuple[str, str]:
    return "cuda", gpu.versions()["cuda"]
