"""Samples of results about `compare`: planted and foreign worlds of a few hundred requests."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

import kernelsight as ks

REQUESTS = 300


def worlds(steps: str, noise: float, kinds: tuple[str, ...]) -> dict[str, float]:
    """Return what is named in small worlds of `compare`."""
    import compare as bench

    found = {}
    with ks.connect() as session:
        for number, kind in enumerate(kinds, 1):
            row = bench.world(session, np.random.default_rng([12, number]), [kind], REQUESTS, steps, noise)
            found |= {f"{kind}: right": float(bench.is_right(row)), f"{kind}: causes": float(len(row["causes"]))}
            found |= {f"{kind}: miss ms": row["miss_ms"]}
    return found


def compare_plain() -> dict[str, float]:
    """Return what is named of one planted fault and of none."""
    return worlds("none", 0.0, ("one", "clean"))


def compare_noise() -> dict[str, float]:
    """Return what is named of one planted fault in noise."""
    return worlds("none", 0.05, ("one",))


def compare_steps() -> dict[str, float]:
    """Return what is named of one planted fault with a log of steps."""
    return worlds("fpm", 0.0, ("one",))


def compare_foreign() -> dict[str, float]:
    """Return what is named of a foreign server that was looked at: seed 1, nothing planted, and slower from a time."""
    import foreign as bench

    found = {}
    with ks.connect() as session:
        for name in ("nothing", "slower GPU"):
            row = bench.compared(session, 1, name, REQUESTS, "none")
            found |= {f"{name}: causes": float(len(row["causes"])), f"{name}: written": float(row["written"])}
    return found


def corrections() -> dict[str, float]:
    """Return the errors of one small world before and after its correction."""
    import corrections as bench

    with ks.connect() as session:
        _, fit, _ = bench.world(session, np.random.default_rng([12, 3]), bench.KINDS[0], REQUESTS, 0.03, 0.7)
    return {f"{metric} {name}": fit[name][metric]["median_ape"] for metric in bench.METRICS for name in bench.SCORED}


def teacher() -> dict[str, float]:
    """Return the corrections that one made-up run gives."""
    run = {"run_id": "a", "isl": 600, "osl": 40, "num_prompts": 64, "max_concurrency": 8}
    with tempfile.TemporaryDirectory() as folder, ks.connect() as session:
        path = Path(folder) / "run.csv"
        pa_csv.write_csv(pa.Table.from_pylist([run | {"ttft_ms": 60.0, "tpot_ms": 3.0}]), path)
        found = session.compare(model="qwen3-0.6b", gpu="l4", log=path).table("stage_corrections").to_pylist()
    return {row["part"]: row["exposed_us"] or row["factor"] for row in found}


def speed_million_log() -> dict[str, float]:
    """Return the mean miss of the bench's first thousand requests."""
    import million_log as bench

    with ks.connect() as session:
        found = session.compare(requests=bench.log_of(1000), deployment=bench.FLAGS, fit="none")
        return {"e2e ms": found.summary["e2e_ms"]["predicted"], "rows": float(found.table("causes").num_rows)}
