"""Capacity from step costs against the highest steady rate that a search finds: ``python benches/capacity.py``.

    python benches/capacity.py [--cases N] [--seed S] [--engine E] [--max-num-seqs N] [-o FILE.json]

Draws deployments and lengths (`rates.py`), searches the highest steady rate of each with an objective that only an
overloaded engine misses (`find_rates`), and sets the `capacity` beside it that `simulate` reads off the step costs for
200 requests. Prints both, their ratio, and in what share of the cases they are within 5 %. ``--max-num-seqs``: of
thousands of seats, as SGLang and TensorRT-LLM have by default, a search simulates for minutes.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from rates import drawn

import kernelsight as ks
from kernelsight.present.output import as_text
from kernelsight.session import Session

STEADY = {"ttft_p50_ms": 1e7}
NEAR = 0.05
FLAGS = ("model", "gpu", "tensor_parallel_size", "input_len", "output_len")


def compared(session: Session, row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the capacity and the rate found of a deployment; None where it cannot run."""
    (alone,) = session.sweep([row | {"max_concurrency": 1, "num_prompts": 16}]).summary.to_pylist()
    if alone["status"] != "served" or alone["completed"] < 16:
        return None
    (found,) = session.find_rates([row], STEADY).to_pylist()
    rate = found["max_request_rate"]
    if rate is None:
        return None
    (short,) = session.sweep([row | {"request_rate": rate, "num_prompts": 200}]).summary.to_pylist()
    names = ("capacity", "capacity_low", "capacity_high", "capacity_limit")
    return {name: row[name] for name in FLAGS} | {
        **{name: short[name] for name in names},
        "rate": rate,
        "ratio": short["capacity"] / rate,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=40, metavar="N", help="deployments (default: 40)")
    parser.add_argument("--seed", type=int, default=3, metavar="S", help="seed of what is drawn (default: 3)")
    parser.add_argument("--engine", default="vllm", metavar="E", help="vllm, sglang or trtllm (default: vllm)")
    parser.add_argument("--max-num-seqs", type=int, metavar="N", help="seats (default: the engine's)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write figures as JSON")
    arguments = parser.parse_args()
    source, rows = random.Random(arguments.seed), []
    stated = {"engine": arguments.engine}
    stated |= {"max_num_seqs": arguments.max_num_seqs} if arguments.max_num_seqs else {}
    with ks.connect() as session:
        while len(rows) < arguments.cases:
            one = compared(session, drawn(source) | stated)
            if one:
                rows.append(one)
                print(as_text([one], list(one)).splitlines()[-1], flush=True)
    away = np.abs(np.array([row["ratio"] for row in rows]) - 1.0)
    near = float((away <= NEAR).mean())
    print(f"{len(rows)} capacities: {near:.0%} within 5 % of the rate, ", end="")
    print(f"median {np.median(away):.1%}, worst {away.max():.1%}")
    if arguments.output:
        Path(arguments.output).write_text(json.dumps({"near": near, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
