"""What is said on stderr: nothing, notes, or every table; completion; a finished sweep that is resumed."""

from __future__ import annotations

import json

import pytest

from kernelsight.cli.main import _stopped, parser

RUN = ("simulate", "--model", "qwen3-0.6b", "--gpu", "l4", "--max-concurrency", "4", "--num-prompts", "8")
RUN += ("--input-len", "64", "--output-len", "8", "--launch", "vllm serve Qwen/Qwen3-0.6B --port 80")


def test_quiet_prints_results_alone_and_verbose_every_table(command):
    usual, quiet, verbose = (command(*RUN, *more) for more in ((), ("--quiet",), ("-v",)))
    assert usual.status == quiet.status == verbose.status == 0
    assert usual.out == quiet.out == verbose.out
    assert "--port" in usual.err
    assert quiet.err == ""
    assert "scenario_summary: " in verbose.err


@pytest.mark.parametrize("ending", ["parquet", "csv", "json", "duckdb"])
def test_a_finished_sweep_has_nothing_to_resume(command, tmp_path, ending):
    grid, target = tmp_path / "grid.json", tmp_path / f"out.{ending}"
    axes = {"model": "qwen3-0.6b", "gpu": "l4", "num_prompts": 4, "input_len": 8, "output_len": 2}
    grid.write_text(json.dumps(axes | {"max_concurrency": [1, 2]}))
    assert command("sweep", grid, "-o", target).status == 0
    before = target.read_bytes()
    again = command("sweep", grid, "-o", target, "--resume")
    assert again.status == 0 and f"{target} is finished: nothing is left to resume" in again.err
    # another grid's answer would be taken for this one's
    grid.write_text(json.dumps(axes | {"max_concurrency": [2, 3, 4]}))
    other = command("sweep", grid, "-o", target, "--resume")
    assert other.status == 2 and "of its 2 scenarios 1 are among the grid's 3; use another -o FILE" in other.err
    assert target.read_bytes() == before


def test_an_interruption_says_how_to_go_on(capsys):
    sweep = parser(["sweep"]).parse_args(["sweep", "grid.json", "-o", "out.parquet"])
    assert _stopped(sweep) == 1
    assert "the same command with --resume goes on" in capsys.readouterr().err
    assert _stopped(parser(["tables"]).parse_args(["tables"])) == 1
    assert "no partial file was written" in capsys.readouterr().err
