"""CUDA source through NVRTC of the package nvidia-cuda-nvrtc: no GPU, no driver and no CuPy is needed to compile."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path


def library(name: str = "libnvrtc.so") -> Path | None:
    """Return a library of CUDA of an installed package, None where there is none."""
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(place).glob(f"*/lib/{name}.*")):
            if "builtins" not in path.name:
                return path
    return None


def assembled(source: str, architecture: str, path: Path) -> tuple[str, str, dict[str, tuple[int, int]]]:
    """Return (code, log) of :func:`compiled`, and of each kernel the registers of a thread and the bytes it spills."""
    code, log = compiled(source, architecture, path, b"--ptxas-options=-v")
    kernels = log.split("Compiling entry function '")[1:]
    told = (re.search(r"^(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers", one, re.S) for one in kernels)
    return code, log, {one[1]: (int(one[3]), int(one[2])) for one in told if one}


def compiled(source: str, architecture: str, path: Path, *more: bytes) -> tuple[str, str]:
    """Return (PTX, log) of a source for an architecture such as compute_90; PTX is empty where it does not compile.

    For one such as sm_90 its PTX is assembled too: the first 4 letters of the machine code, as text.
    """
    # NVRTC opens them by their name alone, which is found where they are loaded already
    for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
    nvrtc = ctypes.CDLL(str(path))
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"a.cu", 0, None, None) == 0
    words = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17", *more]
    failed = nvrtc.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
    log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
    kind = "CUBIN" if architecture.startswith("sm_") else "PTX"
    size_of, read = (getattr(nvrtc, f"nvrtcGet{kind}{size}") for size in ("Size", ""))
    ptx = "" if failed else _text(size_of, read, program, 4 if kind == "CUBIN" else None)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return ptx, log


def _text(size_of: object, read: object, program: ctypes.c_void_p, first: int | None = None) -> str:
    size = ctypes.c_size_t()
    assert size_of(program, ctypes.byref(size)) == 0
    text = ctypes.create_string_buffer(size.value)
    assert read(program, text) == 0
    return text.value.decode() if first is None else text.raw[:first].decode()
