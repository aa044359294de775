"""Speed of lowering to kernel calls, of their latencies and of step costs: ``python benches/speed.py``.

Each figure, in rows per second, is the fastest of several runs; every run that computes tables starts with a new
session.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from record import record

from kernelsight.forward.forward_step import predict_calls
from kernelsight.kernels import blocks
from kernelsight.kernels.families import LOWERED
from kernelsight.kernels.latency import latencies
from kernelsight.kernels.pricing_tables import PricingTables
from kernelsight.session import Session, connect

MODELS = (
    {"model": "llama-3.1-8b", "tp": 1, "ep": 1},
    {"model": "qwen3-32b", "tp": 2, "ep": 1},
    {"model": "mixtral-8x7b-v0.1", "tp": 2, "ep": 1},
    {"model": "deepseek-v3", "tp": 8, "ep": 8},
    {"model": "gpt-oss-120b", "tp": 4, "ep": 1},
)
GPUS = ("h100_sxm", "h200_sxm", "b200_sxm", "gb200", "b300_sxm")
ENGINES = ("vllm", "sglang")
PRICES = ("deployment_settings", "gpus", "fabrics", "eta_coefficients", "kernel_implementations", "dies", "gpu_power")
BULK_ROWS = 1_000_000
# column of each family's calls that grows with the tokens of a step, and its largest value
TOKENS = {"gemm": "m", "prefill_attention": "new_tokens", "decode_attention": "context"}
LARGEST_TOKENS = 1 << 17
MIX = {"gemm": 0.4, "prefill_attention": 0.2, "decode_attention": 0.4}


def deployments(count: int) -> pa.Table:
    """Return ``count`` different deployments, at most 50: ordered by engine, GPU, model."""
    combinations = [(engine, gpu, model) for engine in ENGINES for gpu in GPUS for model in MODELS]
    rows = [
        {"deployment_id": f"{model['model']}-{gpu}-{engine}", **model, "gpu": gpu, "pp": 1, "dp": 1, "engine": engine}
        for engine, gpu, model in combinations[:count]
    ]
    return pa.Table.from_pylist(rows)


def fastest(run: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Return the wall and process seconds of the run with the least wall time."""
    times = []
    for _ in range(repeats):
        wall, process = time.perf_counter(), time.process_time()
        run()
        times.append((time.perf_counter() - wall, time.process_time() - process))
    return min(times)


def fresh(count: int, *ready: str) -> Session:
    """Return a session of ``count`` deployments that has computed the tables ``ready``."""
    session = connect()
    session.give("deployments", deployments(count))
    for name in ready:
        session.table(name)
    return session


def table_times(name: str, count: int, ready: tuple[str, ...], repeats: int) -> tuple[int, float, float]:
    """Return the number of rows, wall and process seconds of computing a table from the tables ``ready``."""
    times, rows = [], 0
    for _ in range(repeats):
        with fresh(count, *ready) as session:
            times.append(fastest(lambda session=session: session.table(name), 1))
            rows = session.table(name).num_rows
    return rows, *min(times)


def session_measurements(repeats: int) -> list[dict[str, Any]]:
    """Measure lowering, all latencies, and step costs without cached tables, for 1 and 50 deployments."""
    measurements = []
    for count in (1, 50):
        size = f"{count} deployment{'s' if count > 1 else ''}"
        rows, *seconds = table_times("kernel_calls", count, ("step_shapes",), repeats)
        measurements.append(measurement(f"lowering in SQL, {size}", rows, *seconds))
        rows, *seconds = table_times("kernel_latencies", count, ("kernel_calls",), repeats)
        measurements.append(measurement(f"kernel_latencies, {size}", rows, *seconds))
        rows, wall, process = table_times("step_costs", count, (), repeats)
        measurements.append(
            measurement(f"step_costs from nothing, {size}, each", rows / count, wall / count, process / count)
        )
    return measurements


def expression_measurements(repeats: int) -> list[dict[str, Any]]:
    """Measure latencies by numpy and by JAX, Arrow in and out, over the calls of 50 deployments' step costs."""
    jax.devices()  # starts JAX, which is not part of compiling
    with fresh(50) as session:
        calls = {family: session.table(f"{family}_calls") for family in LOWERED}
        prices = PricingTables(*(session.table(name) for name in PRICES))
    mixed = {family: table for family, table in calls.items() if table.num_rows}
    measurements = []
    for name, tables in (("gemm", {"gemm": calls["gemm"]}), ("mixed families", mixed)):
        rows = sum(table.num_rows for table in tables.values())
        first = {}
        for backend, block_rows in (("numpy", 1 << 40), ("jax", blocks.BLOCK_ROWS)):

            def run(block_rows: int = block_rows, tables: dict[str, pa.Table] = tables) -> None:
                with mock.patch.object(blocks, "BLOCK_ROWS", block_rows):
                    for family, table in tables.items():
                        latencies(family, table, prices)

            first[backend] = fastest(run, 1)
            measurements.append(measurement(f"latencies by {backend}, warm, {name}", rows, *fastest(run, repeats)))
        warm_wall, warm_process = measurements[-1]["wall_s"], measurements[-1]["process_s"]
        wall, process = first["jax"][0] - warm_wall, first["jax"][1] - warm_process
        measurements.append(
            measurement(f"first run by jax, {name}, beyond a warm one (compiling or loading)", None, wall, process)
        )
    return measurements


