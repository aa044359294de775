"""Points of a sweep from profiles: torch traces with recorded shapes, and tables whose columns are mapped."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from kernelsight.catalog.gpu_names import find_gpu
from kernelsight.catalog.tables import catalogue_yaml
from kernelsight.errors import InvalidInput, unknown
from kernelsight.files.parquet_files import read_parquet
from kernelsight.files.row_files import read_rows
from kernelsight.fitting.kernel_sweeps.points import LABELS, SHAPE, Batch, read_csv, without_family
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.kernel_names import family_of
from kernelsight.logs.files import LogFile, documents, open_log
from kernelsight.logs.plain import Source, source_of
from kernelsight.logs.read_logs import read_logs
from kernelsight.number_format import percent
from kernelsight.scenario.proposed_columns import flag_of, proposed_columns

# number formats of PyTorch's types in traces: of weight and arithmetic
TYPES = {"BFloat16": "bf16", "Half": "fp16", "Float8_e4m3fn": "fp8", "Float8_e5m2": "fp8", "signed char": "int8"}
_WORD = re.compile(r"\w+")
_SIZE = re.compile(r"(\d)\[(?:(\d)|:-1)\]")
# longer kernels, larger sizes and those that are no whole numbers are no measurement
LONGEST_US, LARGEST_SIZE = 1e9, 2**40
EXAMPLE = "--columns family==gemm m=M n=N k=K latency_us=T[us] dtype==bf16"
TEXTS = ("family", "kernel", "implementation", "engine", "engine_version", "dtype", "format", "math", "distribution")
KNOWN, SIZES = ("gpu", "latency_us", *TEXTS, *SHAPE), frozenset(SHAPE)


def profile_points(
    paths: Sequence[Path], gpu: str | None, columns: Mapping[str, str] | None, timed: bool = True
) -> Iterator[Batch]:
    """Yield the measured kernels of profiles by GPU and family; rows that cannot be used are counted by reason.

    ``gpu``: that of the profiles where they name none; ``columns``: column of the file by column of ``sweep_points``,
    as ``compare --columns`` has them, beside others with our names; ``timed``: latencies are needed. InvalidInput: no
    GPU, no shapes, or no such column.
    """
    for path in paths:
        file = open_log(path)
        mapped = _ours(file, columns) if columns else _own_columns(file, gpu, timed)
        batches = _of_table(file, mapped, gpu, timed) if mapped else _of_profile(file, gpu)
        yield from (batch for batch in batches if batch.rows.height or batch.dropped)


def _ours(file: LogFile, mapped: Mapping[str, str]) -> dict[str, str]:
    """Return columns by our name: as ``mapped``, and those of a table that have our names and are not mapped."""
    taken = {source_of(name, column).column for name, column in mapped.items()}
    own = [name for name in _columns_of(file) if name in KNOWN and name not in taken]
    return {**dict(zip(own, own, strict=True)), **mapped}


def _columns_of(file: LogFile) -> list[str]:
    """Return the columns of a table of kernels: CSV, Parquet, or a JSON array of objects; none of anything else."""
    if file.kind == "json":
        return [name.removeprefix("[].") for name in sorted(file.fields) if name.removeprefix("[].").isidentifier()]
    return sorted(file.fields) if file.kind == "parquet" else file.columns if file.kind == "text" else []


def _own_columns(file: LogFile, gpu: str | None, timed: bool) -> dict[str, str] | None:
    """Return the columns of a table that have our names; None: it is no table of kernels with shapes.

    ``timed``: latencies are needed. InvalidInput: needed ones have other names; the error proposes --columns.
    """
    names, own = _columns_of(file), _ours(file, {})
    proposed = proposed_columns([name for name in names if name not in own], own, "kernels")
    found = own.keys() | proposed.keys()
    if not found & SIZES or (timed and "latency_us" not in found):
        return None
    if proposed:
        stated = {"dtype": "=bf16"} | ({"gpu": "=NAME"} if gpu is None else {})
        proposed |= {name: value for name, value in stated.items() if name not in found}
        raise InvalidInput(
            f"{file.path} has columns with other names than sweep_points; `calibrate import profile`, `calibrate fit` "
            f"and `predict --calls` take {flag_of(proposed)}."
        )
    return own


def _of_profile(file: LogFile, gpu: str | None) -> Iterator[Batch]:
    is_trace = file.kind == "json" and any(name.startswith("traceEvents[].args.Input Dims") for name in file.fields)
    if not is_trace:
        raise _without_shapes(file.path)
    trace = next(documents(file))[1]
    device = next((row.get("name") for row in trace.get("deviceProperties", ()) if isinstance(row, Mapping)), None)
    rows, dropped = _launches(trace.get("traceEvents", ()), file.path.name)
    if not rows:
        raise _without_shapes(file.path)
    yield from _batches(pl.DataFrame(rows, infer_schema_length=None), _gpu(gpu or device), dropped)


def _operators() -> list[dict[str, Any]]:
    return catalogue_yaml("profile_operators")


def _launches(events: Sequence[Any], source: str) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Return the operators of a trace that launched kernels of their family, and counts of kernels of no such one."""
    forms = {name: form for form in _operators() for name in form["operators"]}
    operators, rows, dropped, times = {}, [], Counter[str](), Counter[tuple[int, str | None]]()
    for event in (event for event in events if isinstance(event, Mapping)):
        arguments, name, spent_us = event.get("args"), str(event.get("name"))[:400], event.get("dur")
        number = arguments.get("External id") if isinstance(arguments, Mapping) else None
        if not isinstance(number, int):
            dropped["no_shape_of_its_operator"] += event.get("cat") == "kernel"
        elif event.get("cat") == "cpu_op" and name in forms:
            operators[number] = event
        elif event.get("cat") == "kernel" and isinstance(spent_us, int | float) and 0.0 < spent_us < LONGEST_US:
            times[number, family_of(name)] += spent_us
        elif event.get("cat") == "kernel":
            dropped["no_duration"] += 1
    for number, event in operators.items():
        form = forms[event["name"]]
        spent_us = times.pop((number, form["family"]), None)
        shape = _shape(event["args"], form)
        if spent_us and shape:
            labels = {name: form[name] for name in ("family", "kernel_source")}
            rows.append(shape | labels | {"latency_us": float(spent_us), "source": source})
        elif spent_us:
            dropped["number_format_or_shape_not_recorded"] += 1
    dropped["no_shape_of_its_operator"] += len(times)
    return rows, dropped


