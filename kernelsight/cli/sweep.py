"""`kernelsight sweep`: a grid of scenarios in, one result table out; resumable, on one machine or under Ray."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.cli.options import (
    add_flags,
    add_goodput,
    add_kernel_model,
    add_no_files,
    add_output,
    launch_line,
    open_session,
)
from kernelsight.dataflow.durable import locked
from kernelsight.errors import InvalidInput
from kernelsight.report.output import (
    as_csv,
    as_json,
    as_text,
    check_ending,
    note,
    show_number,
    terminal_width,
    write_table,
)
from kernelsight.scenario.flags import DEPLOYMENT
from kernelsight.scenario.grid import read_grid
from kernelsight.scenario.objectives import PRICE, cheapest, parse_objectives, parse_slo
from kernelsight.scenario.plan import gpu_assumptions
from kernelsight.scenario.prices import priced, read_prices
from kernelsight.sweeps.intervals import interval_columns
from kernelsight.sweeps.partitions import Store, import_ray
from kernelsight.sweeps.runs import SWEEP, WhatIf
from kernelsight.sweeps.sweep import Execution, Progress

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.session import Session

SHOWN = (
    *("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "output_throughput", "goodput"),
    *("output_throughput_per_gpu", "output_throughput_per_user", "cost_per_million_tokens", "meets_slo"),
)
HEADERS = {
    "tensor_parallel_size": "TP",
    "pipeline_parallel_size": "PP",
    "data_parallel_size": "DP",
    "request_rate": "req/s",
    "max_concurrency": "concurrency",
    "max_num_batched_tokens": "step tokens",
    "max_num_seqs": "seats",
    "max_request_rate": "highest req/s",
    "rate_low": "low",
    "rate_high": "high",
    **{
        f"{metric}_{statistic}_ms": f"{metric.upper()} {statistic} ms"
        for metric in ("ttft", "tpot", "itl", "e2e", "queue")
        for statistic in ("mean", "p50", "p90", "p99")
    },
    "output_throughput": "tok/s",
    "output_throughput_per_gpu": "tok/s/GPU",
    "output_throughput_per_user": "tok/s/user",
    "goodput": "good req/s",
    "cost_per_million_tokens": "$/M tokens",
    "meets_slo": "meets SLO",
}
# what --find-rate finds; the requests that it took are no flag that rows are told apart by
FOUND = ("max_request_rate", "rate_low", "rate_high", "steady")
MOST_SHOWN = 40
KINDS = ("", "input_", "output_")


def declare(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    verb.add_argument(
        "grid",
        metavar="GRID",
        help="JSON file of axes (flags of simulate with underscores, each a scalar or a list), Parquet or CSV file of "
        "scenarios, or a SQL query; the column price_per_gpu_hour is optional",
    )
    add_flags(verb, DEPLOYMENT[:1])
    add_kernel_model(verb)
    add_no_files(verb)
    add_goodput(verb)
    verb.add_argument(
        "--slo", nargs="+", metavar="METRIC:MS", help="objectives per scenario, such as ttft_p99:MS tpot_mean:MS"
    )
    verb.add_argument("--resume", action="store_true", help="continue an interrupted sweep with the same -o FILE")
    verb.add_argument(
        "--workers", type=int, default=1, metavar="N", help="number of processes (default: threads of this process)"
    )
    verb.add_argument("--executor", choices=("local", "ray"), default="local", help="where partitions run")
    verb.add_argument("--partition-requests", type=int, metavar="N", help="requests simulated per partition")
    verb.add_argument(
        "--no-intervals",
        action="store_true",
        help="without 90 %% intervals of TTFT, TPOT and throughput, which take three simulations more per scenario",
    )
    verb.add_argument("--find-rate", action="store_true", help="find the highest request rate per row that meets --slo")
    verb.add_argument(
        "--at-rate",
        type=float,
        metavar="R",
        help="with --find-rate: the deployment that serves R requests per second at the lowest cost per token",
    )
    verb.add_argument(
        "--prices",
        metavar="P",
        help="dollars an hour of one GPU: g1=2.2,g2=4, or a file with gpu and price_per_gpu_hour",
    )
    add_output(verb, "also write the rows: .parquet, .csv, .json, .duckdb")


def run(arguments: Any) -> None:
    """Run the verb for parsed arguments."""
    target = check_ending(arguments.output)
    _check_words(arguments, target)
    if arguments.resume and target and target.exists() and not _parts(target).exists():
        note(f"{target} is finished: nothing is left to resume")
        return
    slo = parse_slo(arguments.slo or [])
    goodput = parse_objectives(arguments.goodput or [])
    with locked(target) if target else contextlib.nullcontext(), open_session(arguments) as session:
        session.progress = None
        rows = read_grid(session, arguments.grid)
        if launch_line(arguments, {}):
            rows = [{"launch": arguments.launch, **row} for row in rows]
        for sentence in dict.fromkeys(text for row in rows for text in gpu_assumptions(session, row)):
            note(sentence)
        if arguments.prices:
            rows = priced(session, rows, read_prices(session, arguments.prices))
        if arguments.find_rate:
            _find_rates(session, rows, slo, goodput, arguments, target)
            return
        execution = _execution(arguments, target)
        found = WhatIf.of(session, rows, goodput=goodput, slo=slo, execution=execution)
        if target and target.suffix == ".duckdb":
            found.save(target)
        elif target:
            write_table(found.summary, target)
        if execution.folder:
            Store(execution.folder).remove()
        _print(found.summary, found.pareto_front, arguments)


def _find_rates(
    session: Session,
    rows: list[dict[str, Any]],
    slo: dict[str, float],
    goodput: dict[str, float],
    arguments: Any,
    target: Path | None,
) -> None:
    """Search the highest rates, and print and write them."""
    from kernelsight.dataflow.storage import save_file
    from kernelsight.sweeps.find_rate import find_rates

    report = _show_rows if sys.stderr.isatty() else None
    table = find_rates(session, rows, slo, goodput=goodput, report=report)
    if target and target.suffix == ".duckdb":
        save_file(target, session.graph.contracts, {SWEEP: table})
    elif target:
        write_table(table, target)
    _print(table, None, arguments)


def _execution(arguments: Any, target: Path | None) -> Execution:
    """Return how the sweep is to be run; finished partitions lie beside the file that is written."""
    from kernelsight.session import connect

    return Execution(
        folder=_parts(target) if target else None,
        resume=arguments.resume,
        workers=arguments.workers,
        executor=arguments.executor,
        partition_requests=arguments.partition_requests,
        connect=connect,
        report=_show_progress if sys.stderr.isatty() else None,
        intervals=not arguments.no_intervals,
    )


def _parts(target: Path) -> Path:
    """Return the folder of finished partitions beside the file that is written."""
    return target.with_name(f"{target.name}.parts")


def _show_progress(progress: Progress) -> None:
    """Write on the terminal how many scenarios are served, and how long the others may take."""
    done, total, spent = progress
    text = f"{done:,} of {total:,} scenarios, {done / spent:,.0f} a second, {spent / done * (total - done):.0f} s left"
    print(f"\r\033[K  {text}", end="\n" if done == total else "", file=sys.stderr, flush=True)


def _show_rows(done: int, total: int) -> None:
    """Write on the terminal of how many rows the rate is found."""
    print(
        f"\r\033[K  rates of {done:,} of {total:,} rows", end="\n" if done == total else "", file=sys.stderr, flush=True
    )


def _check_words(arguments: Any, target: Path | None) -> None:
    for name in ("workers", "partition_requests"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise InvalidInput(f"--{name.replace('_', '-')} is {value}; give at least 1.")
    if arguments.resume and target is None:
        raise InvalidInput("--resume needs -o FILE, the file of the interrupted sweep.")
    if arguments.executor == "ray":
        import_ray()
    if arguments.find_rate and not arguments.slo:
        raise InvalidInput(
            "--find-rate needs --slo, the objectives that the rate must meet, such as --slo ttft_p99:500."
        )
    if arguments.find_rate and arguments.resume:
        raise InvalidInput("--find-rate cannot be resumed; remove --resume.")
    if arguments.at_rate is not None and not arguments.find_rate:
        raise InvalidInput("--at-rate needs --find-rate; without it, set request_rate in the grid.")
    if arguments.at_rate is not None and not 0 < arguments.at_rate < math.inf:
        raise InvalidInput(f"--at-rate is {arguments.at_rate}; give a finite number above 0.")


def _print(table: pa.Table, front: pa.Table | None, arguments: Any) -> None:
    rows = table.to_pylist()
    if arguments.format == "csv":
        print(as_csv(rows, table.column_names), end="")
        return
    fronts = front.to_pylist() if front is not None else []
    faults = [row for row in rows if row["completed"] == 0 and row["requests"] == 0]
    answer = {"scenarios": len(rows), "served": len(rows) - len(faults), "faults": len(faults)}
    if arguments.slo and (PRICE in table.column_names or arguments.at_rate is not None):
        answer["cheapest"] = cheapest(table, arguments.at_rate)
    if arguments.format == "json":
        print(as_json({**answer, "pareto_front": fronts, "rows": rows}))
        return
    page = [f"{answer['scenarios']:,} scenarios, {answer['served']:,} served, {answer['faults']:,} cannot run"]
    flags, columns = _columns_shown(rows)
    rows.sort(key=lambda row: [(row[name] is not None, row[name] or 0) for name in flags])
    for title, shown in (("", rows), ("Pareto front, tokens/s per GPU against tokens/s per user", fronts)):
        if shown:
            page += ["", title] if title else [""]
            table = [_shown(row, columns) for row in _with_defaults(shown[:MOST_SHOWN], flags)]
            page.append(as_text(table, list(table[0]), terminal_width()))
        if len(shown) > MOST_SHOWN:
            page.append(f"... and {len(shown) - MOST_SHOWN:,} more; -o FILE keeps all, --format csv prints them")
    tiers = sorted({row["tier"] for row in rows if row.get("tier") and row["completed"]})
    if tiers:
        what = " (in brackets: 90 % intervals)" if "ttft_p99_low_ms" in rows[0] else ""
        page += ["", f"kernel latencies: {', '.join(tiers)}{what}"]
        if "unmeasured-vendor" in tiers:
            named = sorted({row["gpu"] for row in rows if row["tier"] == "unmeasured-vendor" and "gpu" in row})
            page.append(
                f"many kernels were measured on no GPU of the maker of {', '.join(named)}: general constants stand in, "
                "and may be off by a factor of 4"
            )
    if "cheapest" in answer:
        page += ["", _cheapest_said(answer["cheapest"], flags, arguments.at_rate)]
    print("\n".join(page))


def _cheapest_said(found: dict[str, Any] | None, flags: list[str], rate: float | None) -> str:
    """Return the cheapest deployment in a sentence."""
    if found is None:
        return "no deployment meets the objectives"
    named = ", ".join(f"{name} {found[name]}" for name in flags if found[name] is not None and name != PRICE)
    many = f"{found['instances']:,} instance{'s' if found['instances'] > 1 else ''}"
    what = f"{many} of {named}" if named else many
    at = "" if rate is None else f" for {rate:g} requests/s"
    if "price_per_hour" not in found:
        how = "no prices are given; --prices GPU=DOLLARS ranks by cost"
        return f"fewest GPUs{at}: {what}, {found['gpus_needed']:,} GPUs ({how})"
    costs = [f"{found[f'cost_per_million_{kind}tokens']:,.3g} $/M {kind.replace('_', ' ')}tokens" for kind in KINDS]
    return f"lowest cost per token{at}: {what}, {found['price_per_hour']:,.4g} $/h, {', '.join(costs)}"


def _shown(row: dict[str, Any], columns: list[str]) -> dict[str, Any]:
    """Return a row under short headers with units; p99 with its interval, the others are in files and JSON."""
    cells = {}
    for name in columns:
        low, high = (row.get(end) for end in interval_columns(name))
        value = row[name]
        if name.endswith("p99_ms") and low is not None and high is not None:
            value = f"{show_number(value)} ({low:,.3g}-{high:,.3g})"
        cells[HEADERS.get(name, name)] = value
    return cells


def _with_defaults(rows: list[dict[str, Any]], flags: list[str]) -> list[dict[str, Any]]:
    """Return rows in which a flag that a row leaves to the engine is called so."""
    return [row | {name: "default" for name in flags if row[name] is None} for row in rows]


def _columns_shown(rows: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Flags that differ between rows, and what is looked at: columns without a value are left out.

    The status, which is a sentence where a deployment cannot run, stands last, and only where one does.
    """
    names = list(rows[0])
    flags = names[2 : names.index("status")]
    differing = [name for name in flags if name not in FOUND and len({row[name] for row in rows}) > 1]
    if not differing:
        # rows that do not differ are named by what they are
        differing = [name for name in ("model", "gpu", "tensor_parallel_size") if rows[0].get(name) is not None]
    chosen = [name for name in (*FOUND, *SHOWN) if name in names and name not in differing]
    looked_at = [name for name in [*differing, *chosen] if any(row[name] is not None for row in rows)]
    return differing, looked_at + (["status"] if any(row["status"] != "served" for row in rows) else [])
