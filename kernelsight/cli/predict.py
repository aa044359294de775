"""`kernelsight predict`: predicts one forward step, kernel by kernel, or the latencies of a table of kernel calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernelsight.cli.options import (
    deployment_flags,
    launch_line,
    open_session,
)
from kernelsight.cli.pages.formats_line import evidence_lines, formats_line, rests_on
from kernelsight.dataflow.rows import python_rows
from kernelsight.errors import InvalidInput
from kernelsight.forward.forward_step import predict_calls, predict_step
from kernelsight.number_format import gib, interval, number, percent, rounded
from kernelsight.present.output import (
    as_csv,
    as_json,
    check_ending,
    note,
    print_page,
    print_rows,
    table_lines,
    terminal_width,
    write_table,
    write_text,
)

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
    "tier",
    "energy_mj",
]


def run(arguments: Any) -> None:
    """Predict the step or the calls, print them, and write the kernels."""
    if arguments.calls is not None:
        _run_calls(arguments)
        return
    target = check_ending(arguments.output)
    flags = deployment_flags(arguments)
    line = launch_line(arguments, flags)
    with open_session(arguments) as session:
        sizes = {
            "batch_size": arguments.batch_size,
            "input_len": arguments.input_len,
            "context_len": arguments.context_len,
        }
        step = predict_step(session, flags, arguments.phase or "decode", sizes)
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
        elif target:
            _write_kernels([{name: kernel[name] for name in COLUMNS} for kernel in step["kernels"]], target)
        if arguments.format == "json":
            print(as_json(step | ({"launch": line.as_dict()} if line else {})))
        elif arguments.format == "csv":
            print(as_csv(step["kernels"], COLUMNS), end="")
        else:
            print_page(_as_page(step))


def _write_kernels(rows: list[dict[str, Any]], target: Path) -> None:
    """Write kernels to a file; a shape has only its own dimensions, except in Parquet, where it has those of all."""
    if target.suffix == ".csv":
        write_text(as_csv(rows, COLUMNS), target)
    elif target.suffix == ".json":
        write_text(as_json(rows) + "\n", target)
    else:
        import pyarrow as pa

        write_table(pa.Table.from_pylist(rows), target)


def _run_calls(arguments: Any) -> None:
    """Predict the kernel calls of --calls."""
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
    target = check_ending(arguments.output, (".parquet", ".csv", ".json"))
    with open_session(arguments) as session:
        table = predict_calls(session, arguments.calls, arguments.gpu, arguments.tier)
    if target:
        write_table(table, target)
        note(f"wrote {_counted(table.num_rows, 'row')} to {target}")
    else:
        print_rows(python_rows(table), table.column_names, arguments.format)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _as_page(step: dict[str, Any]) -> list[str]:
    """Return the lines of a predicted step for a terminal."""
    memory, settings = step["memory"], step["settings"]
    rows = [
        {
            **{
                name: kernel[name]
                for name in ("name", "family", "count", "shape", "bound", "roofline_us", "eta", "latency_us")
            },
            "p05_us": kernel["p05_us"],
            "p95_us": kernel["p95_us"],
            "share": percent(kernel["share"], 1),
            "energy_mj": kernel["energy_mj"],
        }
        for kernel in step["kernels"]
    ]
    lines = [
        f"{step['model']} on {step['gpu']}, tp {settings['tp']} pp {settings['pp']} dp {settings['dp']} ep "
        f"{settings['ep']}, {settings['engine']}, "
        f"{formats_line(settings)}: "
        f"{step['phase']} step of {_counted(step['tokens'], 'token')} in {_counted(step['sequences'], 'sequence')}",
        f"total {number(step['total_us'])} us (90 % interval {interval(step['p05_us'], step['p95_us'])}): "
        f"GPU {number(step['gpu_us'])} us, exposed host {number(step['host_us'])} us",
        f"energy of a GPU {number(step['energy_mj'])} mJ, {number(step['power_w']['mean'])} W (90 % interval "
        f"{interval(step['power_w']['low'], step['power_w']['high'])})",
        rests_on(step),
        *([step["cliff"]] if step["cliff"] else []),
        "",
        *table_lines(rows, list(rows[0]), terminal_width()),
        "",
        *evidence_lines(step["evidence"]),
        "",
        f"memory per GPU: {gib(memory['memory_bytes'])} GiB, usable {gib(memory['usable_bytes'])}: "
        f"weights {gib(memory['weights_bytes'])}, activations {gib(memory['activations_bytes'])}, graphs "
        f"{gib(memory['graphs_bytes'])}, KV cache {gib(memory['kv_bytes'])}",
        f"KV cache: {memory['kv_cache_tokens']:,} tokens at {rounded(memory['kv_bytes_per_token'])} bytes per token "
        f"and GPU; fits {number(memory['max_concurrency'])} requests of {settings['max_model_len']:,} tokens",
        "assumed:",
        *(f"  - {sentence}" for sentence in step["assumed"]),
    ]
    return lines
