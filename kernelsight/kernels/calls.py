"""Latencies of a table of kernel calls of mixed families: split by family, evaluated, put back in input order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import facts
from kernelsight.dataflow.array_expressions import in_one_piece
from kernelsight.errors import InvalidInput, unknown
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.hardware import MATH
from kernelsight.kernels.kernel_constants import rows_of_part
from kernelsight.kernels.latency import latency_columns, with_call_names
from kernelsight.kernels.pricing import distinct_rows
from kernelsight.kernels.pricing_tables import PricingTables
from kernelsight.kernels.string_columns import combinations
from kernelsight.kernels.work import evaluated, field_of

# optional column: the kernel that a call requests by name
KERNEL = "implementation"
# string columns that latencies rest on
WORDS = ("deployment_id", "gpu", "engine", "format", "math", KERNEL)
# shape fields that may be 0, and those that may be missing, which means 0
MAY_BE_ZERO = {"window", "cached_tokens", "context"}
MAY_BE_MISSING = {"window"}
# above it float64 does not represent every whole number
LARGEST_SIZE = 2**53


def call_latencies(calls: pa.Table, tier: str, harness: str | None, *fact_tables: pa.Table) -> pa.Table:
    """Return ``kernel_latencies`` rows of ``kernel_calls`` rows, in their order.

    ``harness``: None: as the engine's sweep was measured; HARNESS: intervals hold for any. ``fact_tables``: gpus,
    fabrics, eta_coefficients, kernel_implementations, dies, gpu_power. UnknownName: no such family or kernel.
    InvalidInput: no rows, a shape lacks a field that its family needs, a size or count is not positive, or the
    arithmetic is of no known dtype or not the GPU's.
    """
    tables = PricingTables(pa.table({"tier": [tier], "harness": pa.array([harness], pa.string())}), *fact_tables)
    if not calls.num_rows:
        raise InvalidInput("the file has no kernel calls; give at least one row.")
    _refuse_counts(calls)
    words = pa.table({name: _encoded(calls[name]) for name in WORDS if name in calls.column_names})
    _, words_of_row = combinations(words, words.column_names)
    shape, work = in_one_piece(calls["shape"]), {name: calls[name].to_numpy() for name in ("flops", "bytes")}
    # distinct calls are priced once; ``priced_row``: of each row, its distinct call
    priced, priced_row, total = [], np.empty(calls.num_rows, np.int64), 0
    for family, rows in _by_family(calls["family"]):
        sizes = sizes_of(family, shape, rows)
        family_work = {name: values[rows] for name, values in work.items()}
        kept, number = distinct_rows([words_of_row[rows], *sizes.values(), *family_work.values()])
        distinct = words.take(pa.array(rows[kept]))
        for name, values in family_work.items():
            distinct = distinct.append_column(name, pa.array(values[kept]))
        _refuse_formats(family, distinct, tables.gpus)
        _refuse_kernels(family, distinct, tables.coefficients)
        table = family_table(family, distinct, {name: values[kept] for name, values in sizes.items()})
        priced.append(latency_columns(family, table, tables))
        priced_row[rows] = number + total
        total += kept.size
    call_names = calls.select(["deployment_id", "step_shape_id", "call", "family", "name", "count"])
    return with_call_names(call_names, pa.concat_tables(priced).combine_chunks().take(pa.array(priced_row)))


def _by_family(families: pa.ChunkedArray) -> list[tuple[str, np.ndarray]]:
    """Return each family of the column, and its row numbers; UnknownName: no such family."""
    encoded = _encoded(families)
    names, number = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    used = [at for at, count in enumerate(np.bincount(number, minlength=len(names))) if count]
    for at in used:
        if names[at] not in FAMILIES:
            raise unknown("kernel family", names[at], FAMILIES)
    return [(names[at], np.flatnonzero(number == at)) for at in used]


def _encoded(words: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return a string column as one dictionary array."""
    words = in_one_piece(words)
    return words if pa.types.is_dictionary(words.type) else words.dictionary_encode()


def family_table(family: str, calls: pa.Table, sizes: Mapping[str, np.ndarray]) -> pa.Table:
    """Return a family's calls with the columns that its expression reads; ``sizes``: from :func:`sizes_of`.

    InvalidInput: arithmetic of no known dtype.
    """
    calls = _with_formats(family, calls)
    for name in _columns(family):
        if name == "active_experts":
            values = _active_experts(sizes, calls)
        else:
            values = sizes[name] if name in sizes else _computed(family, name, sizes)
        calls = calls.append_column(name, pa.array(values))
    return calls


def _refuse_formats(family: str, calls: pa.Table, gpus: pa.Table) -> None:
    """Raise InvalidInput where a call's arithmetic is not the GPU's."""
    rates = {row["gpu"]: row for row in gpus.to_pylist()}
    for math in pc.unique(calls["math"]).to_pylist():
        lacking = [
            name
            for name in pc.unique(calls["gpu"]).to_pylist()
            if math in MATH and name in rates and rates[name][f"{math}_flops_per_s"] is None
        ]
        if not lacking:
            continue
        lacks_format = pc.and_(
            pc.equal(calls["math"], math), pc.is_in(calls["gpu"].cast(pa.string()), pa.array(lacking))
        )
        if pc.any(lacks_format).as_py():
            gpu = calls.filter(lacks_format)["gpu"][0].as_py()
            has = [name for name in MATH if rates[gpu][f"{name}_flops_per_s"]]
            raise InvalidInput(
                f"a {family} call has math = {math}, which {gpu} does not have; give one of {', '.join(has)} (weights "
                "of shorter formats are expanded), or another GPU."
            )