def bulk_measurements(repeats: int) -> list[dict[str, Any]]:
    """Measure what a user's call gives, Arrow in and out, latency, interval and tier, on distinct calls of one GPU."""
    with fresh(1) as session:
        calls = {family: session.table(f"{family}_calls") for family in MIX}
        prices = PricingTables(*(session.table(name) for name in PRICES))
        measurements = []
        for name, shares in (("gemm", {"gemm": 1.0}), ("mixed families", MIX)):
            tables = {
                family: distinct(family, calls[family], int(share * BULK_ROWS)) for family, share in shares.items()
            }

            def run(tables: dict[str, pa.Table] = tables) -> None:
                for family, table in tables.items():
                    latencies(family, table, prices)

            measurements.append(measurement(f"latencies(), distinct calls: {name}", BULK_ROWS, *fastest(run, repeats)))
        with tempfile.TemporaryDirectory() as folder:
            path, rows = str(Path(folder) / "calls.parquet"), BULK_ROWS // 4
            pq.write_table(file_of(distinct("gemm", calls["gemm"], rows)), path)
            seconds = fastest(lambda: predict_calls(session, path, GPUS[0], None), repeats)
            measurements.append(measurement("predict_calls(), a file of distinct calls: gemm", rows, *seconds))
    return measurements


def distinct(family: str, calls: pa.Table, rows: int) -> pa.Table:
    """Return ``rows`` calls with different sizes: the calls given, repeated, each with another number of tokens."""
    table = calls.take(pa.array(np.resize(np.arange(calls.num_rows), rows)))
    column = TOKENS[family]
    before, tokens = table[column].to_numpy(), 1 + np.random.default_rng(0).permutation(rows) % LARGEST_TOKENS
    table = table.set_column(table.column_names.index(column), column, pa.array(tokens))
    for name in {"flops", "bytes", "visible_pairs"} & set(table.column_names):
        work = table[name].to_numpy() * tokens / np.maximum(before, 1)
        table = table.set_column(table.column_names.index(name), name, pa.array(work))
    return table


def file_of(calls: pa.Table) -> pa.Table:
    """Return products as the columns that ``predict --calls`` reads."""
    sizes = [calls[name].combine_chunks().cast(pa.int64()) for name in ("m", "n", "k")]
    shape = pa.StructArray.from_arrays(sizes, ["m", "n", "k"])
    return pa.table(
        {
            "family": pa.repeat("gemm", calls.num_rows),
            "shape": shape,
            **{name: calls[name] for name in ("name", "count", "engine", "math", "format", "flops", "bytes")},
        }
    )


def measurement(name: str, rows: float | None, wall: float, process: float) -> dict[str, Any]:
    """Return one row of the report; ``rows_per_s`` is of wall time."""
    speeds = {"rows_per_s": wall, "rows_per_cpu_s": process}
    row = {"measured": name, "rows": rows, "wall_s": wall, "process_s": process}
    return row | {name: None if rows is None else rows / seconds for name, seconds in speeds.items()}


def show(measurements: list[dict[str, Any]]) -> None:
    """Print the measurements as a table."""
    width = max(len(row["measured"]) for row in measurements)
    print(f"{'measured':{width}} {'rows':>9} {'wall ms':>9} {'CPU ms':>9} {'rows/s':>12} {'rows/CPU-s':>12}")
    for row in measurements:
        names = ("rows", "rows_per_s", "rows_per_cpu_s")
        rows, speed, cpu_speed = ("" if row[name] is None else f"{row[name]:,.0f}" for name in names)
        times = f"{row['wall_s'] * 1e3:9,.1f} {row['process_s'] * 1e3:9,.1f}"
        print(f"{row['measured']:{width}} {rows:>9} {times} {speed:>12} {cpu_speed:>12}")


def figures_of(measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures that the pages show: rows per CPU-second of latencies and of lowering 50 deployments."""
    # in the order of bulk_measurements
    calls = zip(("gemm", "mixed", "predict_calls"), measurements, strict=False)
    figures: dict[str, Any] = {"per_cpu_s": {name: row["rows_per_cpu_s"] for name, row in calls}}
    lowered = [row["rows_per_cpu_s"] for row in measurements if row["measured"] == "lowering in SQL, 50 deployments"]
    return figures | {"lowering": lowered[0] if lowered else None}


def main() -> None:
    """Measure and print; write and record as the flags say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json", help="also write the measurements as JSON")
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the fastest counts (default 3)")
    parser.add_argument("--bulk-only", action="store_true", help="only the calls of a user")
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats is {arguments.repeats}; give at least 1.")
    measurements = bulk_measurements(arguments.repeats)
    if not arguments.bulk_only:
        measurements += expression_measurements(arguments.repeats) + session_measurements(arguments.repeats)
    show(measurements)
    if arguments.record:
        record("speed_kernels", figures_of(measurements), f"python benches/speed.py --repeats {arguments.repeats}")
    if arguments.output:
        arguments.output.write_text(json.dumps(measurements, indent=2) + "\n")


if __name__ == "__main__":
    main()
