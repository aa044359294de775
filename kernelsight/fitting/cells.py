"""Groups of measured rows for evaluation: GPU generations, cells, coverage, seen implementations, serving shapes.

A cell is (family, dtype). It is covered where training GPUs of at least two generations measured it; a row's
implementation is seen where a training GPU has rows of the same engine under the same kernel name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import facts
from kernelsight.kernels.kernel_constants import generation

Columns = Mapping[str, np.ndarray]


@cache
def generation_of(gpu: str) -> str:
    """Return the generation of a GPU by its compute capability; a GPU without one is its own generation.

    >>> generation_of("h200_sxm"), generation_of("l40s"), generation_of("gb200"), generation_of("rtx_pro_6000_server")
    ('hopper', 'ada', 'sm_100', 'sm_120')
    """
    return generation(_capability(gpu)) or gpu


def is_covered(gpus: Iterable[str]) -> bool:
    """Return whether a cell is covered: the ``gpus`` that measured it are of at least two generations.

    >>> is_covered(["h100_sxm", "h200_sxm"]), is_covered(["h100_sxm", "l40s"])
    (False, True)
    """
    return len({generation_of(gpu) for gpu in gpus}) >= 2


def measured_by(train: pa.Table) -> dict[str, list[str]]:
    """Return the training GPUs by the dtype that they measured, from one family's training rows."""
    pairs = train.group_by(["dtype", "gpu"]).aggregate([]).to_pylist()
    return {dtype: sorted(p["gpu"] for p in pairs if p["dtype"] == dtype) for dtype in {p["dtype"] for p in pairs}}


def is_seen(family: str, train: pa.Table, test: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return two boolean arrays of shape (test rows,): a training row has the row's kernel or kernel name; its kernel.

    The kernel: the same (engine, implementation). The kernel name: all names that a sweep may give it on that GPU are
    in the training rows too. A router, such as TensorRT-LLM's torch_flow, names another kernel on each generation.
    """
    train_names, train_kernels = set(), set()
    for engine, implementation, gpu in _kernels(train)[0]:
        train_kernels.add((engine, implementation))
        train_names |= {(engine, name) for name in source_names(family, engine, implementation, gpu)}
    test_kernels, kernel_of_row = _kernels(test)
    is_train_kernel = [(engine, implementation) in train_kernels for engine, implementation, _ in test_kernels]
    has_train_name = [
        all((engine, name) in train_names for name in source_names(family, engine, implementation, gpu))
        for engine, implementation, gpu in test_kernels
    ]
    same_kernel = np.array(is_train_kernel, dtype=bool)[kernel_of_row]
    return same_kernel | np.array(has_train_name, dtype=bool)[kernel_of_row], same_kernel


@cache
def source_names(family: str, engine: str, implementation: str, gpu: str) -> frozenset[str]:
    """Return the names that sweeps give an engine's implementation on a GPU (table kernel_sources); else its own name.

    >>> sorted(source_names("prefill_attention", "trtllm", "trtllm_wgmma_fmha", "h100_sxm"))
    ['torch_flow']
    """
    wanted = {"engine": engine, "family": family, "compute_capability": _capability(gpu)}
    names = {
        row["kernel_source"]
        for row in _sources_of(implementation)
        if all(row[name] in (value, "*") for name, value in wanted.items())
    }
    return frozenset(names or {implementation})


@cache
def _sources_of(implementation: str) -> list[dict[str, str]]:
    sources = facts("kernel_sources")
    return sources.filter(pc.equal(sources["implementation"], implementation)).to_pylist()


def _capability(gpu: str) -> str | None:
    gpus = facts("gpus")
    row = gpus.filter(pc.equal(gpus["gpu"], gpu)).to_pylist()
    return row[0]["compute_capability"] if row else None


def _kernels(rows: pa.Table) -> tuple[list[tuple[str, str, str]], np.ndarray]:
    """Return the distinct (engine, implementation, GPU), and for each row its index among them."""
    joined = pc.binary_join_element_wise(rows["engine"], rows["implementation"], rows["gpu"], "\x1f")
    coded = joined.combine_chunks().dictionary_encode()
    return [tuple(key.split("\x1f")) for key in coded.dictionary.to_pylist()], coded.indices.to_numpy()


def _served_gemm(shape: Columns) -> np.ndarray:
    n, k = shape["n"], shape["k"]
    return (n * k >= 2**20) & (np.minimum(n, k) >= 128) & (shape["m"] <= 16_384)


def _served_heads(shape: Columns) -> np.ndarray:
    group = shape["heads"] / shape["kv_heads"]
    return np.isin(shape["head_dim"], (64, 128, 256)) & (group >= 4) & (group <= 16)


def _served_prefill(shape: Columns) -> np.ndarray:
    new = shape["new_tokens"]
    return _served_heads(shape) & (new >= 16) & (shape["batch"] * new <= 16_384)


def _served_decode(shape: Columns) -> np.ndarray:
    # sweeps have contexts of 2^k - 1 past tokens: 255 of them and the new one make 256
    return _served_heads(shape) & (shape["context"] + 1 >= 256) & (shape["batch"] <= 512)


def _served_moe(shape: Columns) -> np.ndarray:
    return (shape["moe_tp"] * shape["moe_ep"] <= 8) & (shape["tokens"] <= 16_384)


# family: (columns read, the rule for shapes of served models); in other families every row counts as one
SERVING: dict[str, tuple[tuple[str, ...], Callable[[Columns], np.ndarray]]] = {
    "gemm": (("m", "n", "k"), _served_gemm),
    "prefill_attention": (("batch", "new_tokens", "heads", "kv_heads", "head_dim"), _served_prefill),
    "decode_attention": (("batch", "context", "heads", "kv_heads", "head_dim"), _served_decode),
    "moe": (("tokens", "moe_tp", "moe_ep"), _served_moe),
}


def is_serving(family: str, rows: pa.Table) -> np.ndarray:
    """Return for each row whether it is a serving shape of its family: booleans of shape (rows,)."""
    if family not in SERVING:
        return np.ones(rows.num_rows, dtype=bool)
    names, rule = SERVING[family]
    return rule({name: rows[name].to_numpy() for name in names})
