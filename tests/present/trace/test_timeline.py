"""Timelines: valid against Chrome's trace event format, and the same totals as SQL."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelsight.cli.main import main
from kernelsight.errors import InvalidInput
from kernelsight.present.trace.timeline import write_timeline
from kernelsight.session import Session, connect
from kernelsight.sweeps.runs import Run
from tests.asked import refusals
from tests.present.conftest import KINDS, SMALL

PHASES = {"prefill", "decode", "mixed"}
# a moment is rounded to the nanosecond, twice a slice
ROUNDING_US = 1e-3


def events_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def check_format(events: list[dict[str, Any]]) -> None:
    """Hold events against the format: keys by phase, time that goes on in each track, nesting, matched begins."""
    latest: dict[tuple, float] = defaultdict(float)
    open_slices: dict[tuple, list[float]] = defaultdict(list)
    begun: dict[tuple, list[str]] = defaultdict(list)
    for event in events:
        assert {"name", "ph", "pid", "tid", "ts"} <= set(event)
        assert event["ph"] in "XbeCM" and isinstance(event["pid"], int) and event["ts"] >= 0
        kind = event["ph"]
        track = (kind, event["pid"], event["tid"], event.get("id"), event["name"] if kind == "C" else "")
        track = ("async", *track[1:]) if kind in "be" else track
        assert event["ts"] >= latest[track]
        latest[track] = event["ts"]
        if kind == "X":
            assert event["dur"] >= 0
            ends = open_slices[track]
            while ends and ends[-1] <= event["ts"] + 1e-6:
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1] + 1e-6  # inside the slice around it
            ends.append(event["ts"] + event["dur"])
        elif kind == "b":
            assert event["cat"]
            begun[track].append(event["name"])
        elif kind == "e":
            assert begun[track].pop() == event["name"]
        elif kind == "C":
            assert all(value >= 0 for value in event["args"].values())
        else:
            assert event["name"] in ("process_name", "thread_name") and event["args"]["name"]
    assert not any(begun.values())


def check_totals(run: Run, events: list[dict[str, Any]]) -> None:
    """Hold slices against kernel_breakdown and replica_totals."""
    slices = [event for event in events if event["ph"] == "X"]
    steps = [event for event in slices if event["cat"] == "step"]
    assert Counter(event["pid"] - 1 for event in steps) == {
        row["replica"]: row["steps"] for row in run.table("replica_totals").to_pylist() if row["steps"]
    }
    found: dict[tuple, float] = defaultdict(float)
    for event in slices:
        if event["cat"] not in ("step", "host", "wait"):
            found[event["cat"], event["name"]] += event["dur"]
    wanted: dict[tuple, float] = defaultdict(float)
    for row in run.table("kernel_breakdown").to_pylist():
        wanted[row["family"], row["name"]] += row["total_us"]
    assert found == pytest.approx(wanted, rel=1e-6, abs=ROUNDING_US * len(steps))
    gpu_us = sum(row["gpu_ns"] for row in run.table("replica_totals").to_pylist()) / 1e3
    assert sum(found.values()) == pytest.approx(gpu_us, rel=1e-6)


def check_steps(run: Run, events: list[dict[str, Any]]) -> None:
    """Hold each step: its slices fill it to the nanosecond, unless stages overlap its kernels' time."""
    inside: dict[tuple, float] = defaultdict(float)
    last = {}
    for event in events:
        track = event["pid"], event["tid"]
        if event["ph"] == "X" and event["cat"] == "step":
            last[track] = event
        elif event["ph"] == "X":
            inside[(*track, last[track]["ts"])] += event["dur"]
    whole = {(event["pid"], event["tid"], event["ts"]): event["dur"] for event in events if event.get("cat") == "step"}
    assert set(inside) <= set(whole)
    assert inside == pytest.approx({track: whole[track] for track in inside}, abs=2 * ROUNDING_US)
    assert run.table("steps").num_rows == len(whole)


@pytest.mark.parametrize("kind", KINDS)
def test_a_timeline_is_valid_and_adds_up(kind: str, session: Session, tmp_path: Path) -> None:
    run = session.simulate(**(SMALL | KINDS[kind]))
    shown = run.timeline(tmp_path / "trace.json")
    events = events_of(tmp_path / "trace.json")
    check_format(events)
    check_totals(run, events)
    check_steps(run, events)
    assert shown["requests"] == 24 and shown["steps"] == run.table("steps").num_rows
    assert Counter(event["name"] for event in events if event["ph"] == "b")["decode"] == 24
    if kind == "one replica":
        check_requests(run, events)
        times = np.array([event["ts"] for event in events]) * 1e3
        assert np.abs(times - np.rint(times)).max() < 1e-3  # whole nanoseconds


