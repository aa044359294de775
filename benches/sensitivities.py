"""Errors of derivatives of latencies, against central differences: ``python benches/sensitivities.py``.

    python benches/sensitivities.py --scenarios 50 --seed 3 -o part_3.json     (in parts: 50 take 2 CPU-minutes)
    python benches/sensitivities.py --parts part_*.json --record

A random scenario is simulated on its GPU, and on two GPUs with 1 % more and 1 % less of one fact. Prints for each
method of ``scenario_sensitivities`` the distance of its elasticities from these central differences.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from record import record

import kernelsight as ks
from kernelsight.errors import InvalidInput

MODELS = ("qwen3-8b", "llama-3.1-8b", "qwen3-14b", "qwen3-30b-a3b")
GPUS = ("h100_sxm", "a100_sxm", "h200_sxm", "l40s")
FACTS = ("memory_bandwidth_bytes_per_s", "bf16_flops_per_s", "sm_clock_hz")
METRICS = ("ttft_mean_ms", "ttft_p50_ms", "tpot_mean_ms", "tpot_p50_ms", "e2e_mean_ms", "output_throughput")
STEP = 0.01
# elasticities within this of central differences count as equal
CLOSE = 0.02


def drawn(random: np.random.Generator) -> dict[str, Any]:
    """Return the flags of a random scenario: all requests at once, a closed loop, or a rate."""
    flags: dict[str, Any] = {"model": str(random.choice(MODELS)), "gpu": str(random.choice(GPUS))}
    flags |= {"num_prompts": 100, "input_len": int(2 ** random.uniform(6, 12)), "range_ratio": 0.5}
    flags |= {"output_len": int(2 ** random.uniform(4, 8)), "seed": int(random.integers(1000))}
    kind = random.integers(3)
    if kind == 0:
        return flags | {"request_rate": math.inf}
    if kind == 1:
        return flags | {"max_concurrency": int(2 ** random.uniform(0, 6))}
    return flags | {"request_rate": float(2 ** random.uniform(-2, 4))}


def figures(flags: dict[str, Any], fact: str, factor: float) -> dict[str, Any]:
    """Return the summary of a scenario on its GPU with ``factor`` times a fact."""
    with ks.connect() as session:
        gpus = session.table("gpus")
        factors = pc.if_else(pc.equal(gpus["gpu"], flags["gpu"]), factor, 1.0)
        index = gpus.column_names.index(fact)
        session.give("gpus", gpus.set_column(index, fact, pc.multiply(gpus[fact], factors)))
        return session.simulate(**flags).table("scenario_summary").to_pylist()[0]


def compared(flags: dict[str, Any], fact: str) -> list[dict[str, Any]]:
    """Return each metric's elasticity with one fact, and its central difference."""
    with ks.connect() as session:
        sensitivities = session.simulate(**flags).table("scenario_sensitivities").to_pylist()
    more, less = (figures(flags, fact, factor) for factor in (1.0 + STEP, 1.0 - STEP))
    return [
        flags
        | {name: row[name] for name in ("fact", "metric", "method", "elasticity")}
        | {"difference": math.log(more[row["metric"]] / less[row["metric"]]) / math.log((1 + STEP) / (1 - STEP))}
        for row in sensitivities
        if row["fact"] == fact and row["metric"] in METRICS and more[row["metric"]] and less[row["metric"]]
    ]


def drawn_flags(row: dict[str, Any]) -> dict[str, Any]:
    """Return the flags of a row's scenario."""
    compared_by = ("fact", "metric", "method", "elasticity", "difference")
    return {name: value for name, value in row.items() if name not in compared_by}


def measure(scenarios: int, seed: int) -> list[dict[str, Any]]:
    """Return the rows of ``scenarios`` random scenarios."""
    random, rows, count = np.random.default_rng(seed), [], 0
    while count < scenarios:
        try:
            rows += compared(drawn(random), str(random.choice(FACTS)))
        except InvalidInput:  # a model that does not fit the GPU
            continue
        count += 1
    return rows


def distances(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return by method and metric the median and p90 distance of elasticities from central differences."""
    table = []
    for method in sorted({row["method"] for row in rows}):
        for metric in METRICS:
            pairs = [row for row in rows if (row["method"], row["metric"]) == (method, metric)]
            distance = np.abs([row["elasticity"] - row["difference"] for row in pairs])
            if distance.size:
                figures = {"n": distance.size, "median": np.median(distance), "p90": np.quantile(distance, 0.9)}
                within = {"within": np.mean(distance <= CLOSE)}
                table.append({"method": method, "metric": metric} | figures | within)
    return table


def main() -> None:
    """Compare random scenarios and print the distances; record them with ``--record``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", nargs="+", type=Path, help="rows that earlier runs wrote by -o, instead of new ones")
    parser.add_argument("-o", "--output", help="also write the rows as JSON")
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    arguments = parser.parse_args()
    if arguments.parts:
        rows = [row for part in arguments.parts for row in json.loads(part.read_text(encoding="utf-8"))]
    else:
        rows = measure(arguments.scenarios, arguments.seed)
    table = distances(rows)
    for row in table:
        print(
            f"{row['method']:12} {row['metric']:18} n {row['n']:4}  median {row['median']:.4f}  "
            f"p90 {row['p90']:.4f}  within {CLOSE}: {row['within']:.0%}"
        )
    if arguments.record:
        scenarios = len({json.dumps(drawn_flags(row), sort_keys=True) for row in rows})
        figures = {"scenarios": scenarios, "step": STEP, "close": CLOSE, "rows": table}
        record("sensitivities", figures, "python benches/sensitivities.py --parts PART ... --record")
    if arguments.output:
        Path(arguments.output).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
