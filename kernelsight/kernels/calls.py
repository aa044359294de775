"""Latencies of a table of kernel calls whose families stand together: split, evaluated by family, put back in order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import facts
from kernelsight.errors import InvalidInput, unknown
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.hardware import MATH
from kernelsight.kernels.latency import COLUMNS, columns_read, figures
from kernelsight.kernels.resolve import rows_of_part
from kernelsight.kernels.step_costs import distinct_rows
from kernelsight.kernels.work import evaluated, field_of, fields

# columns of calls that latencies rest on, or that are looked at before
READ = ("deployment_id", "family", "gpu", "engine", "count", "format", "math", "flops", "bytes", "shape")
# optional: the kernel asked for by name
KERNEL = "implementation"
_FIELDS = re.compile(r'shape\."(\w+)"')
# fields that may be nought, and those that may be missing, which says the same
MAY_BE_ZERO = {"window", "cached_tokens", "context"}
MAY_BE_MISSING = {"window"}
# above it a float64 no longer holds every whole number
LARGEST_SIZE = 2**53


def call_latencies(
    calls: pa.Table,
    tier: str,
    gpus: pa.Table,
    fabrics: pa.Table,
    coefficients: pa.Table,
    implementations: pa.Table,
) -> pa.Table:
    """Return ``kernel_latencies`` rows for rows in the ``kernel_calls`` contract, in their order.

    UnknownName: a family that does not exist. InvalidInput: a shape that lacks a field its family needs, a size that is
    not positive, or arithmetic of no known dtype.
    """
    # numbers and words are gathered by family, and put back by row; what is stated stays where it is
    stated = calls.select(["deployment_id", "step_shape_id", "call", "family", "name", "count"])
    calls = _encoded(calls)
    families = calls["family"].chunk(0)
    names = families.dictionary.to_pylist()
    for family in names:
        if family not in FAMILIES:
            raise unknown("kernel family", family, FAMILIES)
    if not names:
        raise InvalidInput("the file has no kernel calls; give at least one row.")
    settings = pa.table({"deployment_id": calls["deployment_id"].chunk(0).dictionary})
    settings = settings.append_column("tier", pa.repeat(pa.scalar(tier), settings.num_rows))
    facts_read = (gpus, fabrics, coefficients, implementations)
    answer = _Answer(calls.num_rows)
    for number, family in enumerate(names):
        rows = np.flatnonzero(families.indices.to_numpy() == number)
        mine = _of_family(family, calls, pa.array(rows))
        _refuse_formats(family, mine, gpus)
        _refuse_kernels(family, mine, coefficients)
        table = family_table(family, mine)
        table, number_of_row = _different(family, table)
        numbers, words = figures(family, table, settings, *facts_read)
        answer.put(
            rows,
            {column: values[number_of_row] for column, values in numbers.items()},
            {column: (known, codes[number_of_row]) for column, (known, codes) in words.items()},
        )
    return answer.beside(stated)


def _different(family: str, table: pa.Table) -> tuple[pa.Table, np.ndarray]:
    """Return the calls that differ in what their figures rest on, and the number of each row's among them."""
    keys = []
    for name in columns_read(family, table.column_names):
        column = table[name].combine_chunks()
        if pa.types.is_string(column.type):
            column = column.dictionary_encode()
        values = column.indices if pa.types.is_dictionary(column.type) else column
        keys.append(pc.fill_null(values, -1).to_numpy(zero_copy_only=False).astype(float))
    kept, number_of_row = distinct_rows(keys)
    return (table if kept.size == table.num_rows else table.take(pa.array(kept))), number_of_row


class _Answer:
    """Columns of numbers and words of so many rows, filled in by family."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.numbers: dict[str, np.ndarray] = {}
        self.codes: dict[str, np.ndarray] = {}
        self.words: dict[str, list[str]] = {}

    def put(
        self,
        rows: np.ndarray,
        numbers: Mapping[str, np.ndarray],
        words: Mapping[str, tuple[Sequence[str], np.ndarray]],
    ) -> None:
        """Put a family's figures at its rows."""
        for name, values in numbers.items():
            self.numbers.setdefault(name, np.full(self.rows, np.nan))[rows] = values
        for name, (known, codes) in words.items():
            held = self.words.setdefault(name, [])
            self.codes.setdefault(name, np.empty(self.rows, np.int32))[rows] = codes + len(held)
            held += known

    def beside(self, stated: pa.Table) -> pa.Table:
        """Return ``kernel_latencies``; a call without tiles has none."""
        columns = {name: pa.array(values, from_pandas=name == "tiles") for name, values in self.numbers.items()}
        columns.setdefault("tiles", pa.nulls(self.rows, pa.float64()))
        for name, codes in self.codes.items():
            words = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(self.words[name], pa.string()))
            columns[name] = words.cast(pa.string())
        return pa.table({**{name: stated[name] for name in stated.column_names}, **columns}).select(COLUMNS)


