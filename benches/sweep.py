"""Speed of sweeps: scenarios per second, time by stage, and cost by numbers of scenarios, requests and output tokens.

python benches/sweep.py [--scenarios 1000] [--repeats 5] [--parts-only] [--plot FILE.svg] [-o FILE.json]

Closed-loop scenarios of 512 requests on a grid of models x GPUs x tensor-parallel sizes x lengths x concurrency. Wall
and CPU time (all threads) include step costs, after a warm-up run. On a busy machine, compare CPU time.
docs/pictures/sweep.svg shows how the cost grows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from record import record

from kernelsight.present.output import as_text
from kernelsight.scenario.plan import give_plan, plan_rows
from kernelsight.session import Session, connect
from kernelsight.sweeps.partitions import split
from kernelsight.sweeps.sweep import sweep

MODELS = ("qwen3-8b", "llama-3.1-8b", "qwen3-32b", "qwen3-30b-a3b", "gpt-oss-20b", "llama-3.1-70b")
GPUS = ("h100_sxm", "h200_sxm", "b200_sxm", "a100_sxm")
PARALLEL = (2, 4, 8)
LENGTHS = ((1024, 1024), (8192, 1024))
CONCURRENCY = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def grid(scenarios: int, requests: int = 512, output_len: int | None = None) -> list[dict[str, Any]]:
    """Return the first ``scenarios`` scenarios of the grid, 18 per deployment."""
    axes = itertools.product(MODELS, GPUS, PARALLEL, LENGTHS, CONCURRENCY)
    rows = [
        {
            **{"model": model, "gpu": gpu, "tensor_parallel_size": size, "max_concurrency": concurrency},
            **{"num_prompts": requests, "input_len": lengths[0], "output_len": output_len or lengths[1]},
        }
        for model, gpu, size, lengths, concurrency in axes
    ]
    seeds = range(-(-scenarios // len(rows)))
    return [row | {"seed": seed} for seed in seeds for row in rows][:scenarios]


def parts_of(session: Session, rows: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Return the (wall, CPU) seconds of each stage of a sweep of one partition."""
    clock = [(time.perf_counter(), time.process_time())]

    def lap() -> tuple[float, float]:
        clock.append((time.perf_counter(), time.process_time()))
        return clock[-1][0] - clock[-2][0], clock[-1][1] - clock[-2][1]

    spent = {}
    with session.fork() as fork:
        plan = plan_rows(fork, rows)
        (part,) = split(plan, 10**9, len(rows))
        spent["plan"] = lap()
        give_plan(fork, part.deployments, part.scenarios)
        fork.compute("deployment_faults", "memory_plan", "host_settings")
        spent["deployments, faults"] = lap()
        fork.compute("load_requests")
        spent["requests"] = lap()
        fork.compute("step_costs")
        spent["step costs"] = lap()
        fork.compute("request_statistics", "itl_percentiles", "replica_totals")
        spent["loop, statistics"] = lap()
        fork.compute("scenario_summary")
        spent["summaries"] = lap()
    return spent


def seconds(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the median wall and CPU seconds (process time, all threads) of ``work``."""
    times = []
    for _ in range(repeats):
        wall, process = time.perf_counter(), time.process_time()
        work()
        times.append((time.perf_counter() - wall, time.process_time() - process))
    return tuple(map(statistics.median, zip(*times, strict=True)))


def costs_of(session: Session, repeats: int) -> list[dict[str, Any]]:
    """Return rows of the cost per scenario as scenarios, requests or output tokens grow."""
    axes = {
        "scenarios": [(scenarios, 512, 1024) for scenarios in (250, 1000, 4000)],
        "requests each": [(250, requests, 1024) for requests in (128, 512, 2048)],
        "output tokens": [(250, 512, output) for output in (256, 1024, 4096)],
    }
    rows_of_costs, spent = [], {}
    for axis, sizes in axes.items():
        for size in sizes:
            if size not in spent:
                rows = grid(*size)
                spent[size] = seconds(lambda rows=rows: sweep(session, rows), repeats)
            wall, process = spent[size]
            size_of = dict(zip(axes, size, strict=True))
            ms = 1e3 * process / size[0]
            rows_of_costs.append({"varied": axis, **size_of, "wall s": wall, "CPU s": process, "CPU ms a scenario": ms})
    return rows_of_costs


def plot(costs: list[dict[str, Any]], path: str) -> None:
    """Draw CPU time per scenario, one panel per axis that varies (needs the extra ``report``)."""
    import altair as alt

    panels = []
    for varied in dict.fromkeys(row["varied"] for row in costs):
        points = [{"size": row[varied], "ms": row["CPU ms a scenario"]} for row in costs if row["varied"] == varied]
        ticks = alt.Axis(values=[point["size"] for point in points], format=",")
        panels.append(
            alt.Chart(alt.Data(values=points))
            .mark_line(point=True)
            .encode(
                x=alt.X("size:Q", title=varied, axis=ticks, scale=alt.Scale(type="log", nice=False, padding=12)),
                y=alt.Y("ms:Q", title=None if panels else "CPU ms a scenario", scale=alt.Scale(zero=True)),
            )
            .properties(width=200, height=180)
        )
    alt.hconcat(*panels).resolve_scale(y="shared").configure_axis(grid=False).save(path, scale_factor=2)


def main() -> None:
    """Measure and print both tables; record them with ``--record``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--parts-only", action="store_true", help="omit the table of how the cost grows")
    parser.add_argument("--plot", metavar="FILE", help="also draw how the cost grows, as .svg, .png or .html")
    parser.add_argument("-o", "--output", help="also write the rows as JSON")
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    arguments = parser.parse_args()
    with connect() as session:
        rows = grid(arguments.scenarios)
        sweep(session, rows)
        laps = [parts_of(session, rows) for _ in range(arguments.repeats)]
        deployments = len({(row["model"], row["gpu"], row["tensor_parallel_size"]) for row in rows})
        times = {name: map(statistics.median, zip(*(lap[name] for lap in laps), strict=True)) for name in laps[0]}
        whole = seconds(lambda: sweep(session, rows), arguments.repeats)
        times |= {f"whole sweep, {deployments} deployments": whole}
        parts = [
            {"part": name, "wall ms": 1e3 * wall, "CPU ms": 1e3 * process} for name, (wall, process) in times.items()
        ]
        print(as_text(parts, list(parts[0])))
        print(f"\n{len(rows) / whole[0]:,.0f} scenarios/s, {len(rows) / whole[1]:,.0f} per CPU-second\n")
        costs = [] if arguments.parts_only else costs_of(session, min(arguments.repeats, 3))
        if costs:
            print(as_text(costs, list(costs[0])))
    if costs and arguments.plot:
        plot(costs, arguments.plot)
    if arguments.record:
        row_of = {(row["scenarios"], row["requests each"], row["output tokens"]): row for row in costs}
        recorded_rows = [
            [
                f"{n:,} scenarios of {each:,} requests, {tokens:,} output tokens",
                n / row["wall s"],
                row["CPU ms a scenario"],
            ]
            for (n, each, tokens), row in row_of.items()
        ]
        record("speed_sweep", {"rows": recorded_rows}, "python benches/sweep.py")
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            json.dump({"parts": parts, "costs": costs}, file, indent=1)


if __name__ == "__main__":
    main()
