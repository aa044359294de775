"""CPU time and peak memory of simulating a million requests: a sweep that keeps only their summary.

    python benches/million.py [--requests 200000 1000000] [-o FILE.json]

Each size runs in a separate process, which measures its peak memory; that of 1,000 requests is start-up.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

from record import record

from kernelsight.present.output import as_text

START_UP = 1_000
LOAD = {"model": "llama-3.1-8b", "gpu": "h100_sxm", "input_len": 256, "output_len": 256, "request_rate": 20.0}


def run(requests: int) -> dict[str, Any]:
    """Return CPU seconds and peak bytes of one scenario of ``requests`` requests, after a sweep that compiles."""
    from kernelsight.session import connect
    from kernelsight.sweeps.sweep import sweep

    with connect() as session:
        sweep(session, [{**LOAD, "num_prompts": START_UP}])  # compiles
        started = time.process_time()
        (row,) = sweep(session, [{**LOAD, "num_prompts": requests}]).to_pylist()
        spent = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"requests": requests, "completed": row["completed"], "steps": row["steps"], "cpu_s": spent, "peak": peak}


def main() -> None:
    """Measure every size and print the table; record it with ``--record``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, nargs="+", default=[200_000, 1_000_000])
    parser.add_argument("-o", "--output", help="also write the rows as JSON")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(run(arguments.one)))
        return
    rows = []
    for size in (START_UP, *arguments.requests):
        words = [sys.executable, __file__, "--one", str(size)]
        rows.append(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
    first = rows[0]["peak"]
    for row in rows:
        row["peak MB"] = round(row.pop("peak") / 1e6)
        row["bytes a request"] = round((row["peak MB"] * 1e6 - first) / row["requests"]) if row is not rows[0] else None
        row["requests/CPU-s"] = round(row["requests"] / row["cpu_s"])
    print(as_text(rows, list(rows[0])))
    if arguments.record:
        last = rows[-1]
        figures = {"requests": last["requests"], "cpu_s": last["cpu_s"], "bytes_per_request": last["bytes a request"]}
        record("speed_million", figures, "python benches/million.py")
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
