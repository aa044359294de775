"""Saved runs whose values no simulation makes: the views of a run refuse them in one sentence that names the column."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from tests.asked import refusals

VIEWS = {"report": "page.html", "timeline": "trace.json"}


@pytest.mark.parametrize(
    ("change", "why"),
    refusals("safety/test_impossible_values::test_a_saved_run_with_impossible_values"),
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
