"""Prepares kernels of installed libraries, the rows of library_kernels.csv; tensors are passed by DLPack.

CuPy has no bfloat16 and no 8-bit floats: integer arrays are passed, and viewed as these types by PyTorch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

from kernelsight.measure.cuda.buffers import Memory, Prepared
from kernelsight.measure.cuda.gpu import Gpu
from kernelsight.measure.device import CannotMeasure
from kernelsight.measure.library_kernels import LIBRARY_KERNELS, LibraryKernel
from kernelsight.measure.suite import Point

WORKSPACE_BYTES = 128 * 2**20


class Bench:
    """What the builder of a launch is given: the device, memory, modules, and the point with its sizes.

    A builder makes its tensors here. ``moved``: bytes of one launch, if not all of its tensors; ``implementation``: its
    name in a row, if not the suite's; ``kept``: what all sets of buffers share. ``place``: PyTorch's name of the
    tensors' device.
    """

    place = "cuda"

    def __init__(self, gpu: Gpu, torch: Any, library: Any, point: Point, kernel: LibraryKernel) -> None:
        self.gpu, self.torch, self.library, self.kernel, self.memory = gpu, torch, library, kernel, Memory(gpu)
        self.point, self.sizes, self.implementation = point, point.sizes, point.implementation
        self.moved: int | None = None
        self.filled_bytes = 0
        self.kept: dict[str, Any] = {}

    @property
    def eight_bit(self) -> tuple[bool, bool]:
        """Whether the arithmetic and what is stored (a cache, a weight) have 8 bits."""
        math_format, _, stored = self.point.dtype.partition("/")
        return math_format.startswith("fp8"), (stored or math_format).startswith("fp8")

    @cached_property
    def workspace(self) -> Any:
        """One scratch buffer for all launches, which run in order on one stream."""
        return self.torch.zeros(WORKSPACE_BYTES, dtype=self.torch.uint8, device=self.place)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what all sets of buffers share, made for the first."""
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    def tensor(self, *shape: int, eight_bit: bool = False) -> Any:
        """Return a tensor of bfloat16 or E4M3 in CuPy's memory."""
        cupy, torch, count = self.gpu.cupy, self.torch, math.prod(shape)
        number_format, width, cupy_type, torch_type = ("fp8", 1, cupy.uint8, "float8_e4m3fn")
        if not eight_bit:
            number_format, width, cupy_type, torch_type = ("bf16", 2, cupy.int16, "bfloat16")
        address = self.memory.filled(number_format, count)
        self.filled_bytes += width * count
        block = cupy.cuda.UnownedMemory(address, width * count, self.memory, self.gpu.ordinal)
        array = cupy.ndarray(shape, cupy_type, cupy.cuda.MemoryPointer(block, 0))
        return torch.from_dlpack(array).view(getattr(torch, torch_type))

    def empty(self, *shape: int) -> Any:
        """Return a tensor for results: bfloat16."""
        self.filled_bytes += 2 * math.prod(shape)
        return self.torch.empty(shape, dtype=self.torch.bfloat16, device=self.place)

    def full(self, value: float, dtype: str, *shape: int) -> Any:
        """Return a tensor of one value."""
        return self.torch.full(shape, value, dtype=getattr(self.torch, dtype), device=self.place)

    def scattered(self, count: int) -> Any:
        """Return the numbers of all blocks of a cache in random order, as in a server: (count,) int32."""
        return self.torch.randperm(count, device=self.place).to(self.torch.int32)

    def starts(self, sequences: int, length: int) -> Any:
        """Return the start of each sequence of one length, and the end: (sequences + 1,) int32."""
        end, int32 = (sequences + 1) * length, self.torch.int32
        return self.torch.arange(0, end, length, dtype=int32, device=self.place)


def prepare(gpu: Gpu, point: Point) -> Prepared:
    """Prepare a kernel of a library; CannotMeasure if it is not installed or does not support the point or this GPU.

    RuntimeError: any other error of the library, with its name.
    """
    name, family = point.implementation, point.family
    kernel = LIBRARY_KERNELS.get((family, name))
    if kernel is None:
        raise CannotMeasure(f"{name} is not used for {family}")
    if point.dtype not in kernel.formats:
        raise CannotMeasure(f"{name} does not take {point.dtype}, but {' and '.join(kernel.formats)}")
    capability = float(f"{gpu.properties['major']}.{gpu.properties['minor']}")
    if not kernel.runs_on(capability):
        raise CannotMeasure(f"{name} runs on compute capabilities {kernel.least} to {kernel.most}, not {capability}")
    torch, module = imported("torch", "torch"), imported(kernel.module, kernel.distribution)
    bench, build = Bench(gpu, torch, module, point, kernel), builder(kernel)

    def every_set(stream: Any) -> list[Callable[[], Any]]:
        launches = [on_stream(torch, stream, build(bench))]
        size = bench.filled_bytes
        copies = gpu.copies_of(size, point.cache, built=1)
        launches += [on_stream(torch, stream, build(bench)) for _ in range(copies - 1)]
        bench.filled_bytes = size
        return launches

    launches = called(bench, every_set)
    engine = (kernel.distribution.replace("-", "_"), importlib.metadata.version(kernel.distribution))
    moved = bench.filled_bytes if bench.moved is None else bench.moved
    return Prepared(bench.implementation, engine, moved, launches, bench)


def builder(kernel: LibraryKernel) -> Callable[[Bench], Callable[[], Any]]:
    """Return the function that builds a launch of a kernel."""
    module, _, name = kernel.build.partition(".")
    return getattr(importlib.import_module(f"kernelsight.measure.cuda.{module}"), name)


def called(bench: Bench, build: Callable[[Any], list[Callable[[], Any]]]) -> list[Callable[[], Any]]:
    """Return what ``build`` makes of a library's calls on CuPy's stream; RuntimeError: an error of the library."""
    gpu, torch = bench.gpu, bench.torch
    # PyTorch may load its own CUDA runtime, which does not see the device set in CuPy's
    stream = torch.cuda.ExternalStream(gpu.stream.ptr, device=gpu.ordinal)
    try:
        with torch.cuda.device(gpu.ordinal), torch.cuda.stream(stream), torch.inference_mode():
            return build(stream)
    except (CannotMeasure, MemoryError, gpu.runtime.CUDARuntimeError):
        raise
    except Exception as error:  # errors for unsupported shapes differ between versions of a library
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RuntimeError(f"{bench.kernel.distribution} rejects it: {reason}") from error


def on_stream(torch: Any, stream: Any, run: Callable[[], Any]) -> Callable[[], Any]:
    """Return a launch on CuPy's stream, which a graph captures."""

    def launch() -> Any:
        with torch.cuda.stream(stream), torch.inference_mode():
            return run()

    return launch


def imported(module: str, distribution: str) -> Any:
    """Return a module of a library; CannotMeasure if it is not installed, or cannot be imported."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # an inconsistent installation may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            raise CannotMeasure(f"{distribution} is not installed") from None
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CannotMeasure(f"{distribution} is installed, but cannot be imported: {reason}") from error
