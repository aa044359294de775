"""`kernelsight predict`: predicts one forward step, kernel by kernel, or the latencies of a table of kernel calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernelsight.cli.options import (
    TABLE_ENDINGS,
    columns,
    deployment_flags,
    launch_line,
    open_session,
)
from kernelsight.dataflow.rows import python_rows
from kernelsight.errors import InvalidInput
from kernelsight.forward.forward_step import Prediction
from kernelsight.present.output import (
    PAGE_ENDINGS,
    as_csv,
    as_json,
    check_ending,
    note,
    print_rows,
    write_table,
    write_text,
)
from kernelsight.present.pages.predict import calls_page, counted
from kernelsight.present.show import HTML, show
from kernelsight.scenario.scenario_rows import resolve_gpu

COLUMNS = [
    "family",
    "name",
    "count",
    "shape",
    "flops",
    "bytes",
    "roofline_us",
    "bound",
    "eta",
    "latency_us",
    "p05_us",
    "p95_us",
    "share",
    "loss_us",
    "loss_share",
    "tier",
    "energy_mj",
]


def run(arguments: Any) -> None:
    """Predict the step or the calls, print them, and write the kernels."""
    if arguments.calls is not None:
        _run_calls(arguments)
        return
    if arguments.columns:
        raise InvalidInput("--columns names the columns of the table of --calls; give that too.")
    target = check_ending(arguments.output, PAGE_ENDINGS)
    flags = deployment_flags(arguments)
    line = launch_line(arguments, flags)
    with open_session(arguments) as session:
        sizes = {
            "batch_size": arguments.batch_size,
            "input_len": arguments.input_len,
            "context_len": arguments.context_len,
        }
        prediction = Prediction.of(session, flags, arguments.phase or "decode", sizes)
        step = prediction.as_dict()
        if target and target.suffix == ".duckdb":
            session.save(
                target,
                [
                    "deployments",
                    "step_shapes",
                    "kernel_calls",
                    "kernel_latencies",
                    "step_totals",
                    "memory_plan",
                    "deployment_tiers",
                    "deployment_evidence",
                    "assumptions",
                ],
            )
        elif target and target.suffix != HTML:
            _write_kernels([{name: kernel[name] for name in COLUMNS} for kernel in step["kernels"]], target, COLUMNS)
        show(prediction.page, arguments.format, target, lambda: as_csv(step["kernels"], COLUMNS), line)


def _write_kernels(rows: list[dict[str, Any]], target: Path, names: list[str]) -> None:
    """Write kernels to a file; a shape has only its own dimensions, except in Parquet, where it has those of all."""
    if target.suffix == ".csv":
        write_text(as_csv(rows, names), target)
    elif target.suffix == ".json":
        write_text(as_json(rows) + "\n", target)
    else:
        import pyarrow as pa

        write_table(pa.Table.from_pylist(rows), target)


def _run_calls(arguments: Any) -> None:
    """Predict the kernel calls of --calls."""
    from kernelsight.forward.measured_kernels import predict_kernels

    step_flags = {
        **deployment_flags(arguments),
        **{name: getattr(arguments, name) for name in ("phase", "batch_size", "input_len", "context_len")},
    }
    unusable = [name for name, value in step_flags.items() if value is not None and name not in ("gpu", "tier")]
    if unusable:
        raise InvalidInput(
            f"--calls reads its own kernels; remove --{', --'.join(name.replace('_', '-') for name in unusable)}."
        )
    if arguments.gpu is None:
        raise InvalidInput("--calls needs --gpu, the GPU on which the kernels run; set it.")
    target = check_ending(arguments.output, (*TABLE_ENDINGS, HTML))
    with open_session(arguments) as session:
        table = predict_kernels(
            session, Path(arguments.calls), arguments.gpu, arguments.tier, columns(arguments.columns)
        )
        gpu = resolve_gpu(session, arguments.gpu)
        gpu_row = next(row for row in session.table("gpus").to_pylist() if row["gpu"] == gpu)
    rows = python_rows(table)
    for row in rows:
        if "shape" in row:
            row["shape"] = {name: size for name, size in row["shape"].items() if size is not None}
    if target and target.suffix == ".parquet":
        write_table(table, target)
    elif target and target.suffix != HTML:
        _write_kernels(rows, target, table.column_names)
    if target and target.suffix != HTML:
        note(f"wrote {counted(table.num_rows, 'row')} to {target}")
    if arguments.format == "json":
        print_rows(rows, table.column_names, "json")
    form = "" if arguments.format == "json" else arguments.format
    show(lambda: calls_page(rows, gpu_row), form, target, lambda: as_csv(rows, table.column_names))
