"""How often highest rates found by `find_rates` keep their objectives in longer runs: ``python benches/rates.py``.

    python benches/rates.py [--cases N] [--seed S] [--checks N] [-o FILE.json]

Draws deployments, lengths and objectives, finds the highest steady rate of each (`find_rates`), and simulates it with
ten times the prompts and other seeds: at the rate itself, and at the lower end of its range. Prints the share of these
runs in which every objective holds, and the CPU seconds of the search per deployment.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

from record import record

import kernelsight as ks
from kernelsight.present.output import as_text
from kernelsight.session import Session

MODELS = (
    "qwen3-8b",
    "qwen3-32b",
    "qwen3-32b-fp8",
    "llama-3.1-8b",
    "qwen3-30b-a3b",
    "gpt-oss-120b",
    "mixtral-8x7b-v0.1",
)
GPUS = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "l40s")
PROMPTS, OUTPUTS = (128, 512, 1024, 2048, 4096, 8192), (32, 128, 256, 500, 1000)
STATISTICS = {"ttft": ("p90", "p95", "p99", "mean"), "tpot": ("mean", "p50", "p90", "p99"), "e2e": ("p90", "p95")}
FIRST_CHECK = 77


def drawn(source: random.Random) -> dict[str, Any]:
    """Return the flags of a random deployment and of the lengths of its load."""
    row = {"model": source.choice(MODELS), "gpu": source.choice(GPUS), "tensor_parallel_size": source.choice((1, 2, 4))}
    row |= {"input_len": source.choice(PROMPTS), "output_len": source.choice(OUTPUTS), "seed": source.randrange(1000)}
    row |= {"range_ratio": source.choice((1.0, 0.8, 0.3)), "burstiness": source.choice((1.0, 1.0, 0.5))}
    return row


def objectives(source: random.Random, alone: dict[str, Any]) -> dict[str, float]:
    """Return one or two random objectives, as multiples of the latencies of single requests ``alone``."""
    chosen = source.sample(sorted(STATISTICS), source.choice((1, 2)))
    factors = {"ttft": (2.0, 12.0), "tpot": (1.2, 3.0), "e2e": (1.3, 4.0)}
    slo = {}
    for metric in chosen:
        statistic = source.choice(STATISTICS[metric])
        slo[f"{metric}_{statistic}_ms"] = round(alone[f"{metric}_p50_ms"] * source.uniform(*factors[metric]), 1)
    return slo


def check(session: Session, row: dict[str, Any], rate: float, slo: dict[str, float], checks: int) -> list[bool]:
    """Return whether each of ``checks`` runs with other seeds keeps the objectives at a rate."""
    rows = [row | {"request_rate": rate, "seed": row["seed"] + FIRST_CHECK + number} for number in range(checks)]
    return session.sweep(rows, slo=slo).summary["meets_slo"].to_pylist()


def main() -> None:
    """Find and check the rates of random deployments, print the shares, and record them with ``--record``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=40, metavar="N", help="deployments (default: 40)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the random cases (default: 0)")
    parser.add_argument("--checks", type=int, default=3, metavar="N", help="runs that check each rate (default: 3)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write figures as JSON")
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    arguments = parser.parse_args()
    source, rows = random.Random(arguments.seed), []
    with ks.connect() as session:
        while len(rows) < arguments.cases:
            row = drawn(source)
            (alone,) = session.sweep([row | {"max_concurrency": 1, "num_prompts": 16}]).summary.to_pylist()
            if alone["status"] != "served" or alone["completed"] < 16:
                continue
            slo = objectives(source, alone)
            started = time.process_time()
            (answer,) = session.find_rates([row], slo).to_pylist()
            spent = time.process_time() - started
            if answer["max_request_rate"] is None:
                continue
            longer = row | {"num_prompts": 10 * answer["num_prompts"]}
            kept, low = (
                check(session, longer, answer[name], slo, arguments.checks) for name in ("max_request_rate", "rate_low")
            )
            rows.append(
                {
                    **{name: row[name] for name in ("model", "gpu", "tensor_parallel_size", "input_len", "output_len")},
                    "objectives": " ".join(f"{name[:-3]}:{most:g}" for name, most in slo.items()),
                    **{name: answer[name] for name in ("max_request_rate", "rate_low", "rate_high", "steady")},
                    "num_prompts": answer["num_prompts"],
                    **{"kept": sum(kept) / len(kept), "kept_low": sum(low) / len(low), "cpu_s": spent},
                }
            )
            print(as_text(rows[-1:], list(rows[-1])).splitlines()[-1], flush=True)
    shares = {name: sum(row[name] for row in rows) / len(rows) for name in ("kept", "kept_low")}
    cpu_s = [row["cpu_s"] for row in rows]
    print(
        f"{len(rows)} rates: kept at the rate {shares['kept']:.1%}, at its lower end {shares['kept_low']:.1%}; ",
        end="",
    )
    print(f"CPU seconds per deployment, mean {sum(cpu_s) / len(cpu_s):.2f}, largest {max(cpu_s):.2f}")
    if arguments.record:
        figures = {"cases": len(rows), "checks": arguments.checks, "seed": arguments.seed, **shares}
        figures |= {"cpu_s": {"mean": round(sum(cpu_s) / len(cpu_s), 2), "largest": round(max(cpu_s), 1)}}
        record("rates", figures, f"python benches/rates.py --cases {len(rows)} --seed {arguments.seed}")
    if arguments.output:
        Path(arguments.output).write_text(json.dumps({**shares, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
