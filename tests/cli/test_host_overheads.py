"""Host time by engine and version, and `--host-overheads FILE`: which row counts, what is assumed, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelsight.scenario.given_facts import give_host_overheads
from kernelsight.session import connect
from tests.cli.conftest import predict_all

STEP = ("predict", "--model", "qwen3-0.6b", "--gpu", "h100_sxm", "--context-len", 100)
FIGURES = {
    **{"step_exposed_us": 100.0, "step_base_us": 0.0, "per_request_us": 0.0, "per_token_us": 0.0},
    **{"per_captured_launch_us": 0.0, "per_eager_launch_us": 0.0, "launch_gap_us": 0.0, "request_us": 2500.0},
    **{"exposed_per_request_us": 0.0, "overlapped": True},
}


@pytest.fixture
def rows(tmp_path):
    """Write a file of host overheads: JSON, or CSV as it is."""

    def write(content, ending=".json"):
        path = tmp_path / f"host{ending}"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def hosts(path: Path | None, *deployments: dict[str, Any]) -> list[tuple[float, str]]:
    """Return (exposed host time, what is assumed of it) of a step of each deployment, with the rows of a file."""
    given = {"model": "qwen3-0.6b", "gpu": "h100_sxm"}
    cases = {str(flags): (given | flags, "decode", {"context_len": 100}) for flags in deployments}
    with connect() as session:
        if path:
            give_host_overheads(session, path)
        steps = predict_all(session, cases)
        said: dict[str, str] = {}
        for row in session.table("assumptions").to_pylist():
            if "host time" in row["sentence"]:
                said[row["deployment_id"]] = said.get(row["deployment_id"], "") + row["sentence"]
    return [(step["host_us"], said.get(step["deployment_id"], "")) for step in steps.values()]


def test_an_older_engine_hides_less_and_the_answer_says_which_row_it_took():
    [(newest_us, newest), (older_us, older)] = hosts(None, {}, {"engine_version": "0.9.2"})
    assert "host times of vllm from version 0.14 are estimated, not measured" in newest
    assert "host times of vllm from version 0.8 are estimated, not measured" in older
    # what was hidden behind a short step is paid in full, beside the gaps between 312 kernels
    assert newest_us < older_us == pytest.approx(312 * 1.3 + 1000 + 20 + 0.02)


@pytest.mark.whole
def test_rows_that_state_every_figure_are_not_assumed(command, rows):
    path = rows({"engine": "vllm"} | FIGURES)
    answer = command(*STEP, "--host-overheads", path, "--format", "json").json
    assert answer["host_us"] == 100.0 and not any("host time" in sentence for sentence in answer["assumed"])
    # they stand in the place of all rows of their engine, and of no other engine's
    whole, older, other = hosts(path, {}, {"engine_version": "0.5"}, {"engine": "sglang"})
    assert whole == older == (100.0, "") and "host times of sglang" in other[1]
    csv = ",".join(["engine", *FIGURES]) + "\nvllm,100,0,0,0,0,0,0,2500,0,true\n"
    assert hosts(rows(csv, ".csv"), {}) == [(100.0, "")]


@pytest.mark.whole
def test_a_time_per_request_alone_is_the_whole_front_end(command, rows):
    load = ("--request-rate", 0.01, "--num-prompts", 1, "--input-len", 1000, "--output-len", 2, "--format", "json")
    words = ("simulate", "--model", "qwen3-0.6b", "--gpu", "h100_sxm", *load, "--host-overheads")
    alone, longer = (
        command(*words, rows({"engine": "vllm"} | FIGURES | more)).json["ttft_ms"]["mean"]
        for more in ({}, {"per_prompt_token_us": 5.0})
    )
    assert longer == pytest.approx(alone + 5.0)


def test_rows_by_version_and_figures_that_are_left_out(rows):
    path = rows([{"engine": "vllm", "step_exposed_us": 900.0}, {"engine": "vllm", "from_version": "0.12"} | FIGURES])
    newer, (_, older) = hosts(path, {"engine_version": "0.12.1"}, {"engine_version": "0.11"})
    assert newer == (100.0, "") and "from version 0 are estimated, not measured" in older


def test_a_simulation_reads_them_too(command, rows):
    path = rows({"engine": "vllm"} | FIGURES)
    load = ("--max-concurrency", 1, "--num-prompts", 3, "--input-len", 50, "--output-len", 2, "--format", "json")
    answer = command("simulate", *STEP[1:5], *load, "--host-overheads", path).json
    assert answer["host_exposed_s"] == pytest.approx(answer["steps"] * 100e-6)
    # each request is seen 2.5 ms after it was sent
    assert answer["idle_s"] == pytest.approx(3 * 2.5e-3)


@pytest.mark.whole
def test_figures_that_were_all_measured_hold_on_any_cpu(rows):
    """A server's CPU is in what was measured on it; a figure that is left out is scaled like the catalogue's."""
    slower = {"gpu": "gb200"}
    assert hosts(rows({"engine": "vllm"} | FIGURES), slower) == [(100.0, "")]
    part = {"engine": "vllm", **{name: FIGURES[name] for name in FIGURES if name != "per_token_us"}}
    [(exposed, said)] = hosts(rows(part), slower)
    assert exposed > 150.0 and "estimated" in said