def _encoded(calls: pa.Table) -> pa.Table:
    """Return calls with every column of words that figures rest on as a dictionary, each column in one piece."""
    columns = {name: calls[name].combine_chunks() for name in (*READ, KERNEL) if name in calls.column_names}
    for name in ("deployment_id", "family", "gpu", "engine"):
        columns[name] = columns[name].dictionary_encode()
    return pa.table(columns)


def _of_family(family: str, calls: pa.Table, rows: pa.Array) -> pa.Table:
    """Return the rows of a family, of its shapes those fields alone that its columns are made of."""
    shape = calls["shape"].chunk(0)
    stated = {**fields(*_columns(family)), **FAMILIES[family].columns}
    wanted = set(_FIELDS.findall(" ".join(stated[name] for name in _columns(family))))
    kept = [field.name for field in shape.type if field.name in wanted]
    places = [shape.type.get_field_index(name) for name in kept]
    needed = calls.drop_columns(["shape"]).take(rows)
    return needed.append_column(
        "shape", pa.StructArray.from_arrays([shape.field(at).take(rows) for at in places], kept)
    )


def family_table(family: str, calls: pa.Table) -> pa.Table:
    """Return a family's calls with the fields of their shapes laid out as the columns that its expression reads.

    InvalidInput: as :func:`call_latencies`. A window that is missing is none; an encoder caches nothing.
    """
    sizes = _sizes(family, calls["shape"].combine_chunks())
    _refuse_work(family, calls)
    calls = _with_formats(family, calls)
    for name in _columns(family):
        if name == "active_experts":
            values = _active_experts(sizes, calls)
        else:
            values = sizes[name] if name in sizes else _computed(family, name, sizes)
        calls = calls.append_column(name, pa.array(values))
    return calls


def _refuse_formats(family: str, calls: pa.Table, gpus: pa.Table) -> None:
    """InvalidInput where a call states arithmetic that its GPU does not have."""
    rates = {row["gpu"]: row for row in gpus.to_pylist()}
    for math in pc.unique(calls["math"]).to_pylist():
        lacking = [
            name
            for name in pc.unique(calls["gpu"]).to_pylist()
            if math in MATH and name in rates and rates[name][f"{math}_flops_per_s"] is None
        ]
        if not lacking:
            continue
        stated = pc.and_(pc.equal(calls["math"], math), pc.is_in(calls["gpu"].cast(pa.string()), pa.array(lacking)))
        if pc.any(stated).as_py():
            gpu = calls.filter(stated)["gpu"][0].as_py()
            has = [name for name in MATH if rates[gpu][f"{name}_flops_per_s"]]
            raise InvalidInput(
                f"a {family} call has math = {math}, which {gpu} does not have; give one of {', '.join(has)} (weights "
                "of shorter formats are expanded), or another GPU."
            )


def _refuse_kernels(family: str, calls: pa.Table, coefficients: pa.Table) -> None:
    """UnknownName where a call asks for a kernel that no sweep of its family ran."""
    if KERNEL not in calls.column_names:
        return
    known = set(rows_of_part(coefficients, family, "choice")[KERNEL].to_pylist())
    for asked in pc.unique(calls[KERNEL]).to_pylist():
        if asked and asked not in known:
            raise unknown("implementation", asked, known, f"Sweeps ran these kernels of the family {family}.")


def _columns(family: str) -> list[str]:
    """The call columns that a family's latencies rest on beside its work."""
    declared = FAMILIES[family]
    return list(dict.fromkeys([*declared.form.reads, *(["head_dim"] if declared.by_head_dim else [])]))


