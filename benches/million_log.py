"""CPU time and peak memory of comparing a log of a million requests, by stage: read, replay, causes, join.

    python benches/million_log.py [--requests 1000000]

Memory is the peak above that of a process that compared a log of a thousand requests.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from record import record

import kernelsight as ks
from kernelsight.present.output import as_text

FLAGS = {"model": "llama-3.1-8b", "gpu": "h100_sxm"}


def log_of(requests: int) -> pa.Table:
    """Return a log as a table: Poisson arrivals, latencies near the predicted ones."""
    random = np.random.default_rng(1)
    prompt, output = random.integers(100, 800, requests), random.integers(20, 200, requests)
    ttft = 30.0 + 0.02 * prompt + random.exponential(5.0, requests)
    return pa.table(
        {
            "arrival_s": np.cumsum(random.exponential(1 / 12.0, requests)), "prompt_tokens": prompt,
            "output_tokens": output, "ttft_ms": ttft, "e2e_ms": ttft + 8.5 * output,
            "ttft_clock": ["client_send"] * requests,
        }
    )  # fmt: skip


def used() -> tuple[float, float]:
    """Return this process's CPU seconds and peak memory in bytes."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024.0


def main() -> None:
    """Measure each stage and print the table; record it with ``--record``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    arguments = parser.parse_args()
    rows = []
    with ks.connect() as session, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        pq.write_table(log_of(arguments.requests), path)
        session.compare(requests=log_of(1000), deployment=FLAGS).table("prediction_vs_production")
        cpu, peak = used()
        comparison = session.compare(log=path, deployment=FLAGS)
        stages: dict[str, Callable[[], object]] = {
            "read": lambda: None, "replayed": lambda: comparison.sql("select 1 from log_replays limit 0"),
            "explained": lambda: comparison.sql("select 1 from fitted_causes limit 0"),
            "joined": lambda: comparison.table("prediction_vs_production"),
        }  # fmt: skip
        for name, run in stages.items():
            run()
            now = used()
            memory = (now[1] - peak) / arguments.requests
            rows.append({"until": name, "CPU-s": round(now[0] - cpu, 1), "bytes a request": round(memory)})
    print(as_text(rows, list(rows[0])))
    if arguments.record:
        spent = {row["until"]: row["CPU-s"] for row in rows}
        figures = {"requests": arguments.requests, "cpu_s": round(rows[-1]["CPU-s"])}
        figures |= {"causes_cpu_s": round(spent["explained"] - spent["replayed"])}
        figures |= {"bytes_per_request": max(row["bytes a request"] for row in rows)}
        record("speed_million_log", figures, "python benches/million_log.py")


if __name__ == "__main__":
    main()
