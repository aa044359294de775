"""Reads Parquet files of search spaces (with the columns of ``search import``) as the input tables of a search."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.contract import check_values
from kernelsight.errors import InvalidInput, nearest
from kernelsight.files.bounded_values import parse_json
from kernelsight.files.parquet_files import read_parquet

NEEDED = ("space", "gpu", "parameters", "latency_us", "status")
OPTIONAL = {"cv": pa.float64(), "samples": pa.int64(), "compile_s": pa.float64(), "benchmark_s": pa.float64()}
TEXTS = ("space", "gpu", "parameters", "status")
STATUS = {
    **{name: name for name in ("ok", "compile_failed", "runtime_failed", "wrong_result")},
    **{"CompilationFailedConfig": "compile_failed", "RuntimeFailedConfig": "runtime_failed"},
    **{"compile": "compile_failed", "runtime": "runtime_failed", "correctness": "wrong_result"},
}
# status of a configuration that was measured on no GPU
UNMEASURED = "unmeasured"


class SpaceTables(NamedTuple):
    """The input tables of a search."""

    kernel_spaces: pa.Table
    kernel_candidates: pa.Table
    kernel_measurements: pa.Table


def read_spaces(paths: Sequence[str | Path]) -> SpaceTables:
    """Read Parquet files of search spaces; InvalidInput or ContractBroken for invalid columns or rows.

    Columns: space, gpu, parameters (JSON object), latency_us, status; cv, samples, compile_s, benchmark_s if known.
    """
    return space_tables(
        pa.concat_tables([_read_rows(Path(path)) for path in paths]), ", ".join(Path(p).name for p in paths)
    )


def read_forecasts(path: Path) -> pa.Table:
    """Read a Parquet file of forecasts: candidate_id, latency_us, and forecaster if there are several.

    InvalidInput: no such file or columns, or a latency that is not above 0.
    """
    table = read_parquet(path, lambda problem: InvalidInput(f"{path} {problem}; give a Parquet file of forecasts."))
    missing = [name for name in ("candidate_id", "latency_us") if name not in table.column_names]
    if missing:
        raise InvalidInput(f"{path} has no column {missing[0]}; forecasts have candidate_id and latency_us.")
    times = table["latency_us"].to_numpy().astype(float)
    with np.errstate(invalid="ignore"):
        wrong = int((~(np.isfinite(times) & (times > 0))).sum())
    if wrong:
        raise InvalidInput(f"{path}: {wrong:,} forecasts have no finite latency above 0; remove these rows.")
    return table


def _read_rows(path: Path) -> pa.Table:
    table = read_parquet(path, lambda problem: InvalidInput(f"{path} {problem}; give a file of `search import`."))
    missing = [name for name in NEEDED if name not in table.column_names]
    if missing:
        raise InvalidInput(
            f"{path} has no column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; a file of search spaces has "
            f"{', '.join(NEEDED)}."
        )
    types = {**dict.fromkeys(TEXTS, pa.string()), "latency_us": pa.float64(), **OPTIONAL}
    columns = {}
    for name, arrow_type in types.items():
        try:
            is_there = name in table.column_names
            columns[name] = table[name].cast(arrow_type) if is_there else pa.nulls(len(table), arrow_type)
        except pa.ArrowException as error:
            raise InvalidInput(f"{path}: column {name} cannot be used: {str(error).splitlines()[0]}.") from None
    figures = pa.table({name: columns[name] for name in OPTIONAL})
    check_values(figures, contracts()["kernel_measurements"], str(path))
    columns["source"] = pa.array([path.name] * len(table))
    return pa.table(columns)


def space_tables(rows: pa.Table, origin: str) -> SpaceTables:
    """Convert rows with the columns ``NEEDED`` and ``OPTIONAL`` to input tables; InvalidInput as ``read_spaces``."""
    candidates, ids = _candidates(_refuse_nulls(rows, ("space", "parameters", "status"), origin), origin)
    spaces = sorted(set(pc.unique(rows["space"]).to_pylist()))
    is_measured = pc.not_equal(rows["status"], UNMEASURED)
    ids, rows = pc.filter(ids, is_measured.combine_chunks()), _refuse_nulls(rows.filter(is_measured), ("gpu",), origin)
    status = _mapped(rows["status"], STATUS, origin)
    _refuse_times(rows, status, origin)
    measured = pa.table(
        {
            **{"space": rows["space"], "gpu": rows["gpu"], "candidate_id": ids},
            **{"run": pa.array(np.ones(len(rows), dtype=np.int64)), "status": status},
            "latency_us": pc.if_else(pc.equal(status, "ok"), rows["latency_us"], pa.scalar(None, pa.float64())),
            **{name: rows[name] for name in OPTIONAL},
            **{"driver": pa.nulls(len(rows), pa.string()), "source": rows["source"]},
        }
    )
    nulls = pa.nulls(len(spaces))
    kernel_spaces = pa.table(
        {
            **{"space": pa.array(spaces, pa.string()), "kernel": pa.array(spaces, pa.string())},
            **{"doc": nulls.cast(pa.string()), "flops": nulls.cast(pa.float64())},
            **{"bytes": nulls.cast(pa.float64()), "source": pa.array([origin] * len(spaces), pa.string())},
            "licence": nulls.cast(pa.string()),
        }
    )
    return SpaceTables(kernel_spaces, candidates, _without_repeats(measured, origin))


def _refuse_nulls(rows: pa.Table, names: Sequence[str], origin: str) -> pa.Table:
    for name in names:
        if rows[name].null_count:
            raise InvalidInput(f"{origin}: {rows[name].null_count:,} rows have no {name}; remove them.")
    return rows


def _mapped(column: pa.ChunkedArray, names: dict[str, str], origin: str) -> pa.Array:
    coded = pc.dictionary_encode(column.combine_chunks())
    words = coded.dictionary.to_pylist()
    extra = [word for word in words if word not in names]
    if extra:
        raise InvalidInput(
            f"{origin}: status {extra[0]!r} is not known; use ok, compile_failed, runtime_failed, wrong_result or "
            "unmeasured."
        )
    return pa.array([names[word] for word in words], pa.string()).take(coded.indices)


def _refuse_times(rows: pa.Table, status: pa.Array, origin: str) -> None:
    times = rows["latency_us"].combine_chunks().to_numpy(zero_copy_only=False)
    ok = pc.equal(status, "ok").to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore"):
        wrong = np.flatnonzero(ok & ~(np.isfinite(times) & (times > 0)))
    if len(wrong):
        value = times[wrong[0]]
        problem = "no time" if math.isnan(value) else f"the time {value:g} us"
        raise InvalidInput(
            f"{origin}: {len(wrong):,} row{'s' if len(wrong) > 1 else ''} with status ok must have a finite time above "
            f"0, but row {wrong[0] + 1} has {problem}; correct or remove them."
        )


def _candidates(rows: pa.Table, origin: str) -> tuple[pa.Table, pa.Array]:
    """Return ``kernel_candidates`` in order of space and id, and the candidate id of every row."""
    coded = pc.dictionary_encode(rows["parameters"].combine_chunks())
    texts = coded.dictionary.to_pylist()
    parsed = [_parameters(text, origin) for text in texts]
    names = [identity(parameters) for parameters in parsed]
    ids = pa.array(names, pa.string()).take(coded.indices)
    pairs = pa.table({"space": rows["space"], "candidate_id": ids}).group_by(["space", "candidate_id"]).aggregate([])
    pairs = pairs.sort_by([("space", "ascending"), ("candidate_id", "ascending")])
    by_name = {name: json.dumps(parameters, sort_keys=True) for name, parameters in zip(names, parsed, strict=True)}
    count = len(pairs)
    table = pa.table(
        {
            **{"space": pairs["space"], "candidate_id": pairs["candidate_id"]},
            "parameters": pa.array([by_name[name] for name in pairs["candidate_id"].to_pylist()], pa.string()),
            **{"source_text": pa.nulls(count, pa.string()), "parent_id": pa.nulls(count, pa.string())},
            **{"proposer": pa.array(["pool"] * count), "round": pa.nulls(count, pa.int64())},
        }
    )
    return table, ids


def _parameters(text: str, origin: str) -> dict[str, Any]:
    try:
        parameters = parse_json(text, InvalidInput)
    except InvalidInput:
        parameters = None
    if not isinstance(parameters, dict) or not all(
        isinstance(value, int | float | str) for value in parameters.values()
    ):
        raise InvalidInput(f"{origin}: parameters {text[:60]!r} are no JSON object of numbers and words; correct them.")
    return parameters


def identity(parameters: dict[str, Any]) -> str:
    """Return the id of a configuration: its parameters sorted by name."""
    return ",".join(f"{name}={_value(parameters[name])}" for name in sorted(parameters))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _without_repeats(measured: pa.Table, origin: str) -> pa.Table:
    """Drop repeated rows of a configuration; InvalidInput where their times differ."""
    key = ["space", "gpu", "candidate_id"]
    groups = measured.group_by(key).aggregate([("latency_us", "min"), ("latency_us", "max"), ("status", "count")])
    if len(groups) == len(measured):
        return measured
    differ = groups.filter(pc.not_equal(groups["latency_us_min"], groups["latency_us_max"]))
    if len(differ):
        row = differ.slice(0, 1).to_pylist()[0]
        raise InvalidInput(
            f"{origin}: {len(differ):,} configurations have two different times, such as {row['candidate_id']} of "
            f"{row['space']} on {row['gpu']} ({row['latency_us_min']:g} and {row['latency_us_max']:g} us); keep one."
        )
    return (
        measured.group_by(key, use_threads=False)
        .aggregate([(name, "first") for name in measured.column_names if name not in key])
        .rename_columns([*key, *(name for name in measured.column_names if name not in key)])
    )


def write_space(rows: Iterable[dict[str, Any]], columns: Sequence[str], target: Path) -> None:
    """Write rows of search spaces as a Parquet file, atomically; RunFailed: it cannot be written."""
    from kernelsight.caches.durable import durable_file

    types = {**dict.fromkeys(TEXTS, pa.string()), "latency_us": pa.float64(), **OPTIONAL, "source": pa.string()}
    table = pa.Table.from_pylist(list(rows), pa.schema([(name, types[name]) for name in columns]))
    with durable_file(target) as draft:
        pq.write_table(table, draft, compression="zstd")


def chosen_space(tables: SpaceTables, name: str | None) -> str:
    """Return the space ``name``, or the only one; InvalidInput: unknown, or several without a name."""
    spaces = tables.kernel_spaces["space"].to_pylist()
    if name is None and len(spaces) == 1:
        return spaces[0]
    if name is None:
        raise InvalidInput(f"the file has {len(spaces)} search spaces; choose one by --kernel: {', '.join(spaces)}.")
    if name not in spaces:
        close = " or ".join(nearest(name, spaces)) or ", ".join(spaces[:8])
        raise InvalidInput(f"unknown search space {name!r}; use {close}.")
    return name
