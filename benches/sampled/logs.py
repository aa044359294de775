"""Samples of results about `compare`: worlds with planted faults and foreign servers, a few hundred requests each."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

import kernelsight as ks

REQUESTS = 300


def worlds(steps: str, noise: float, kinds: tuple[str, ...]) -> dict[str, float]:
    """Return whether causes are right, their number, and the miss in small worlds of the bench `compare`."""
    import compare as bench

    figures = {}
    with ks.connect() as session:
        for number, kind in enumerate(kinds, 1):
            row = bench.world(session, np.random.default_rng([12, number]), [kind], REQUESTS, steps, noise)
            figures |= {f"{kind}: right": float(bench.is_right(row)), f"{kind}: causes": float(len(row["causes"]))}
            figures |= {f"{kind}: miss ms": row["miss_ms"]}
    return figures


def compare_plain() -> dict[str, float]:
    """Return the figures of a world with one fault and of one without."""
    return worlds("none", 0.0, ("one", "clean"))


def compare_noise() -> dict[str, float]:
    """Return the figures of a world with one fault and noise."""
    return worlds("none", 0.05, ("one",))


def compare_steps() -> dict[str, float]:
    """Return the figures of a world with one fault and a log of steps."""
    return worlds("fpm", 0.0, ("one",))


def compare_foreign() -> dict[str, float]:
    """Return the numbers of causes of two foreign servers of seed 1, and whether a correction is written."""
    import foreign as bench

    figures = {}
    with ks.connect() as session:
        for name in ("nothing", "slower GPU"):
            row = bench.compared(session, 1, name, REQUESTS, "none")
            figures |= {f"{name}: causes": float(len(row["causes"])), f"{name}: written": float(row["written"])}
    return figures


def corrections() -> dict[str, float]:
    """Return the errors of one small world before and after its correction."""
    import corrections as bench

    with ks.connect() as session:
        _, fit, _ = bench.world(session, np.random.default_rng([12, 3]), bench.KINDS[0], REQUESTS, 0.03, 0.7)
    return {f"{metric} {name}": fit[name][metric]["median_ape"] for metric in bench.METRICS for name in bench.SCORED}


def teacher() -> dict[str, float]:
    """Return the corrections fitted to one made-up run."""
    run = {"run_id": "a", "isl": 600, "osl": 40, "num_prompts": 64, "max_concurrency": 8}
    with tempfile.TemporaryDirectory() as folder, ks.connect() as session:
        path = Path(folder) / "run.csv"
        pa_csv.write_csv(pa.Table.from_pylist([run | {"ttft_ms": 60.0, "tpot_ms": 3.0}]), path)
        rows = session.compare(model="qwen3-0.6b", gpu="l4", log=path).table("stage_corrections").to_pylist()
    return {row["part"]: row["exposed_us"] or row["factor"] for row in rows}


def speed_million_log() -> dict[str, float]:
    """Return the predicted E2E and number of causes of the bench's first thousand requests."""
    import million_log as bench

    with ks.connect() as session:
        comparison = session.compare(requests=bench.log_of(1000), deployment=bench.FLAGS, fit="none")
        return {"e2e ms": comparison.summary["e2e_ms"]["predicted"], "rows": float(comparison.table("causes").num_rows)}
