"""Prepared kernels and their device memory: sets of buffers, filled with values that draw realistic power."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernelsight.files.own import own_text
from kernelsight.measure.cuda.gpu import Gpu
from kernelsight.measure.device import CannotMeasure

SOURCE, ATTENTION = (Path(__file__).resolve().parent / name for name in ("streaming.cu", "attention.cu"))
# number formats of the CUDA kernel `fill`: its number for it, and bytes per element
NUMBER_FORMATS = {"bf16": (0, 2), "fp16": (1, 2), "fp8": (2, 1), "int8": (3, 1), "fp32": (4, 4)}
FILL_BLOCKS, FILL_THREADS = 2048, 256


class Prepared:
    """A prepared kernel: ``launches``, one function per set of buffers, and its columns of a row.

    ``captured``: whether a CUDA graph can capture its launches; if not, the host launches them individually.
    """

    def __init__(
        self,
        implementation: str,
        engine: tuple[str, str],
        moved: int,
        launches: Sequence[Callable[[], Any]],
        held: Any = None,
        captured: bool = True,
    ) -> None:
        self.implementation, (self.engine, self.engine_version) = implementation, engine
        self.bytes, self.copies, self.captured = moved, len(launches), captured
        self._launches, self._held = list(launches), held

    def launch(self, copy: int) -> None:
        self._launches[copy]()

    def close(self) -> None:
        self._launches, self._held = [], None


class Memory:
    """Buffers of one point on a GPU, freed with this object."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.held = gpu, []

    def empty(self, size: int) -> int:
        """Return the address of ``size`` bytes, aligned to 256."""
        block = self.gpu.cupy.cuda.alloc(max(size, 16))
        self.held.append(block)
        return block.ptr

    def filled(self, number_format: str, count: int, seed: int = 1) -> int:
        """Return the address of ``count`` numbers of a format, of both signs and magnitudes around 1."""
        number, width = NUMBER_FORMATS[number_format]
        address = self.empty(count * width)
        numpy = self.gpu.cupy
        arguments = (_u64(numpy, address), _u64(numpy, count), _i32(numpy, number), numpy.uint32(seed))
        function(self.gpu, "fill")((FILL_BLOCKS,), (FILL_THREADS,), arguments)
        return address

    def below(self, count: int, bound: int, seed: int = 1) -> int:
        """Return the address of ``count`` int64 below ``bound``."""
        address, numpy = self.empty(8 * count), self.gpu.cupy
        arguments = (_u64(numpy, address), _u64(numpy, count), _u64(numpy, bound), numpy.uint32(seed))
        function(self.gpu, "fill_below")((FILL_BLOCKS,), (FILL_THREADS,), arguments)
        return address

    def slots(self, count: int, blocks: int) -> int:
        """Return the address of ``count`` different int64 slots of a cache of blocks of 16."""
        address, numpy = self.empty(8 * count), self.gpu.cupy
        arguments = (_u64(numpy, address), _u64(numpy, count), _u64(numpy, blocks))
        function(self.gpu, "fill_slots")((FILL_BLOCKS,), (FILL_THREADS,), arguments)
        return address

    def pages(self, count: int) -> int:
        """Return the address of ``count`` different int32 pages of a cache of as many, scattered."""
        address, numpy = self.empty(4 * count), self.gpu.cupy
        step = next(prime for prime in (7919, 7907) if count % prime)
        arguments = (_u64(numpy, address), _u64(numpy, count), numpy.uint32(step))
        function(self.gpu, "fill_pages")((FILL_BLOCKS,), (FILL_THREADS,), arguments)
        return address

    def starts(self, experts: int, rows: int) -> int:
        """Return the address of int32 rows at which those of each expert start, the last of them ``rows``."""
        address = self.empty(4 * (experts + 1))
        launcher(self.gpu, "fill_starts", 1, FILL_THREADS, (address,), experts, rows)()
        return address


def program() -> str:
    """Return the source of all kernels: attention.cu uses functions of streaming.cu."""
    return own_text(SOURCE) + own_text(ATTENTION)


def function(gpu: Gpu, name: str) -> Any:
    """Return a kernel of the program, compiled once per GPU."""
    module = getattr(gpu, "streaming_module", None)
    if module is None:
        module = gpu.cupy.RawModule(code=program(), options=("--std=c++17",), backend="nvrtc")
        gpu.streaming_module = module
    return module.get_function(name)


def launcher(
    gpu: Gpu, name: str, blocks: int, threads: int, addresses: Sequence[int], *values: Any
) -> Callable[[], None]:
    """Return a launch of a kernel of streaming.cu over addresses, then ints and floats (32 bits each)."""
    if blocks >= 2**31:
        raise CannotMeasure("it has more rows than the largest grid of thread blocks")
    numpy, kernel = gpu.cupy, function(gpu, name)
    arguments = tuple(_u64(numpy, address) for address in addresses)
    arguments += tuple(numpy.float32(value) if isinstance(value, float) else numpy.int32(value) for value in values)

    def launch() -> None:
        kernel((blocks,), (threads,), arguments)

    return launch


def _u64(numpy: Any, value: int) -> Any:
    return numpy.uint64(value)


def _i32(numpy: Any, value: int) -> Any:
    return numpy.int32(value)