def _computed(family: str, column: str, sizes: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a column that follows from several sizes."""
    # whole numbers of 64 bits would overflow
    as_floats = pa.table({name: values.astype(float) for name, values in sizes.items()})
    return evaluated(FAMILIES[family].columns[column], as_floats).to_numpy()


def _sizes(family: str, shape: pa.StructArray) -> dict[str, np.ndarray]:
    """Return the columns that are fields of the shape as int64; InvalidInput where one is missing or no sound size."""
    given = {shape.type.field(i).name: shape.field(i) for i in range(shape.type.num_fields)}
    names = _columns(family)
    stated = {**fields(*names), **FAMILIES[family].columns}
    sizes = {}
    for column, name in ((column, field_of(stated[column])) for column in names):
        if name is None:
            continue
        values = given[name]
        if name in MAY_BE_MISSING or (family == "encoder_attention" and name == "cached_tokens"):
            values = values.fill_null(0)
        if values.null_count:
            raise InvalidInput(
                f"{values.null_count} {family} calls have no shape field {name}; `kernelsight tables "
                "kernel_calls` lists them."
            )
        smallest, largest = pc.min(values).as_py(), pc.max(values).as_py()
        if smallest < (0 if name in MAY_BE_ZERO else 1):
            raise InvalidInput(f"a {family} call has {name} = {smallest}; give positive sizes.")
        if largest > LARGEST_SIZE:
            raise InvalidInput(f"a {family} call has {name} = {largest}; give at most {LARGEST_SIZE}.")
        sizes[column] = values.to_numpy(zero_copy_only=False)
    return sizes


def _refuse_work(family: str, calls: pa.Table) -> None:
    """InvalidInput where a number of launches or an amount of work cannot be."""
    if (least := pc.min(calls["count"]).as_py()) < 1:
        raise InvalidInput(f"a {family} call has count = {least}; give at least one launch.")
    for work in ("flops", "bytes"):
        if (least := pc.min(calls[work]).as_py()) < 0:
            raise InvalidInput(f"a {family} call has {work} = {least}; give work that is not negative.")


def _with_formats(family: str, calls: pa.Table) -> pa.Table:
    """Check the arithmetic, drop it where no call states any; a format that is missing is that of the arithmetic."""
    math = calls["math"].combine_chunks()
    if math.null_count == len(math):
        return calls.drop_columns(["math"])
    wrong = [value for value in pc.unique(math).to_pylist() if value not in MATH]
    if wrong:
        found = min(wrong, key=lambda value: value or "")
        raise InvalidInput(f"a {family} call has math = {found}; give one of {', '.join(MATH)}.")
    stated = calls["format"].combine_chunks()
    if not stated.null_count:
        return calls
    followed = pc.if_else(pc.equal(math, "fp4"), "nvfp4", math)
    return calls.set_column(calls.column_names.index("format"), "format", pc.coalesce(stated, followed))


def _active_experts(sizes: Mapping[str, np.ndarray], calls: pa.Table) -> np.ndarray:
    """Experts that at least one token reaches: whose weights are in the bytes that a call states.

    Where its format is not known, or its bytes are not those of one to all experts: as if drawn evenly.
    """
    even = _computed("moe", "active_experts", sizes)
    if "math" not in calls.column_names:
        return even
    known = dict(zip(*(facts("number_formats")[name].to_pylist() for name in ("format", "weight_bits")), strict=True))
    bits = np.array([known.get(one, np.nan) for one in calls["format"].to_pylist()], dtype=float)
    flops, moved = (calls[name].to_numpy() for name in ("flops", "bytes"))
    floats = {name: values.astype(float) for name, values in sizes.items()}
    share, experts = floats["top_k"] / floats["moe_ep"], floats["local_experts"]
    expert_bytes = flops / (2.0 * floats["tokens"] * share) * bits / 8.0
    read = moved - evaluated("moe_token_bytes(tokens, top_k, moe_ep, hidden)", pa.table(floats)).to_numpy()
    stated = np.divide(read, expert_bytes, out=np.full(read.shape, np.nan), where=expert_bytes > 0.0)
    # rounding in what others wrote
    sound = (stated >= 0.999 * np.minimum(share, experts)) & (stated <= 1.001 * experts)
    return np.where(sound, np.clip(stated, None, experts), even)
