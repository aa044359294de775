"""Opening the running GPU, with the kernels that can be measured on it."""

from __future__ import annotations

import importlib.util

from kernelsight.errors import InvalidInput
from kernelsight.measure.cuda.gpu import Gpu
from kernelsight.measure.cuda.kernels import PREPARE
from kernelsight.measure.cuda.streaming import flush_of


def open_gpu(ordinal: int, gpu: str | None) -> Gpu:
    """Return the GPU of this number; InvalidInput tells what is missing where it cannot be measured on.

    ``gpu``: the catalogue's name of it, None to find it from what the device tells.
    """
    if importlib.util.find_spec("cupy") is None:
        raise InvalidInput(
            "measuring needs CuPy, which is not installed; install cupy-cuda12x or cupy-cuda13x, as the "
            "driver of the GPU asks."
        )
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise InvalidInput(
            f"measuring needs an NVIDIA GPU, and CUDA finds none here ({error}); run it where the GPU "
            "is: `python -m kernelsight.measure` needs numpy, pyarrow and cupy alone."
        ) from None
    if not 0 <= ordinal < count:
        raise InvalidInput(f"--device {ordinal} does not exist: CUDA finds {count} GPUs, numbered from 0.")
    return Gpu(ordinal, gpu, PREPARE, flush_of)
