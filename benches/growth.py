"""How CPU time grows with what is asked for: an exponent for each axis, by least squares of logarithms.

    python benches/growth.py [--only WORD ...] [--most 1] [--record] [-o FILE.json]

Each row is one axis: CPU seconds of a call, all threads, at sizes that grow tenfold (ranks and replicas: twofold), the
fastest of ``--repeats`` in a process that made the smallest call before. Exponent 1: twice as much costs twice as much.
``--most``: powers of ten by which the largest size of requests, scenarios and log rows is larger than the default.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from million_log import log_of
from record import record

from kernelsight import connect
from kernelsight.present.output import as_text
from kernelsight.session import Session

LOAD = {"gpu": "h100_sxm", "model": "qwen3-14b", "input_len": 256, "output_len": 128, "request_rate": 20.0}
EXPERTS = {**LOAD, "model": "deepseek-r1", "gpu": "h200_sxm", "enable_expert_parallel": True}
TENS, REPLICAS, RANKS = (1, 10, 100), (1, 2, 4, 8), (8, 16, 32, 64)


def what_if(session: Session, rows: list[Mapping[str, Any]]) -> None:
    """Simulate scenarios and make their summaries."""
    assert session.what_if(rows).table("scenario_summary").num_rows == len(rows)


def axes(folder: Path, most: int) -> Iterator[tuple[str, tuple[int, ...], Callable[[Session, int], object]]]:
    """Yield (axis, sizes, the call at a size)."""
    tens = (*TENS, *(100 * 10**power for power in range(1, most + 1)))
    yield (
        "requests",
        tuple(1_000 * ten for ten in tens),
        lambda session, size: what_if(session, [{**LOAD, "num_prompts": size}]),
    )
    yield (
        "prompt tokens",
        (100, 1_000, 10_000),
        lambda session, size: what_if(
            session, [{**LOAD, "request_rate": 0.5, "num_prompts": 2_000, "input_len": size}]
        ),
    )
    yield (
        "output tokens",
        (100, 1_000, 10_000),
        lambda session, size: what_if(
            session, [{**LOAD, "request_rate": 0.5, "num_prompts": 2_000, "output_len": size}]
        ),
    )
    yield (
        "scenarios",
        tuple(100 * ten for ten in tens),
        lambda session, size: what_if(
            session, [{**LOAD, "num_prompts": 100, "request_rate": 1.0 + 19.0 * k / size} for k in range(size)]
        ),
    )
    yield (
        "turns of a session",
        (1, 10, 100),
        lambda session, size: what_if(
            session, [{**LOAD, "num_prompts": 20_000, "num_turns": size, "input_len": 32, "output_len": 32}]
        ),
    )
    # the same requests, shared among more engines
    yield (
        "data-parallel ranks",
        RANKS,
        lambda session, size: what_if(
            session, [{**EXPERTS, "data_parallel_size": size, "request_rate": 40.0, "num_prompts": 16_000}]
        ),
    )
    yield (
        "replicas",
        REPLICAS,
        lambda session, size: what_if(
            session, [{**LOAD, "replicas": size, "request_rate": 20.0, "num_prompts": 16_000}]
        ),
    )
    yield "log rows", tuple(1_000 * ten for ten in tens), lambda session, size: compared(session, folder, size)


def compared(session: Session, folder: Path, rows: int) -> None:
    """Compare a log of so many requests, from a file."""
    path = folder / f"{rows}.parquet"
    if not path.exists():
        pq.write_table(log_of(rows), path)
    flags = {"model": "llama-3.1-8b", "gpu": "h100_sxm"}
    assert session.compare(log=path, deployment=flags).table("prediction_vs_production").num_rows >= rows


def measured(session: Session, sizes: tuple[int, ...], call: Callable[[Session, int], object], repeats: int) -> list:
    """Return the CPU seconds of a call at each size."""
    call(session, sizes[0])
    spent = []
    for size in sizes:
        best = np.inf
        for _ in range(repeats):
            started = time.process_time()
            call(session, size)
            best = min(best, time.process_time() - started)
        spent.append(best)
    return spent


def main() -> None:
    """Measure every axis and print the table; record it with ``--record``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[""], help="axes whose name has one of these words")
    parser.add_argument("--most", type=int, default=0, help="powers of ten beyond the default sizes")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("-o", "--output", help="also write the rows as JSON")
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, sizes, call in axes(Path(folder), arguments.most):
            if not any(word in name for word in arguments.only):
                continue
            with connect() as session:
                spent = measured(session, sizes, call, arguments.repeats)
            exponent = float(np.polyfit(np.log(sizes), np.log(spent), 1)[0])
            # between the two largest, where what each call costs at least weighs little
            last = float(np.log(spent[-1] / spent[-2]) / np.log(sizes[-1] / sizes[-2]))
            row = {"axis": name, "sizes": " ".join(map(str, sizes)), "CPU s": " ".join(f"{s:.3g}" for s in spent)}
            rows.append(row | {"exponent": round(exponent, 2), "at the end": round(last, 2)})
            print(json.dumps(rows[-1]), flush=True)
    print(as_text(rows, list(rows[0])))
    if arguments.record:
        record("speed_growth", {"rows": rows, "repeats": arguments.repeats}, "python benches/growth.py")
    if arguments.output:
        Path(arguments.output).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