def check_requests(run: Run, events: list[dict[str, Any]]) -> None:
    """Hold the phases of requests against the moments that the run states."""
    moments: dict[str, dict[str, float]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "be":
            moments[event["id"]][event["ph"] + event["name"]] = event["ts"]
    for row in run.table("request_events").to_pylist():
        found = moments[str(row["request_id"])]
        for name, column in (("bqueued", "sent_ns"), ("bprefill", "scheduled_ns"), ("edecode", "finish_ns")):
            assert found[name] == pytest.approx(row[column] / 1e3)
        assert found["eprefill"] == found["bdecode"] == pytest.approx(row["first_token_ns"] / 1e3)


def test_a_part_of_a_saved_run_is_that_part_of_the_whole(saved: Path, tmp_path: Path) -> None:
    whole, part = tmp_path / "whole.json", tmp_path / "part.json"
    assert main(["timeline", str(saved), "-o", str(whole)]) == 0
    assert main(["timeline", str(saved), "-o", str(part), "--from", "0.3", "--to", "0.8"]) == 0
    check_format(events_of(part))
    slices = {path: [json.dumps(event) for event in events_of(path) if event["ph"] in "XC"] for path in (whole, part)}
    steps = [event for event in events_of(part) if event.get("cat") == "step"]
    assert steps and all(0.3e6 <= event["ts"] < 0.8e6 for event in steps)
    assert set(slices[part]) < set(slices[whole])
    async_times = [event["ts"] for event in events_of(part) if event["ph"] in "be"]
    assert async_times and min(async_times) >= 0.3e6 and max(async_times) <= 0.8e6


def test_a_saved_run_has_the_timeline_of_the_run(session: Session, saved: Path, tmp_path: Path) -> None:
    session.simulate(**SMALL, data_parallel_size=2).timeline(tmp_path / "run.json")
    assert main(["timeline", str(saved), "-o", str(tmp_path / "saved.json")]) == 0
    assert (tmp_path / "run.json").read_bytes() == (tmp_path / "saved.json").read_bytes()


@pytest.mark.whole
def test_a_scenario_of_a_sweep_has_the_timeline_of_its_own_run(
    session: Session, saved_sweep: Path, tmp_path: Path
) -> None:
    found = session.what_if({**SMALL, "input_len": [200, 400], "max_num_seqs": [4, 16]})
    for name in found.scenarios[1:3]:
        found.scenario(name).timeline(tmp_path / "run.json")
        assert main(["timeline", str(saved_sweep), "--scenario", name, "-o", str(tmp_path / "saved.json")]) == 0
        assert (tmp_path / "run.json").read_bytes() == (tmp_path / "saved.json").read_bytes()


@pytest.mark.parametrize(
    ("words", "sentence"),
    refusals("present/trace/test_timeline::test_refusals"),
)
def test_refusals(words: list[str], sentence: str, saved_sweep: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["timeline", str(saved_sweep), "-o", str(tmp_path / "x.json"), *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1
    assert not (tmp_path / "x.json").exists()


def test_too_many_events_are_refused_with_a_span_that_fits(saved: Path, tmp_path: Path) -> None:
    with connect(saved, read_only=True) as opened:
        with pytest.raises(InvalidInput, match="show less time, such as --from") as refused:
            write_timeline(opened, tmp_path / "x.json", most_events=400)
        words = str(refused.value).rstrip(".").split()
        start, end = float(words[words.index("--from") + 1]), float(words[words.index("--to") + 1])
        assert write_timeline(opened, tmp_path / "x.json", start, end, most_events=400)["steps"] > 0
        with pytest.raises(InvalidInput, match="no engine step starts from 900 s"):
            write_timeline(opened, tmp_path / "x.json", 900.0)


def test_a_file_without_a_run_is_refused(tmp_path: Path, capsys: Any) -> None:
    with connect() as opened:
        opened.save(tmp_path / "facts.duckdb", ["gpus"])
    assert main(["timeline", str(tmp_path / "facts.duckdb"), "-o", str(tmp_path / "x.json")]) == 2
    assert "holds no scenario; save a run with" in capsys.readouterr().err
    assert main(["timeline", str(tmp_path / "facts.duckdb")]) == 2
    assert "timeline needs -o FILE" in capsys.readouterr().err
