"""The other tool runs in a process of its own: lines in and out, and what is said where it cannot be run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.laboratory.runs import peer

RUN = {"isl": 1000, "osl": 100, "step_tokens": 2048, "flags": {"range_ratio": 0.8, "kv_cache_dtype": "fp8_e4m3"}}
RUNS = [
    {**RUN, "run_id": "a", "max_concurrency": 4},
    {**RUN, "run_id": "b", "max_concurrency": 8},
    {**RUN, "run_id": "c", "max_concurrency": None},
]
ANSWERS = """
import json, sys
for line in sys.stdin:
    run = json.loads(line)
    known = {"ttft_ms": float(run["isl"]), "tpot_ms": float(run["step_tokens"])}
    named = {"run_id": run["run_id"], "asked": run["asked"]}
    print(json.dumps(named | (known if run["run_id"] == "a" else {"reason": "no"})))
"""


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str) -> None:
    (folder / "stand_in.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(peer, "WORKER", "stand_in")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


def test_closed_loops_are_asked_for_and_what_is_not_predicted_is_left_out(tmp_path, monkeypatch) -> None:
    stand_in(monkeypatch, tmp_path, ANSWERS)
    # nominal lengths and a prompt a step; mean lengths; and the tokens of a step that the run had
    assert peer.predictions(RUNS) == {
        "nominal": {"a": (1000.0, 1000.0)},
        "launched": {"a": (900.0, 900.0)},
        "step_tokens": {"a": (900.0, 2048.0)},
    }


def test_the_format_of_the_cache_is_asked_with_the_launch_flags_alone() -> None:
    nominal, launched, whole = peer.questions(RUNS[0])
    assert "kv_cache" not in nominal
    assert launched["kv_cache"] == whole["kv_cache"] == "fp8"
    plain = peer.questions(RUNS[0] | {"flags": {}})[1]
    assert (plain["isl"], plain["kv_cache"]) == (1000, None)


def test_a_tool_that_dies_is_told_by_its_last_line(tmp_path, monkeypatch) -> None:
    stand_in(monkeypatch, tmp_path, "raise SystemExit('no module named yaml')")
    with pytest.raises(RunFailed, match=r"AIConfigurator failed \(no module named yaml\)"):
        peer.predictions(RUNS)


def test_a_tool_that_is_not_installed_is_named(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match="--against aiconfigurator needs aiconfigurator-core"):
        peer.predictions(RUNS)
