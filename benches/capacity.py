"""Capacity from step costs against the highest steady rate that a search finds: ``python benches/capacity.py``.

    python benches/capacity.py [--cases N] [--seed S] [-o FILE.json] [--at-most N] [--record]

Draws deployments and lengths (`rates.py`) of each engine, searches the highest steady rate of each with an objective
that only an overloaded engine misses (`find_rates`), and sets the `capacity` beside it that `simulate` reads off the
step costs for 200 requests. Prints both, their ratio, and in what share of the cases they are within 5 %. About ten
CPU-seconds a case: with ``-o`` a call goes on where the last one ended, and ``--at-most`` bounds what it adds.
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
# in turn; with thousands of seats, as the last two have by default, a search simulates for minutes
ENGINES = (
    {"engine": "vllm"},
    {"engine": "vllm"},
    {"engine": "sglang", "max_num_seqs": 256},
    {"engine": "trtllm", "max_num_seqs": 256},
)


def case(session: Session, number: int, seed: int) -> dict[str, Any]:
    """Return capacity and rate of one case: of the first deployment drawn for it that can run."""
    source = random.Random(f"capacity {seed} {number}")
    while True:
        found = compared(session, drawn(source) | ENGINES[number % len(ENGINES)])
        if found:
            return found


def compared(session: Session, row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the capacity and the rate found of a deployment; None where it cannot run."""
    (alone,) = session.sweep([row | {"max_concurrency": 1, "num_prompts": 16}]).summary.to_pylist()
    if alone["status"] != "served" or alone["completed"] < 16:
        return None
    (found,) = session.find_rates([row], STEADY).to_pylist()
    rate = found["max_request_rate"]
    if rate is None:
        return None
    return {name: row[name] for name in FLAGS} | capacity_at(session, row, rate)


def capacity_at(session: Session, row: Mapping[str, Any], rate: float) -> dict[str, Any]:
    """Return what `simulate` states for 200 requests at a rate, beside the rate."""
    (short,) = session.sweep([{**row, "request_rate": rate, "num_prompts": 200}]).summary.to_pylist()
    names = ("capacity", "capacity_low", "capacity_high", "capacity_limit")
    stated = {name: short[name] for name in names}
    return stated | {"rate": rate, "ratio": short["capacity"] / rate, "flags": dict(row)}


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how near the capacities of some cases are."""
    away = np.abs(np.array([row["ratio"] for row in rows]) - 1.0)
    near, far = float((away <= NEAR).mean()), float((away > 2.0 * NEAR).mean())
    return {"cases": len(rows), "near": near, "far": far, "median": float(np.median(away)), "worst": float(away.max())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=40, metavar="N", help="deployments (default: 40)")
    parser.add_argument("--seed", type=int, default=3, metavar="S", help="seed of what is drawn (default: 3)")
    parser.add_argument("--at-most", type=int, metavar="N", help="cases that this call adds (default: all)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="rows as JSON; those of the same seed stay")
    parser.add_argument("--record", action="store_true", help="keep the figures in benches/results/")
    asked = parser.parse_args()
    known = json.loads(asked.output.read_text()) if asked.output and asked.output.is_file() else {}
    rows: list[dict[str, Any]] = known["rows"] if known.get("seed") == asked.seed else []
    resumed = bool(rows)
    last = min(asked.cases, len(rows) + asked.at_most if asked.at_most else asked.cases)
    with ks.connect() as session:
        for number in range(len(rows), last):
            rows.append(case(session, number, asked.seed))
            print(as_text(rows[-1:], [name for name in rows[-1] if name != "flags"]).splitlines()[-1], flush=True)
            if asked.output:
                asked.output.write_text(json.dumps({"seed": asked.seed, "rows": rows}, indent=1))
    rows = rows[: asked.cases]
    found = figures(rows)
    print(
        f"{len(rows)} capacities: {found['near']:.0%} within 5 % of the rate, {found['far']:.0%} beyond 10 %, ", end=""
    )
    print(f"median {found['median']:.1%}, worst {found['worst']:.1%}")
    if asked.record:
        by_engine = {
            engine: figures([row for row in rows if row["engine"] == engine]) for engine in ("vllm", "sglang", "trtllm")
        }
        farthest = sorted(rows, key=lambda row: -abs(row["ratio"] - 1.0))[:5]
        command = f"python benches/capacity.py --cases {asked.cases} --seed {asked.seed}"
        record(
            "capacity",
            found | {"seed": asked.seed, "engines": by_engine, "farthest": farthest},
            command,
            None if resumed else OWN,
        )


if __name__ == "__main__":
    main()
