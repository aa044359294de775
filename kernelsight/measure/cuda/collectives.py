"""NCCL collectives over the GPUs of this machine, from one process: launched by the host, one group a launch."""

from __future__ import annotations

from typing import Any

from kernelsight.measure.cuda.buffers import Prepared
from kernelsight.measure.cuda.gpu import Gpu
from kernelsight.measure.device import CannotMeasure
from kernelsight.measure.suite import Point

BF16_BYTES = 2


class Group:
    """Communicators, streams and buffers of the first ``count`` GPUs; ``bytes`` is the whole tensor."""

    def __init__(self, gpu: Gpu, nccl: Any, count: int, size: int) -> None:
        cupy = gpu.cupy
        self.nccl, self.gpu, self.size = nccl, gpu, size
        others = [number for number in range(gpu.runtime.getDeviceCount()) if number != gpu.ordinal]
        self.devices = [gpu.ordinal, *others[: count - 1]]
        self.communicators = _communicators(gpu, nccl, self.devices)
        self.streams, self.buffers = [gpu.stream], []
        for place, device in enumerate(self.devices):
            with cupy.cuda.Device(device):
                if place:
                    self.streams.append(cupy.cuda.Stream(non_blocking=True))
                self.buffers.append((cupy.zeros(size, cupy.uint8), cupy.zeros(size, cupy.uint8)))
        cupy.cuda.Device(gpu.ordinal).use()

    def launch(self, family: str) -> None:
        """Start one collective on every GPU."""
        self.nccl.groupStart()
        for place, (one, stream, (given, got)) in enumerate(
            zip(self.communicators, self.streams, self.buffers, strict=True)
        ):
            self._start(family, one, given.data.ptr, got.data.ptr, stream.ptr, place)
        self.nccl.groupEnd()

    def _start(self, family: str, one: Any, given: int, got: int, stream: int, place: int) -> None:
        # bindings that do not know bfloat16 move as many bytes as fp16
        kind = getattr(self.nccl, "NCCL_BFLOAT16", self.nccl.NCCL_FLOAT16)
        add, count = self.nccl.NCCL_SUM, self.size // BF16_BYTES
        with self.gpu.cupy.cuda.Device(self.devices[place]):
            if family == "all_reduce":
                one.allReduce(given, got, count, kind, add, stream)
            elif family == "all_gather":
                one.allGather(given, got, count // len(self.devices), kind, stream)
            else:
                one.reduceScatter(given, got, count // len(self.devices), kind, add, stream)


def prepare(gpu: Gpu, point: Point) -> Prepared:
    """Return a collective over ``gpus`` GPUs; CannotMeasure where there are fewer, or CuPy lacks NCCL."""
    count, size, here = point.sizes["gpus"], point.sizes["bytes"], gpu.runtime.getDeviceCount()
    if here < count or count < 2:
        raise CannotMeasure(f"it needs {max(count, 2)} GPUs, and there are {here} here")
    if size % (BF16_BYTES * count):
        raise CannotMeasure(f"its bytes are no multiple of {BF16_BYTES * count}")
    nccl = _nccl()
    group = Group(gpu, nccl, count, size)
    version = nccl_version(group.nccl.get_version())
    # the host's launch is in it, unlike in a captured graph: an implementation of its own
    return Prepared("nccl_eager", ("nccl", version), size, [lambda: group.launch(point.family)], group, captured=False)


def nccl_version(number: int) -> str:
    """Return NCCL's number of its version as words: until 2.8 one digit for each part.

    >>> nccl_version(23007), nccl_version(2708)
    ('2.30.7', '2.7.8')
    """
    if number < 10000:
        return f"{number // 1000}.{number // 100 % 10}.{number % 100}"
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _nccl() -> Any:
    """CuPy binds NCCL where its library is found; else the module is not there, or says so."""
    try:
        from cupy.cuda import nccl
    except ImportError:
        raise CannotMeasure("CuPy finds no NCCL here") from None
    if not nccl.available:
        raise CannotMeasure("CuPy finds no NCCL here")
    return nccl


def _communicators(gpu: Gpu, nccl: Any, devices: list[int]) -> Any:
    """One set for each group of GPUs: making one takes a second and memory on every GPU."""
    kept = gpu.communicators
    if tuple(devices) not in kept:
        kept[tuple(devices)] = nccl.NcclCommunicator.initAll(devices)
    return kept[tuple(devices)]
