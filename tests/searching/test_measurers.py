"""A command as measurer: values reach it unread by a shell, exit codes and output become statuses, limits hold."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.contract import conform
from kernelsight.errors import InvalidInput
from kernelsight.searching.measurers import CommandMeasurer, check_parameters
from tests.asked import refusals


def candidates(*parameters: dict, source: str | None = None) -> pa.Table:
    rows = [
        {"space": "add", "candidate_id": f"c{place}", "parameters": json.dumps(one), "source_text": source}
        for place, one in enumerate(parameters)
    ]
    return pa.Table.from_pylist(rows, contracts()["kernel_candidates"].schema)


@pytest.fixture
def script(tmp_path: Path):
    """Return a command that runs Python code with the given words after it."""

    def command(code: str, words: str = "") -> str:
        path = tmp_path / "bench.py"
        path.write_text("import json, os, sys, time\n" + code)
        return f"'{sys.executable}' '{path}' {words}"

    return command


def test_the_last_line_is_the_latency_of_each_candidate(script) -> None:
    command = script("print('warming up'); print(float(sys.argv[1]) * 2)", "{block_size_x}")
    found = CommandMeasurer(command, 30.0)(candidates({"block_size_x": 32}, {"block_size_x": 64}))
    assert found["latency_us"].to_pylist() == [64.0, 128.0]
    assert found["status"].to_pylist() == ["ok", "ok"]
    conform(found, contracts()["kernel_measurements"])


def test_an_object_states_more_than_the_latency(script) -> None:
    said = {"latency_us": 7.5, "cv": 0.01, "samples": 12, "compile_s": 1.5, "benchmark_s": 0.25}
    found = CommandMeasurer(script(f"print({json.dumps(json.dumps(said))})"), 30.0)(candidates({}))
    assert {name: found[name][0].as_py() for name in said} == said


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("sys.exit(2)", "compile_failed"),
        ("sys.exit(3)", "wrong_result"),
        ("sys.exit(1)", "runtime_failed"),
        ("print(1.0); os.kill(os.getpid(), 9)", "runtime_failed"),
        ("print(json.dumps({'status': 'wrong_result', 'latency_us': 1.0}))", "wrong_result"),
    ],
)
def test_failures_are_told_by_the_exit_status(script, code: str, status: str) -> None:
    found = CommandMeasurer(script(code), 30.0)(candidates({}))
    assert (found["status"][0].as_py(), found["latency_us"][0].as_py()) == (status, None)


def test_a_command_that_takes_too_long_is_killed_with_what_it_started(script, tmp_path: Path) -> None:
    left = tmp_path / "child"
    code = f"""
