"""Speed of the scheduler's loop: requests and steps per CPU-second, without start-up.

    python benches/serving.py [--requests N] [--repeats N] [-o FILE.json]

Requests and step costs are prepared before the clock starts. Timed are the compiled loop that fills its records, and
the loop with its result tables. CPU time is process time of all threads. Open loops of data-parallel ranks, pipeline
stages and drafts are those whose batches change most often: they are measured by output token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from record import record

from kernelsight.present.output import as_text
from kernelsight.scenario.plan import give_plan, plan_rows
from kernelsight.serving.engine import replica
from kernelsight.serving.runs.simulate import serve_replicas, simulate_scenarios
from kernelsight.serving.runs.simulation_inputs import inputs_of_session
from kernelsight.session import connect

DEPLOYMENT = {"model": "llama-3.1-8b", "gpu": "h100_sxm"}
EXPERTS = {"model": "deepseek-r1", "gpu": "h200_sxm", "enable_expert_parallel": True}
STAGES = {"model": "llama-3.3-70b", "pipeline_parallel_size": 2, "tensor_parallel_size": 2}
DRAFTS = {"speculative_method": "ngram", "num_speculative_tokens": 3}
TABLES = frozenset(
    ("request_events", "request_statistics", "step_cost_uses", "itl_histogram", "replica_totals", "serving_windows")
)


def loads(requests: int) -> dict[str, dict[str, Any]]:
    """Return the loads by name, as flags of ``simulate``."""
    short = {"input_len": 256, "output_len": 256, "max_num_seqs": 256}
    long = {"input_len": 1024, "output_len": 1024, "max_num_seqs": 256}
    return {
        "256/256, 20 requests/s": {**short, "request_rate": 20.0, "num_prompts": requests},
        "256/256, closed loop of 128": {**short, "max_concurrency": 128, "num_prompts": requests},
        "1024/1024, closed loop of 128": {**long, "max_concurrency": 128, "num_prompts": requests},
        "1024/1024, closed loop of 256, scarce KV": {
            **long, "max_concurrency": 256, "num_prompts": requests, "kv_cache_tokens": 200_000
        },
        "8 tensor-parallel GPUs, 100 requests/s": {**EXPERTS, **open_loop(requests, 100), "tensor_parallel_size": 8},
        "8 data-parallel ranks, 100 requests/s": {**EXPERTS, **open_loop(requests, 100), "data_parallel_size": 8},
        "8 data-parallel ranks, 30 requests/s": {**EXPERTS, **open_loop(requests, 30), "data_parallel_size": 8},
        "2 pipeline stages, 20 requests/s": {**STAGES, **open_loop(requests, 20)},
        "2 pipeline stages, 5 requests/s": {**STAGES, **open_loop(requests, 5)},
        "n-gram drafts, 40 requests/s": {**DRAFTS, **open_loop(requests, 40)},
        "n-gram drafts, 20 requests/s": {**DRAFTS, **open_loop(requests, 20)},
    }  # fmt: skip


def open_loop(requests: int, rate: int) -> dict[str, Any]:
    """Return flags of requests of 256 prompt and 256 output tokens that arrive at random, ``rate`` a second."""
    return {"input_len": 256, "output_len": 256, "request_rate": float(rate), "num_prompts": requests}


def cpu_seconds(work: Callable[[], object], repeats: int) -> list[float]:
    """Return the sorted CPU seconds of ``repeats`` runs of ``work``, after a warm-up run."""
    work()
    times = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return sorted(times)


def measure(name: str, flags: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Return the table row of one load."""
    with connect() as session:
        plan = plan_rows(session, [{**DEPLOYMENT, **flags}])
        give_plan(session, list(plan.deployments.values()), plan.planned)
        inputs = inputs_of_session(session.table)

        def simulate() -> None:
            """Run the simulation and make its tables."""
            tables = simulate_scenarios(inputs, TABLES)
            for name in TABLES:
                tables[name]() if callable(tables[name]) else tables[name]

        totals = session.table("replica_totals").to_pylist()
        steps, preempted = (sum(row[name] for row in totals) for name in ("steps", "preemptions"))
        calls: list[tuple] = []
        served = replica.serve_scenario

        def record_call(*arguments: Any, **keywords: Any) -> Any:
            calls.append((arguments, keywords))
            return served(*arguments, **keywords)

        replica.serve_scenario = record_call
        try:
            serve_replicas(inputs, count_uses=False)  # time windows cost 35 to 50 ns per step and belong to the tables
        finally:
            replica.serve_scenario = served
        loops = cpu_seconds(lambda: [served(*arguments, **keywords) for arguments, keywords in calls], repeats)
        loop, whole = statistics.median(loops), statistics.median(cpu_seconds(simulate, repeats))
    n = flags["num_prompts"]
    return {
        "load": name,
        "requests": n,
        "steps": steps,
        "preempted": f"{preempted / n:.1%}",
        "requests/CPU-s, loop": round(n / loop),
        "slowest": round(n / loops[-1]),
        "fastest": round(n / loops[0]),
        "steps/CPU-s, loop": round(steps / loop),
        "ns/token, loop": [round(1e9 * spent / n / flags["output_len"], 2) for spent in (loops[0], loops[-1])],
        "requests/CPU-s, with tables": round(n / whole),
    }


def main() -> None:
    """Measure every load and print the table; record it with ``--record``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("-o", "--output", help="also write the rows as JSON")
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    arguments = parser.parse_args()
    rows = [measure(name, flags, arguments.repeats) for name, flags in loads(arguments.requests).items()]
    print(as_text(rows, list(rows[0])))
    if arguments.record:
        kept = [
            {
                "load": f"{row['requests']:,} requests, {row['load']}",
                "requests_per_cpu_s": [row["slowest"], row["fastest"]],
                "with_tables": row["requests/CPU-s, with tables"],
                "steps_per_cpu_s": row["steps/CPU-s, loop"],
                "ns_per_token": row["ns/token, loop"],
            }
            for row in rows
        ]
        record("speed_serving", {"loads": kept}, f"python benches/serving.py --repeats {arguments.repeats}")
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