def _shape(arguments: Mapping[str, Any], form: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return sizes and number format of an operator by its recorded arguments; None: they are not there."""
    dims, types = arguments.get("Input Dims"), arguments.get("Input type")
    found: dict[str, Any] = {}
    try:
        for name, place in form["sizes"].items():
            argument, dimension = _SIZE.fullmatch(place).groups()  # type: ignore[union-attr]
            given = dims[int(argument)]
            found[name] = math.prod(given[:-1]) if dimension is None else given[int(dimension)]
        dtype = TYPES[types[form["number"]].removeprefix("c10::")]
        whole = all(isinstance(size, int) and 0 < size < LARGEST_SIZE for size in found.values())
        return found | {"dtype": dtype} if whole else None
    except (LookupError, TypeError, AttributeError, OverflowError):
        return None


def _of_table(file: LogFile, columns: Mapping[str, str], gpu: str | None, timed: bool) -> Iterator[Batch]:
    """Yield the rows of a table of kernels, whose columns are mapped."""
    path = file.path
    for name in columns:
        if name not in KNOWN:
            raise unknown("column", name, KNOWN, "--columns takes our name = the name in the file.")
    sources = {name: source_of(name, column) for name, column in columns.items()}
    table = read_table(file, [one.column for one in sources.values() if one.value is None])
    rows = table.select(_column(name, source) for name, source in sources.items())
    family = pl.col("family") if "family" in columns else pl.lit(None, pl.String)
    if "kernel" in columns:
        families = {name: family_of(name) for name in rows["kernel"].drop_nulls().unique()}
        family = pl.coalesce(family, pl.col("kernel").replace_strict(families, return_dtype=pl.String))
    # a table of m, n and k is one of matrix products, whatever its kernels are called
    of_sizes = [name for name in FAMILIES if needed_sizes(name) == SIZES & set(columns)]
    if len(of_sizes) == 1:
        sized = pl.all_horizontal(pl.col(sorted(SIZES & set(columns))).is_not_null())
        family = pl.coalesce(family, pl.when(sized).then(pl.lit(of_sizes[0])))
    rows = rows.with_columns(family.alias("family"))
    if (timed and "latency_us" not in columns) or "dtype" not in columns or not rows["family"].count():
        raise InvalidInput(f"{path} needs columns for latency_us, dtype, and family or kernel; {EXAMPLE}.")
    rows = rows.with_columns(pl.lit(path.name).alias("source"))
    if "gpu" not in columns and gpu is None:
        raise InvalidInput(f"{path} names no GPU; add --columns gpu==NAME, the GPU that ran the kernels.")
    by_gpu = rows.partition_by("gpu", as_dict=True) if "gpu" in columns else {(gpu,): rows}
    for (name,), part in by_gpu.items():
        yield from _batches(part.drop("gpu", strict=False), _gpu(name or gpu), Counter())


def read_table(file: LogFile, needed: Sequence[str]) -> pl.DataFrame:
    """Return a CSV, JSON or Parquet table of kernels; InvalidInput: it cannot be read, or lacks ``needed`` columns."""
    if file.kind == "text":
        return read_csv(file.path, needed, "kernels")
    if file.kind == "json":
        rows = read_rows(file.path, set(), "a table of kernels", "kernel")
        table = pl.DataFrame(rows, infer_schema_length=None, strict=False)
    else:
        table = pl.DataFrame(read_parquet(file.path, file.refuse, [*needed]))
    if missing := [name for name in needed if name not in table.columns]:
        raise InvalidInput(f"{file.path} is not a table of kernels: missing columns {', '.join(missing)}.")
    if nested := [name for name in needed if table[name].dtype.is_nested()]:
        raise InvalidInput(f"{file.path}: the column {nested[0]} holds objects or lists; give numbers or text.")
    return table


def _column(name: str, source: Source) -> pl.Expr:
    value = pl.lit(source.value) if source.value is not None else pl.col(source.column)
    if name == "latency_us":  # a factor is that to ms
        return (value.cast(pl.Float64, strict=False) * (source.factor * 1e3 if source.unit else 1.0)).alias(name)
    return value.cast(pl.Int64 if name in SHAPE else pl.String, strict=False).alias(name)


def _batches(rows: pl.DataFrame, gpu: str, dropped: Counter[str]) -> Iterator[Batch]:
    """Yield rows by family, without those that lack a size that the family's model needs."""
    for (family,), part in rows.partition_by("family", as_dict=True, include_key=False).items():
        if family not in FAMILIES:
            dropped["no_family" if family is None else "family_without_shapes"] += part.height
            continue
        missing = sorted(needed_sizes(family) - set(part.columns))
        if missing:
            raise InvalidInput(f"kernels of {family} need {', '.join(missing)}; add them to --columns.")
        library = next((form["kernel_source"] for form in _operators() if form["family"] == family), None)
        if library is None and "implementation" not in part.columns:
            raise InvalidInput(
                f"kernels of {family} need implementation, their library: --columns implementation==NAME."
            )
        formats = [pl.col("dtype").alias(name) for name in ("format", "math") if name not in part.columns]
        empty = [name for name in LABELS if name not in (*part.columns, "format", "math")]
        usual = {"engine": "torch", "engine_version": "unknown", "kernel_source": library}
        labels = [pl.lit(usual.get(name), pl.String).alias(name) for name in empty]
        weight = pl.lit(1.0).alias("weight"), pl.lit(None, pl.String).alias("reason")
        yield Batch(gpu, family, part.with_columns(*formats, *labels, *weight), {})
    for reason, count in dropped.items():
        yield without_family(gpu, reason, count)


def needed_sizes(family: str) -> set[str]:
    """Return the fields of a shape that a family's columns read."""
    texts = FAMILIES[family].columns
    words = {word for text in texts.values() for word in _WORD.findall(text)} & SIZES
    return {word for word in words if word in _WORD.findall(texts.get(word, word))}  # no column made of others


def _gpu(name: str | None) -> str:
    if name is None:
        raise InvalidInput("the profile names no GPU; add --gpus NAME, the one that it was made on.")
    found = find_gpu(name)
    return found.gpu if found else name


def _without_shapes(path: Path) -> InvalidInput:
    """Return the error for a profile with names and times alone: what they are, and what to do."""
    kernels = read_logs(kernels=path)["production_kernels"]
    times = pl.from_arrow(kernels.select(["family", "total_us"])).group_by("family").agg(pl.col("total_us").sum())  # type: ignore[union-attr]
    total_us = times["total_us"].sum()
    largest = times.sort(["total_us", "family"], descending=[True, False]).head(2).iter_rows()
    shown = ", ".join(f"{family or 'of no family'} {percent(us / total_us)}" for family, us in largest)
    return InvalidInput(
        f"{path} has times of kernels ({shown}) and no shapes: nothing can be fitted; give a torch trace with "
        "record_shapes=True, or a table of kernels with --columns."
    )
