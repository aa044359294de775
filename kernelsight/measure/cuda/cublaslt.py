"""cuBLASLt bindings by ctypes: CuPy has no 8-bit products. Names, numbers and layouts are those of cublasLt.h."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from kernelsight.measure.device import CannotMeasure

COMPUTE_32F, COMPUTE_32I = 68, 72
R_32F, R_16F, R_8I, R_32I, R_16BF, R_8F_E4M3 = 0, 2, 3, 10, 14, 28
TRANSA, TRANSB, A_SCALE, B_SCALE, FAST_ACCUMULATION = 3, 4, 17, 18, 25
BATCH_COUNT, BATCH_STRIDE = 5, 6
WORKSPACE = 1
TRANSPOSED, PLAIN = 1, 0
WORKSPACE_BYTES = 32 * 2**20


class Format(NamedTuple):
    """CUDA's type numbers of a product: operands, result, arithmetic and scale, and bytes per operand and result."""

    operand: int
    result: int
    compute: int
    scale: int
    operand_bytes: int
    result_bytes: int


FORMATS = {
    "bf16": Format(R_16BF, R_16BF, COMPUTE_32F, R_32F, 2, 2),
    "fp16": Format(R_16F, R_16F, COMPUTE_32F, R_32F, 2, 2),
    "fp8": Format(R_8F_E4M3, R_16BF, COMPUTE_32F, R_32F, 1, 2),
    "int8": Format(R_8I, R_32I, COMPUTE_32I, R_32I, 1, 4),
}


class _Algorithm(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint64 * 8),)


class _Heuristic(ctypes.Structure):
    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class CublasLt:
    """The loaded library and its handle."""

    def __init__(self) -> None:
        self.library = _loaded()
        self.library.cublasLtGetVersion.restype = ctypes.c_size_t
        self.handle = ctypes.c_void_p()
        self.call("cublasLtCreate", ctypes.byref(self.handle))

    def version(self) -> str:
        """Return the library's version."""
        number = self.library.cublasLtGetVersion()
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; CannotMeasure if it returns an error."""
        status = getattr(self.library, name)(*arguments)
        if status:
            raise CannotMeasure(f"cuBLASLt error: {name} returns status {status}")

    def set(self, setter: str, target: ctypes.c_void_p, attribute: int, value: Any) -> None:
        """Set an attribute of a descriptor, a layout or a preference."""
        self.call(setter, target, ctypes.c_int(attribute), ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))


class Plan:
    """A chosen algorithm for row-major (m, k) x (n, k) transposed: weights in the layout of a layer."""

    def __init__(self, library: CublasLt, name: str, m: int, n: int, k: int, batch: int, unit_scale: int) -> None:
        """``unit_scale``: address of a float 1.0 on the device, the scale of 8-bit floating operands."""
        self.lt, form = library, FORMATS[name]
        self.alpha = (ctypes.c_int32 if form.scale == R_32I else ctypes.c_float)(1)
        self.beta = type(self.alpha)(0)
        self.description, self.preference = ctypes.c_void_p(), ctypes.c_void_p()
        library.call(
            "cublasLtMatmulDescCreate",
            ctypes.byref(self.description),
            ctypes.c_int(form.compute),
            ctypes.c_int(form.scale),
        )
        # in cuBLASLt's column-major order the result is (n, m): transposed weights times activations
        self._describe(TRANSA, ctypes.c_int32(TRANSPOSED))
        self._describe(TRANSB, ctypes.c_int32(PLAIN))
        if name == "fp8":
            self._describe(A_SCALE, ctypes.c_void_p(unit_scale))
            self._describe(B_SCALE, ctypes.c_void_p(unit_scale))
            self._describe(FAST_ACCUMULATION, ctypes.c_int8(1))
        self.weight = self._layout(form.operand, k, n, batch)
        self.activation = self._layout(form.operand, k, m, batch)
        self.result = self._layout(form.result, n, m, batch)
        library.call("cublasLtMatmulPreferenceCreate", ctypes.byref(self.preference))
        library.set(
            "cublasLtMatmulPreferenceSetAttribute", self.preference, WORKSPACE, ctypes.c_size_t(WORKSPACE_BYTES)
        )
        self.chosen = self._choose()

    def run(self, weight: int, activation: int, result: int, workspace: int, stream: int) -> None:
        """Enqueue one product on a stream; all arguments are addresses on the device."""
        self.lt.call(
            "cublasLtMatmul",
            self.lt.handle,
            self.description,
            ctypes.byref(self.alpha),
            ctypes.c_void_p(weight),
            self.weight,
            ctypes.c_void_p(activation),
            self.activation,
            ctypes.byref(self.beta),
            ctypes.c_void_p(result),
            self.result,
            ctypes.c_void_p(result),
            self.result,
            ctypes.byref(self.chosen.algorithm),
            ctypes.c_void_p(workspace),
            ctypes.c_size_t(WORKSPACE_BYTES),
            ctypes.c_void_p(stream),
        )

    def _describe(self, attribute: int, value: Any) -> None:
        self.lt.set("cublasLtMatmulDescSetAttribute", self.description, attribute, value)

    def _layout(self, dtype: int, rows: int, columns: int, batch: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        sizes = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows))
        self.lt.call("cublasLtMatrixLayoutCreate", ctypes.byref(layout), ctypes.c_int(dtype), *sizes)
        if batch > 1:
            setter = "cublasLtMatrixLayoutSetAttribute"
            self.lt.set(setter, layout, BATCH_COUNT, ctypes.c_int32(batch))
            self.lt.set(setter, layout, BATCH_STRIDE, ctypes.c_int64(rows * columns))
        return layout

    def _choose(self) -> _Heuristic:
        heuristic, count = _Heuristic(), ctypes.c_int()
        status = self.lt.library.cublasLtMatmulAlgoGetHeuristic(
            self.lt.handle,
            self.description,
            self.weight,
            self.activation,
            self.result,
            self.result,
            self.preference,
            ctypes.c_int(1),
            ctypes.byref(heuristic),
            ctypes.byref(count),
        )
        if status or not count.value:
            raise CannotMeasure("cuBLASLt has no kernel for this format and shape on this GPU")
        return heuristic


def _loaded() -> Any:
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path)
    except Exception:  # the finder may raise anything: fall back to the loader's search
        for name in ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"):
            try:
                return ctypes.CDLL(name)
            except OSError:
                continue
    raise CannotMeasure("libcublasLt is not installed")
