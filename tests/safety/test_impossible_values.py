"""Saved runs whose values no simulation makes: the views of a run refuse them in one sentence that names the column."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

VIEWS = {"report": "page.html", "timeline": "trace.json"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("step_costs set gpu_us = -gpu_us", "column gpu_us: .* rows fail 'gpu_us >= 0'"),
        ("step_costs set gpu_us = 'NaN'", "column gpu_us has NaN or infinity"),
        ("step_costs set launches = -1", "column launches: .* rows fail 'launches >= 0'"),
        ("kernel_latencies set latency_us = 0", "column latency_us: .* rows fail 'latency_us > 0'"),
        ("replica_totals set gpu_ns = -1", "column gpu_ns: 1 row fails 'gpu_ns >= 0'"),
        ("memory_plan set capacity_units = -1", "column capacity_units: 1 row fails"),
        ("deployment_settings set tp = 0", "column tp: 1 row fails 'tp > 0'"),
        ("request_events set first_token_ns = 0", "column first_token_ns: .* rows fail .*first_token_ns >= sched"),
    ],
)
def test_a_saved_run_with_impossible_values(
    change: str,
    why: str,
    saved_run: tuple,
    refusal: Callable,
    tmp_path: Path,
) -> None:
    check_refused(change, why, saved_run[0], refusal, tmp_path)


@pytest.mark.parametrize("change", ["end_ns = start_ns - 1", "host_ns = -1", "running = -1"])
@pytest.mark.whole
def test_saved_steps_with_impossible_values(
    change: str,
    saved_steps: tuple,
    refusal: Callable,
    tmp_path: Path,
) -> None:
    column = change.split()[0]
    check_refused(f"steps set {change}", f"column {column}: .* rows fail", saved_steps[0], refusal, tmp_path)


def check_refused(change: str, why: str, saved: Path, refusal: Callable, folder: Path) -> None:
    path = folder / "changed.duckdb"
    shutil.copy(saved, path)
    with duckdb.connect(path) as connection:
        connection.execute(f"update {change}")
    table = change.split()[0]
    for verb, name in VIEWS.items():
        sentence = refusal(verb, path, "-o", folder / name)
        assert sentence.startswith(f"table '{table}' (from {path}) violates its contract: ")
        assert re.search(why, sentence), sentence
        assert not (folder / name).exists()