def _refuse_kernels(family: str, calls: pa.Table, coefficients: pa.Table) -> None:
    """Raise UnknownName where a call requests a kernel that no sweep of its family ran."""
    if KERNEL not in calls.column_names:
        return
    swept_kernels = set(rows_of_part(coefficients, family, "choice")[KERNEL].to_pylist())
    for requested in pc.unique(calls[KERNEL]).to_pylist():
        if requested and requested not in swept_kernels:
            raise unknown(
                "implementation", requested, swept_kernels, f"Sweeps ran these kernels of the family {family}."
            )


def _columns(family: str) -> list[str]:
    """Return the call columns that a family's latencies rest on beside flops and bytes."""
    declared = FAMILIES[family]
    return list(dict.fromkeys([*declared.latency_model.reads, *(["head_dim"] if declared.by_head_dim else [])]))


def _computed(family: str, column: str, sizes: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a column that is computed from several sizes, float64, (rows,)."""
    # products of 64-bit integers would overflow
    as_floats = pa.table({name: values.astype(float) for name, values in sizes.items()})
    return evaluated(FAMILIES[family].columns[column], as_floats).to_numpy()


def sizes_of(family: str, shape: pa.StructArray, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of a family that are fields of the shape, int64, (rows,) each; ``rows``: row numbers.

    A missing window is 0 (none), and so are an encoder's cached tokens. InvalidInput: another field is missing, or a
    size is not positive or above LARGEST_SIZE.
    """
    names = _columns(family)
    sql_of_column = {**{name: f"shape.{name}" for name in names}, **FAMILIES[family].columns}
    row_numbers = pa.array(rows)
    sizes = {}
    for column, name in ((column, field_of(sql_of_column[column])) for column in names):
        if name is None:
            continue
        values = shape.field(name).take(row_numbers)
        if name in MAY_BE_MISSING or (family == "encoder_attention" and name == "cached_tokens"):
            values = values.fill_null(0)
        if values.null_count:
            raise InvalidInput(
                f"{values.null_count} {family} calls have no shape field {name}; `kernelsight tables "
                "kernel_calls` lists them."
            )
        smallest, largest = pc.min_max(values).as_py().values()
        if smallest < (0 if name in MAY_BE_ZERO else 1):
            raise InvalidInput(f"a {family} call has {name} = {smallest}; give positive sizes.")
        if largest > LARGEST_SIZE:
            raise InvalidInput(f"a {family} call has {name} = {largest}; give at most {LARGEST_SIZE}.")
        sizes[column] = values.to_numpy(zero_copy_only=False)
    return sizes


def _refuse_counts(calls: pa.Table) -> None:
    """Raise InvalidInput where a call has less than one launch."""
    if (least_count := pc.min(calls["count"])).as_py() < 1:
        family = calls["family"][pc.index(calls["count"], least_count).as_py()]
        raise InvalidInput(f"a {family} call has count = {least_count}; give at least one launch.")


def _with_formats(family: str, calls: pa.Table) -> pa.Table:
    """Return calls with a format in every row, that of the arithmetic where it is missing; without math if all null.

    InvalidInput: arithmetic of no known dtype.
    """
    math = calls["math"].combine_chunks()
    if math.null_count == len(math):
        return calls.drop_columns(["math"])
    wrong = [value for value in pc.unique(math).to_pylist() if value not in MATH]
    if wrong:
        unknown_math = min(wrong, key=lambda value: value or "")
        raise InvalidInput(f"a {family} call has math = {unknown_math}; give one of {', '.join(MATH)}.")
    number_formats = calls["format"].combine_chunks()
    if not number_formats.null_count:
        return calls
    math_format = pc.if_else(pc.equal(math, "fp4"), "nvfp4", math)
    return calls.set_column(calls.column_names.index("format"), "format", pc.coalesce(number_formats, math_format))


def _active_experts(sizes: Mapping[str, np.ndarray], calls: pa.Table) -> np.ndarray:
    """Return the experts that at least one token reaches, (rows,): those whose weights a call's bytes hold.

    Where the format is not known, or the bytes are not those of one to all experts: as if tokens drew experts evenly.
    """
    even = _computed("moe", "active_experts", sizes)
    if "math" not in calls.column_names:
        return even
    bits_of_format = dict(
        zip(*(facts("number_formats")[name].to_pylist() for name in ("format", "weight_bits")), strict=True)
    )
    bits = np.array([bits_of_format.get(name, np.nan) for name in calls["format"].to_pylist()], dtype=float)
    flops, moved = (calls[name].to_numpy() for name in ("flops", "bytes"))
    floats = {name: values.astype(float) for name, values in sizes.items()}
    share, experts = floats["top_k"] / floats["moe_ep"], floats["local_experts"]
    expert_bytes = flops / (2.0 * floats["tokens"] * share) * bits / 8.0
    read = moved - evaluated("moe_token_bytes(tokens, top_k, moe_ep, hidden)", pa.table(floats)).to_numpy()
    experts_read = np.divide(read, expert_bytes, out=np.full(read.shape, np.nan), where=expert_bytes > 0.0)
    # tolerance for rounded bytes in files
    is_plausible = (experts_read >= 0.999 * np.minimum(share, experts)) & (experts_read <= 1.001 * experts)
    return np.where(is_plausible, np.clip(experts_read, None, experts), even)
