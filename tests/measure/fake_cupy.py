"""As much of CuPy as the package uses, without a GPU: addresses instead of memory, and a list of what was launched.

Launches are held against the parameters that streaming.cu declares: their number, and the bytes of each.
"""

from __future__ import annotations

import re
import sys
import types
from typing import Any, ClassVar

import numpy as np

from kernelsight.measure.cuda.buffers import program

WIDTHS = {"int": 4, "u32": 4, "float": 4, "u64": 8}
LAUNCH_US, MEMORY_BYTES = 3.0, 8 * 2**30


def signatures() -> dict[str, list[int]]:
    """Return of each kernel of the program the bytes of its parameters."""
    found = re.findall(r'extern "C" __global__ void (\w+)\(([^)]*)\)', program())
    return {
        name: [8 if "*" in one else WIDTHS[one.split()[-2]] for one in words.split(",") if one.strip()]
        for name, words in found
    }


class CUDARuntimeError(RuntimeError):
    """What CuPy raises for an error of CUDA."""


class OutOfMemoryError(MemoryError):
    """What CuPy's pool raises."""


class CompileException(Exception):
    """What NVRTC's refusal becomes."""


class State:
    """What the fake device did: kernels launched by name, copies, captures under way, and when it should break."""

    def __init__(self) -> None:
        self.launched: list[tuple[str, tuple, tuple]] = []
        self.copies: list[tuple] = []
        self.clock_us, self.allocated, self.next = 0.0, 0, 1 << 20
        self.capturing: int | None = None
        self.error: str | None = None
        self.lost = False
        self.reached: set[int] = set()

    def reach(self, other: int) -> None:
        """Enable access to a peer: CUDA refuses it a second time."""
        if other in self.reached:
            raise CUDARuntimeError("cudaErrorPeerAccessAlreadyEnabled")
        self.reached.add(other)

    def count(self) -> None:
        """One launch: it joins the graph under capture, or takes its time."""
        if self.error:
            raise CUDARuntimeError(self.error)
        if self.capturing is None:
            self.clock_us += LAUNCH_US
        else:
            self.capturing += 1


def install(monkeypatch: Any, gpus: int = 1) -> State:
    """Put the fake in the place of CuPy, and return what it will do."""
    state = State()
    cupy, cuda, runtime = types.ModuleType("cupy"), types.ModuleType("cupy.cuda"), types.SimpleNamespace()
    cupy.cuda, cupy.__version__, cupy.__spec__ = cuda, "14.0", types.SimpleNamespace(name="cupy")
    for name in ("uint64", "uint32", "int32", "float32", "uint8", "int16"):
        setattr(cupy, name, getattr(np, name))
    cupy.get_default_memory_pool = lambda: types.SimpleNamespace(free_all_blocks=lambda: None)
    cupy.RawModule = lambda code, options, backend: _Module(state)
    cuda.Stream, cuda.Event, cuda.Device = _stream(state), _event(state), _Device
    cuda.get_elapsed_time = lambda begin, end: (end.at_us - begin.at_us) / 1e3
    cuda.alloc = lambda size: _Block(state, size)
    cuda.alloc_pinned_memory = lambda size: _Block(state, size)
    cuda.UnownedMemory = lambda ptr, size, owner, device: types.SimpleNamespace(ptr=ptr, size=size)
    cuda.MemoryPointer = lambda memory, offset: types.SimpleNamespace(mem=memory, ptr=memory.ptr + offset)
    cupy.ndarray = lambda shape, dtype, at: _Array(state, shape, dtype, at)
    cupy.zeros = lambda size, dtype: _Array(state, (size,), dtype, _Block(state, size))
    cuda.memory = types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
    cuda.compiler = types.SimpleNamespace(CompileException=CompileException)
    cuda.runtime = runtime
    runtime.CUDARuntimeError = CUDARuntimeError
    runtime.getDeviceCount = lambda: gpus
    runtime.memcpyHostToDevice, runtime.memcpyDeviceToHost, runtime.memcpyDeviceToDevice = 1, 2, 3
    runtime.memGetInfo = lambda: (MEMORY_BYTES, MEMORY_BYTES)
    runtime.runtimeGetVersion = runtime.driverGetVersion = lambda: 12080
    runtime.deviceCanAccessPeer = lambda one, other: 1
    runtime.deviceEnablePeerAccess = state.reach
    runtime.memcpy = lambda to, source, size, kind: state.copies.append((to, size, kind))
    runtime.memcpyAsync = lambda *words: (state.copies.append(words), state.count())
    runtime.memcpyPeerAsync = lambda *words: (state.copies.append(words), state.count())
    runtime.deviceSynchronize = lambda: _synchronise(state)
    runtime.getDeviceProperties = lambda ordinal: {
        "name": b"NVIDIA H200", "major": 9, "minor": 0, "multiProcessorCount": 132, "l2CacheSize": 62914560,
        "totalGlobalMem": 150754820096, "uuid": b"\x01" * 16,
    }  # fmt: skip
    for name, module in (("cupy", cupy), ("cupy.cuda", cuda)):
        monkeypatch.setitem(sys.modules, name, module)
    return state


