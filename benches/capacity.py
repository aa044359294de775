"""Accuracy of the capacity that `simulate` computes from step costs, against the highest steady rate found by search.

    python benches/capacity.py [--cases N] [--seed S] [-o FILE.json] [--at-most N] [--record]

Draws deployments and lengths (`rates.py`) of each engine, searches the highest steady rate of each with an objective
that only an overloaded engine misses (`find_rates`), and compares it with the `capacity` that `simulate` computes from
step costs for 200 requests. Prints both, their ratio, and the share of cases within 5 %. About ten CPU-seconds per
case: with ``-o`` a call continues where the last one ended, and ``--at-most`` limits the number of cases that it adds.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rates import drawn
from record import OWN, record

import kernelsight as ks
from kernelsight.present.output import as_text
from kernelsight.session import Session

STEADY = {"ttft_p50_ms": 1e7}
NEAR = 0.05
FLAGS = ("model", "gpu", "tensor_parallel_size", "engine", "input_len", "output_len")
# used in turn; with thousands of sequences, the default of the last two, a search simulates for minutes
ENGINES = (
    {"engine": "vllm"},
    {"engine": "vllm"},
    {"engine": "sglang", "max_num_seqs": 256},
    {"engine": "trtllm", "max_num_seqs": 256},
)


def case(session: Session, number: int, seed: int) -> dict[str, Any]:
    """Return capacity and highest rate of case ``number``: of its first drawn deployment that can run."""
    source = random.Random(f"capacity {seed} {number}")
    while True:
        row = compared(session, drawn(source) | ENGINES[number % len(ENGINES)])
        if row:
            return row


def compared(session: Session, row: dict[str, Any]) -> dict[str, Any] | None:
    """Return a deployment's capacity and highest steady rate, requests per second; None if it cannot run."""
    (alone,) = session.sweep([row | {"max_concurrency": 1, "num_prompts": 16}]).summary.to_pylist()
    if alone["status"] != "served" or alone["completed"] < 16:
        return None
    (answer,) = session.find_rates([row], STEADY).to_pylist()
    rate = answer["max_request_rate"]
    if rate is None:
        return None
    return {name: row[name] for name in FLAGS} | capacity_at(session, row, rate)


def capacity_at(session: Session, row: Mapping[str, Any], rate: float) -> dict[str, Any]:
    """Return the capacity that `simulate` reports for 200 requests at ``rate``, its range, and their ratio."""
    (short,) = session.sweep([{**row, "request_rate": rate, "num_prompts": 200}]).summary.to_pylist()
    names = ("capacity", "capacity_low", "capacity_high", "capacity_limit")
    capacities = {name: short[name] for name in names}
    return capacities | {"rate": rate, "ratio": short["capacity"] / rate, "flags": dict(row)}


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the shares of cases within 5 % and beyond 10 %, and the median and largest relative difference."""
    error = np.abs(np.array([row["ratio"] for row in rows]) - 1.0)
    near, far = float((error <= NEAR).mean()), float((error > 2.0 * NEAR).mean())
    return {
        "cases": len(rows),
        "near": near,
        "far": far,
        "median": float(np.median(error)),
        "worst": float(error.max()),
    }


def main() -> None:
    """Compare the cases, print each and the totals, and record them with ``--record``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=40, metavar="N", help="deployments (default: 40)")
    parser.add_argument("--seed", type=int, default=3, metavar="S", help="seed of the random cases (default: 3)")
    parser.add_argument("--at-most", type=int, metavar="N", help="cases that this call adds (default: all)")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="rows as JSON; those of the same seed are kept"
    )
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    arguments = parser.parse_args()
    known = json.loads(arguments.output.read_text()) if arguments.output and arguments.output.is_file() else {}
    rows: list[dict[str, Any]] = known["rows"] if known.get("seed") == arguments.seed else []
    resumed = bool(rows)
    last = min(arguments.cases, len(rows) + arguments.at_most if arguments.at_most else arguments.cases)
    with ks.connect() as session:
        for number in range(len(rows), last):
            rows.append(case(session, number, arguments.seed))
            print(as_text(rows[-1:], [name for name in rows[-1] if name != "flags"]).splitlines()[-1], flush=True)
            if arguments.output:
                arguments.output.write_text(json.dumps({"seed": arguments.seed, "rows": rows}, indent=1))
    rows = rows[: arguments.cases]
    totals = figures(rows)
    print(
        f"{len(rows)} capacities: {totals['near']:.0%} within 5 % of the rate, {totals['far']:.0%} beyond 10 %, ",
        end="",
    )
    print(f"median {totals['median']:.1%}, worst {totals['worst']:.1%}")
    if arguments.record:
        by_engine = {
            engine: figures([row for row in rows if row["engine"] == engine]) for engine in ("vllm", "sglang", "trtllm")
        }
        farthest = sorted(rows, key=lambda row: -abs(row["ratio"] - 1.0))[:5]
        command = f"python benches/capacity.py --cases {arguments.cases} --seed {arguments.seed}"
        record(
            "capacity",
            totals | {"seed": arguments.seed, "engines": by_engine, "farthest": farthest},
            command,
            None if resumed else OWN,
        )


if __name__ == "__main__":
    main()
