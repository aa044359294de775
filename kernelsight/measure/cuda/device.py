"""Opens the local GPU, with the kernels that can be measured on it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from kernelsight.errors import InvalidInput
from kernelsight.measure.cuda import collectives, copies, gemm, libraries, paged, streaming
from kernelsight.measure.cuda.buffers import Prepared
from kernelsight.measure.cuda.gpu import Gpu
from kernelsight.measure.cuda.streaming import flush_of
from kernelsight.measure.suite import COLLECTIVES, OWN, Point

_STREAMING = ("norm", "activation", "rope", "kv_write", "quantize", "embedding", "softmax", "sampling")
# what prepares a point's kernel where it is not one of an installed library, by kernel family
PREPARE: dict[str, Callable[[Gpu, Point], Prepared]] = {
    "gemm": gemm.product,
    "batched_gemm": gemm.product,
    **dict.fromkeys(_STREAMING, streaming.prepare),
    "launch": streaming.empty,
    "copy": copies.copy,
    "p2p": copies.peer,
    **dict.fromkeys(("prefill_attention", "decode_attention", "mla_decode"), paged.attention),
    "moe": paged.experts,
    **dict.fromkeys(COLLECTIVES, collectives.prepare),
}


def prepare(gpu: Gpu, point: Point) -> Prepared:
    """Prepare the kernel of a point; CannotMeasure if a library, this GPU or its memory does not support it."""
    own = point.implementation in OWN[point.family]
    return (PREPARE[point.family] if own else libraries.prepare)(gpu, point)


def open_gpu(ordinal: int, gpu: str | None) -> Gpu:
    """Return the GPU with this device index; InvalidInput says what is missing if it cannot be used.

    ``gpu``: its catalogue name, None to identify it from the device's properties.
    """
    if importlib.util.find_spec("cupy") is None:
        raise InvalidInput(
            "measuring needs CuPy, which is not installed; install cupy-cuda12x or cupy-cuda13x, matching the GPU's "
            "driver."
        )
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise InvalidInput(
            f"measuring needs an NVIDIA GPU, but CUDA finds none ({error}); run it on the machine with the GPU: "
            "`python -m kernelsight calibrate measure` needs only numpy, pyarrow and CuPy."
        ) from None
    if not 0 <= ordinal < count:
        raise InvalidInput(f"--device {ordinal} does not exist; CUDA finds {count} GPUs, numbered from 0.")
    return Gpu(ordinal, gpu, prepare, flush_of)