import subprocess
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
open({str(left)!r}, 'w').write(str(child.pid))
time.sleep(60)
"""
    found = CommandMeasurer(script(code), 3.0)(candidates({}))
    assert found["status"].to_pylist() == ["runtime_failed"]
    for _ in range(100):
        status = Path(f"/proc/{left.read_text()}/status")
        if not status.exists() or "State:\tZ" in status.read_text():
            return
        time.sleep(0.05)
    pytest.fail("the child of the command goes on")


def test_the_time_of_a_run_counts_where_the_command_states_none(script) -> None:
    command = script("time.sleep(0.2); x = int(sys.argv[1]); print(x) if x else sys.exit(2)", "{x}")
    worked, failed = CommandMeasurer(command, 30.0)(candidates({"x": 5}, {"x": 0})).to_pylist()
    assert worked["benchmark_s"] >= 0.2 and worked["compile_s"] is None
    assert failed["compile_s"] >= 0.2 and failed["benchmark_s"] is None
    said = script("time.sleep(0.2); print(json.dumps({'latency_us': 1.0, 'compile_s': 0.1}))", "{x}")
    stated = CommandMeasurer(said, 30.0)(candidates({"x": 1})).to_pylist()[0]
    assert stated["compile_s"] == 0.1 and stated["benchmark_s"] >= 0.1


def test_what_cannot_be_read_is_a_failure_once_the_command_was_understood(script) -> None:
    code = "print({1: 5.0, 2: 'nonsense', 3: 'nan', 4: 7.0}[int(sys.argv[1])])"
    measurer = CommandMeasurer(script(code, "{x}"), 30.0)
    found = measurer(candidates(*({"x": x} for x in (1, 2, 3, 4))))
    assert found["status"].to_pylist() == ["ok", "runtime_failed", "runtime_failed", "ok"]
    assert found["latency_us"].to_pylist() == [5.0, None, None, 7.0]
    assert measurer.unread[0].split(" for ")[0] == "the command printed 'nonsense'"
    assert len(measurer.unread) == 2
    with pytest.raises(InvalidInput, match="the command printed 'nonsense' for candidate c0"):
        CommandMeasurer(script(code, "{x}"), 30.0)(candidates({"x": 2}))


def test_the_last_failure_says_what_the_command_complained_of(script) -> None:
    measurer = CommandMeasurer(script("raise ModuleNotFoundError('no torch')", "{x}"), 30.0)
    measurer(candidates({"x": 1}))
    assert measurer.last_failure == "c0: exit status 1: ModuleNotFoundError: no torch"
    # a megabyte on stderr blocks nobody
    measurer = CommandMeasurer(script("sys.stderr.write('x' * 10**6 + '\\nlast\\n'); sys.exit(3)", "{x}"), 30.0)
    assert measurer(candidates({"x": 1}))["status"].to_pylist() == ["wrong_result"]
    assert measurer.last_failure == "c0: exit status 3: last"


def test_a_command_without_a_parameter_is_refused() -> None:
    check_parameters("./bench {x}")
    with pytest.raises(InvalidInput, match="names no parameter, so that every candidate would run the same command"):
        check_parameters("./bench --fast")


def test_values_are_single_words_that_no_shell_reads(script, tmp_path: Path) -> None:
    hostile = f"1; touch {tmp_path}/owned $(touch {tmp_path}/owned) `id` 'quote"
    command = script(
        "print(json.dumps({'latency_us': len(sys.argv)}) if sys.argv[1] == " + repr(hostile) + " else 0)", "{word}"
    )
    found = CommandMeasurer(command, 30.0)(candidates({"word": hostile}))
    assert found["latency_us"].to_pylist() == [2.0]
    assert not (tmp_path / "owned").exists()


def test_parameters_and_source_reach_the_command(script) -> None:
    code = "print(json.loads(sys.argv[1])['x'] + len(open(sys.argv[2]).read()))"
    found = CommandMeasurer(script(code, "{parameters} {source}"), 30.0)(candidates({"x": 40}, source="ab"))
    assert found["latency_us"].to_pylist() == [42.0]


def test_nothing_is_left_in_the_folder_of_temporary_files(script, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    os.mkdir(tmp_path / "temporary")
    CommandMeasurer(script("print(1)", "{source}"), 30.0)(candidates({}, source="x"))
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize(
    ("code", "words", "sentence"),
    refusals("searching/test_measurers::test_what_is_no_measurement_is_refused"),
)
def test_what_is_no_measurement_is_refused(script, code: str, words: str, sentence: str) -> None:
    with pytest.raises(InvalidInput) as error:
        CommandMeasurer(script(code, words), 30.0)(candidates({"x": 1}))
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("command", "limit", "sentence"),
    [
        ("/no/such/bench", 1.0, "--measure cannot run '/no/such/bench': No such file or directory."),
        ("'open", 1.0, "cannot be split into words: no closing quotation."),
        (" ", 1.0, "--measure is empty"),
    ],
)
def test_commands_that_cannot_run_are_refused(command: str, limit: float, sentence: str) -> None:
    with pytest.raises(InvalidInput) as error:
        CommandMeasurer(command, limit)(candidates({}))
    assert sentence in str(error.value)
