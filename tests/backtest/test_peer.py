"""The other tool runs in a process of its own: lines in and out, and what is said where it cannot be run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from kernelsight.backtest import peer
from kernelsight.errors import InvalidInput, RunFailed

RUNS = [
    {"run_id": "a", "max_concurrency": 4},
    {"run_id": "b", "max_concurrency": 8},
    {"run_id": "c", "max_concurrency": None},
]
ANSWERS = """
import json, sys
for line in sys.stdin:
    run = json.loads(line)
    known = {"ttft_ms": 10.0 * run["max_concurrency"], "tpot_ms": 2.0} if run["run_id"] == "a" else {"reason": "no"}
    print(json.dumps({"run_id": run["run_id"], **known}))
"""


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str) -> None:
    (folder / "stand_in.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(peer, "WORKER", "stand_in")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


def test_closed_loops_are_asked_for_and_what_is_not_predicted_is_left_out(tmp_path, monkeypatch) -> None:
    stand_in(monkeypatch, tmp_path, ANSWERS)
    assert peer.predictions(RUNS) == {"a": (40.0, 2.0)}


def test_a_tool_that_dies_is_told_by_its_last_line(tmp_path, monkeypatch) -> None:
    stand_in(monkeypatch, tmp_path, "raise SystemExit('no module named yaml')")
    with pytest.raises(RunFailed, match=r"AIConfigurator failed \(no module named yaml\)"):
        peer.predictions(RUNS)


def test_a_tool_that_is_not_installed_is_named(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match="--against aiconfigurator needs aiconfigurator-core"):
        peer.predictions(RUNS)
