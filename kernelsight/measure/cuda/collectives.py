"""Prepares NCCL collectives over the GPUs of a machine: launched by one process, one NCCL group per launch."""

from __future__ import annotations

from typing import Any

from kernelsight.measure.cuda.buffers import Prepared
from kernelsight.measure.cuda.gpu import Gpu
from kernelsight.measure.device import CannotMeasure
from kernelsight.measure.suite import Point

BF16_BYTES = 2


class Group:
    """Communicators, streams and buffers of the first ``count`` GPUs; ``size``: bytes of the whole tensor."""

    def __init__(self, gpu: Gpu, nccl: Any, count: int, size: int) -> None:
        cupy = gpu.cupy
        self.nccl, self.gpu, self.size = nccl, gpu, size
        other_devices = [number for number in range(gpu.runtime.getDeviceCount()) if number != gpu.ordinal]
        self.devices = [gpu.ordinal, *other_devices[: count - 1]]
        self.communicators = _communicators(gpu, nccl, self.devices)
        self.streams, self.buffers = [gpu.stream], []
        for rank, device in enumerate(self.devices):
            with cupy.cuda.Device(device):
                if rank:
                    self.streams.append(cupy.cuda.Stream(non_blocking=True))
                self.buffers.append((cupy.zeros(size, cupy.uint8), cupy.zeros(size, cupy.uint8)))
        cupy.cuda.Device(gpu.ordinal).use()

    def launch(self, family: str) -> None:
        """Start one collective on every GPU."""
        self.nccl.groupStart()
        for rank, (communicator, stream, (send, receive)) in enumerate(
            zip(self.communicators, self.streams, self.buffers, strict=True)
        ):
            self._start(family, communicator, send.data.ptr, receive.data.ptr, stream.ptr, rank)
        self.nccl.groupEnd()

    def _start(self, family: str, communicator: Any, send: int, receive: int, stream: int, rank: int) -> None:
        # bindings without bfloat16: fp16 has the same size
        dtype = getattr(self.nccl, "NCCL_BFLOAT16", self.nccl.NCCL_FLOAT16)
        add, count = self.nccl.NCCL_SUM, self.size // BF16_BYTES
        with self.gpu.cupy.cuda.Device(self.devices[rank]):
            if family == "all_reduce":
                communicator.allReduce(send, receive, count, dtype, add, stream)
            elif family == "all_gather":
                communicator.allGather(send, receive, count // len(self.devices), dtype, stream)
            elif family == "all_to_all":
                part, each = count // len(self.devices), self.size // len(self.devices)
                for peer in range(len(self.devices)):
                    communicator.send(send + peer * each, part, dtype, peer, stream)
                    communicator.recv(receive + peer * each, part, dtype, peer, stream)
            else:
                communicator.reduceScatter(send, receive, count // len(self.devices), dtype, add, stream)


def prepare(gpu: Gpu, point: Point) -> Prepared:
    """Prepare a collective over ``gpus`` GPUs; CannotMeasure if there are fewer, or CuPy lacks NCCL."""
    count, size, device_count = point.sizes["gpus"], point.sizes["bytes"], gpu.runtime.getDeviceCount()
    if device_count < count or count < 2:
        raise CannotMeasure(f"it needs {max(count, 2)} GPUs, but this machine has {device_count}")
    if size % (BF16_BYTES * count):
        raise CannotMeasure(f"its bytes are not a multiple of {BF16_BYTES * count}")
    nccl = _nccl()
    group = Group(gpu, nccl, count, size)
    version = nccl_version(group.nccl.get_version())
    # includes the host's launch, unlike a captured graph: a separate implementation
    return Prepared("nccl_eager", ("nccl", version), size, [lambda: group.launch(point.family)], group, captured=False)


def nccl_version(number: int) -> str:
    """Return NCCL's version number as text: until 2.8 one digit per part."""
    if number < 10000:
        return f"{number // 1000}.{number // 100 % 10}.{number % 100}"
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _nccl() -> Any:
    """Return CuPy's NCCL module; CannotMeasure if it is missing or unavailable."""
    try:
        from cupy.cuda import nccl
    except ImportError:
        raise CannotMeasure("CuPy does not find NCCL") from None
    if not nccl.available:
        raise CannotMeasure("CuPy does not find NCCL")
    return nccl


def _communicators(gpu: Gpu, nccl: Any, devices: list[int]) -> Any:
    """Return the communicators of a group of GPUs, kept: creating them takes a second and memory on every GPU."""
    cached = gpu.communicators
    if tuple(devices) not in cached:
        cached[tuple(devices)] = nccl.NcclCommunicator.initAll(devices)
    return cached[tuple(devices)]