def _synchronise(state: State) -> None:
    if state.lost:
        raise CUDARuntimeError("cudaErrorIllegalAddress")


class _Block:
    def __init__(self, state: State, size: int) -> None:
        state.allocated += size
        if state.allocated > MEMORY_BYTES:
            raise OutOfMemoryError
        self.state, self.size, self.ptr = state, size, state.next
        state.next += -(-size // 256) * 256

    def __del__(self) -> None:
        self.state.allocated -= self.size


class _Module:
    def __init__(self, state: State) -> None:
        self.state, self.declared = state, signatures()

    def get_function(self, name: str) -> Any:
        widths = self.declared[name]

        def launch(grid: tuple, block: tuple, words: tuple) -> None:
            assert [word.nbytes for word in words] == widths, name
            assert 1 <= block[0] <= 1024 and block[0] % 32 == 0 and 1 <= grid[0] < 2**31, (name, grid, block)
            self.state.launched.append((name, grid, words))
            self.state.count()

        return launch


class _Array:
    """An array of CuPy: a shape and a type over memory that has to hold it."""

    def __init__(self, state: State, shape: tuple[int, ...], dtype: Any, at: Any) -> None:
        self.shape, self.dtype, self.data = shape, np.dtype(dtype), at
        held = at.mem.size if hasattr(at, "mem") else at.size
        assert held >= self.dtype.itemsize * int(np.prod(shape)), "an array beyond its memory"


class _Device:
    """A GPU by its number: used, or entered for a while."""

    pci_bus_id = "0000:00:00.0"
    attributes: ClassVar = {"ClockRate": 1980000, "MemoryClockRate": 3201000, "GlobalMemoryBusWidth": 6144}

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal

    def use(self) -> None: ...

    def __enter__(self) -> _Device:
        return self

    def __exit__(self, *_: object) -> None: ...


def _stream(state: State) -> type:
    class Stream:
        made = 0

        def __init__(self, non_blocking: bool) -> None:
            self.ptr = 7 + Stream.made
            Stream.made += 1

        def __enter__(self) -> Stream:
            return self

        def __exit__(self, *_: object) -> None: ...

        def begin_capture(self) -> None:
            state.capturing = 0

        def end_capture(self) -> Any:
            launches, state.capturing = state.capturing, None

            def launch(stream: Any) -> None:
                state.clock_us += 5.0 + LAUNCH_US * launches

            return types.SimpleNamespace(upload=lambda stream: None, launch=launch)

        def synchronize(self) -> None:
            _synchronise(state)

    return Stream


def _event(state: State) -> type:
    class Event:
        at_us = 0.0

        def record(self, stream: Any) -> None:
            self.at_us = state.clock_us

    return Event
