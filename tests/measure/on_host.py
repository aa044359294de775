"""The fake of CuPy over memory of the host, and real PyTorch on it: what libraries are given can be computed with."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import types
from typing import Any

import numpy as np

from kernelsight.measure.cuda.buffers import NUMBER_FORMATS
from kernelsight.measure.cuda.libraries import Bench
from tests.measure import fake_cupy


class HostBlock:
    """Memory of the host in the place of the device's."""

    def __init__(self, size: int) -> None:
        self.bytes = np.zeros(max(size, 16), np.uint8)
        self.size, self.ptr = self.bytes.size, self.bytes.ctypes.data


def install(monkeypatch: Any) -> fake_cupy.State:
    """Put the fake in the place of CuPy, and let attention make its tensors of host memory with the real PyTorch."""
    import torch

    state = fake_cupy.install(monkeypatch)
    cupy = sys.modules["cupy"]
    cupy.cuda.alloc = HostBlock
    cupy.RawModule = lambda **_: types.SimpleNamespace(get_function=lambda name: _fill if name == "fill" else None)
    cupy.ndarray = _array
    monkeypatch.setattr(Bench, "place", "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    nothing = lambda *_, **__: contextlib.nullcontext()  # noqa: E731 - one stand-in for three contexts
    for name in ("device", "stream", "ExternalStream"):
        monkeypatch.setattr(torch.cuda, name, nothing)
    return state


def _array(shape: tuple[int, ...], dtype: Any, at: Any) -> np.ndarray:
    """Return an array over memory: NumPy's has DLPack too."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_uint8 * size).from_address(at.ptr), dtype).reshape(shape)


def _fill(grid: Any, block: Any, words: tuple) -> None:
    """What the kernel `fill` does: numbers of a format, of both signs and around one."""
    address, count, kind, seed = (int(word) for word in words)
    width = next(size for number, size in NUMBER_FORMATS.values() if number == kind)
    random = np.random.default_rng([seed, address % 2**31])
    bits, sign = random.integers(0, 2**7, count), random.integers(0, 2, count)
    low = random.integers(0, 4, count)
    found = {0: (sign << 15) | ((124 + low) << 7) | bits, 2: (sign << 7) | ((4 + low) << 3) | (bits & 7)}[kind]
    written = found.astype({1: np.uint8, 2: np.uint16}[width])
    ctypes.memmove(address, written.ctypes.data, written.nbytes)
