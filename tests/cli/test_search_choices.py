"""`search choose`, `search plan` and `search forecast` as a user types them: what is printed, written and refused."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kernelsight.caches.journal import Journal, journal_path, read_journal
from kernelsight.cli.main import main
from kernelsight.errors import InvalidInput
from kernelsight.measure.suite import read_suite
from kernelsight.searching.llm.forecaster import KIND, answer_cache
from tests.choices.made_choices import SIZES, TARGET, rows, sweep
from tests.searching.llm.llm_server import always, fields, serving, tool_answer
from tests.searching.llm.test_llm import SURE, candidates, measured
from tests.searching.made_spaces import made_rows


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sweep(tmp_path_factory.mktemp("sweep"), rows(TARGET, SIZES[::6]))


def test_choose_answers_in_a_sentence_and_writes_a_row_per_shape(path: Path, tmp_path: Path, capsys: Any) -> None:
    target, every = tmp_path / "choices.parquet", tmp_path / "all.csv"
    words = ["--gpu", "L40S", "--family", "gemm", "--sweep", str(path), "-o", str(target), "--candidates", str(every)]
    assert main(["search", "choose", *words]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("gemm on L40S, 30 shapes (target-measured: 5 shapes measured on l40s; contrasts of")
    found = pq.read_table(target)
    assert found.num_rows == len(SIZES)
    assert found["decision"].to_pylist().count("measured") == len(SIZES[::6])
    assert len(every.read_text().splitlines()) == 1 + 3 * len(SIZES)


@pytest.mark.whole
def test_plan_counts_what_is_measured_and_writes_a_suite(path: Path, tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "next.json"
    words = ["--gpu", TARGET, "--family", "gemm", "--sweep", str(path)]
    assert main(["search", "plan", *words, "--budget", "0.25", "-o", str(target)]) == 0
    assert len(read_suite(str(target)).points) == math.ceil(0.25 * len(SIZES)) - len(SIZES[::6])
    assert "3 shapes of gemm to measure on l40s next" in capsys.readouterr().err
    assert main(["search", "plan", *words, "--budget", "0.1", "-o", str(target)]) == 2
    assert "--budget 0.1 of the shapes is measured already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "words", "sentence"),
    [
        ("choose", ["--tolerance", "nan"], "--tolerance is nan; give a finite number, 0 or more"),
        ("choose", ["--calls", "none.parquet"], "none.parquet does not exist"),
        ("plan", [], "search plan needs -o FILE"),
        ("plan", ["--budget", "2", "-o", "x.json"], "--budget is 2.0; give a number above 0 and at most 1"),
    ],
)
def test_flags_that_say_nothing_are_refused(
    path: Path, verb: str, words: list[str], sentence: str, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["search", verb, "--gpu", TARGET, "--family", "gemm", "--sweep", str(path), *words]) == 2
    assert sentence in capsys.readouterr().err


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    pq.write_table(candidates(3), tmp_path / "c.parquet")
    pq.write_table(measured(c0=100.0), tmp_path / "m.parquet")
    given = {"--candidates": "c.parquet", "--measurements": "m.parquet"}
    return [word for flag, name in given.items() for word in (flag, str(tmp_path / name))]


def test_forecast_writes_a_table_and_asks_the_same_question_once(files: list[str], tmp_path: Path, capsys: Any) -> None:
    words = [*files, "--gpu", "a100_sxm", "--llm-model", "m", "--llm-cache", str(tmp_path / "kept.parquet")]
    with serving(always(tool_answer(fields(SURE)))) as seen:
        for _ in range(2):
            assert main(["search", "forecast", *words, "--llm-url", seen.url, "--format", "json"]) == 0
            assert len(json.loads(capsys.readouterr().out)) == 3
    assert len(seen) == 3
    assert "A100" in seen[0][2]["messages"][1]["content"]


def test_a_killed_forecast_asks_for_no_answer_twice(tmp_path: Path, files: list[str], capsys: Any) -> None:
    """A kill leaves the journal beside the cache: nothing after the last answer was written."""
    kept = tmp_path / "kept.parquet"
    words = ["search", "forecast", *files, "--gpu", "a100_sxm", "--llm-model", "m", "--llm-cache", str(kept)]
    with serving(always(tool_answer(fields(SURE)))) as seen:
        assert main([*words, "--llm-url", seen.url, "--format", "json"]) == 0
        first = capsys.readouterr().out
        rows = pq.read_table(kept).to_pylist()
        kept.unlink()
        with Journal(journal_path(kept), KIND, kept.name) as journal:
            for row in rows[:2]:
                journal.append(row)
        journal_path(kept).write_bytes(journal_path(kept).read_bytes() + b"12345678 {torn")
        assert main([*words, "--llm-url", seen.url, "--format", "json"]) == 0
        assert len(seen) == 3 + 1
    assert capsys.readouterr().out == first
    assert pq.read_table(kept).num_rows == 3 and not journal_path(kept).exists()


def test_a_server_that_dies_leaves_its_answers(tmp_path: Path) -> None:
    file = tmp_path / "kept.parquet"
    row = {"prompt_hash": "a", "sample": 1, "model": "m", "candidate_id": "c", "elapsed_s": 1.0}
    with pytest.raises(SystemExit), answer_cache(file, pq.read_table) as kept:
        kept["a", 1] = row
        assert read_journal(journal_path(file), KIND).records == [row]
        with pytest.raises(InvalidInput, match="another process is writing"), answer_cache(file, pq.read_table):
            pass
        raise SystemExit
    assert pq.read_table(file)["candidate_id"].to_pylist() == ["c"]


def test_answers_that_cannot_be_read_are_counted(files: list[str], capsys: Any) -> None:
    words = [*files, "--gpu", "a100_sxm", "--llm-model", "m", "--llm-retries", "0"]
    with serving(always(tool_answer({"p_bin_1": 1.0}))) as seen:
        assert main(["search", "forecast", *words, "--llm-url", seen.url]) == 0
    said = capsys.readouterr().err
    assert "0 of 3 candidates forecast" in said
    assert "3 answers could not be used: missing_field" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--llm-model", "m"], "--llm-url is missing"),
        (["--llm-url", "http://x"], "--llm-model is missing"),
        (["--llm-url", "ftp://x", "--llm-model", "m"], "give an http or https address"),
        (["--llm-url", "http://x", "--llm-model", "m", "--llm-samples", "0"], "--llm-samples is 0"),
        (["--llm-url", "http://x", "--llm-model", "m", "--llm-neighbours", "-1"], "--llm-neighbours is -1"),
        (["--llm-url", "http://x", "--llm-model", "m", "--measurements", "no.parquet"], "no.parquet does not exist"),
    ],
)
def test_a_model_that_cannot_be_asked_is_refused(
    files: list[str], words: list[str], sentence: str, capsys: Any
) -> None:
    assert main(["search", "forecast", *files, "--gpu", "a100_sxm", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_search_run_asks_the_model_once_and_resumes_by_its_cache(tmp_path: Path, capsys: Any) -> None:
    space = tmp_path / "space.parquet"
    pq.write_table(made_rows(), space)
    words = ["--space", str(space), "--gpu", "three", "--budget", "10", "--forecaster", "llm", "--llm-model", "m"]
    kept = tmp_path / "kept.parquet"
    with serving(always(tool_answer(fields([0.125] * 8)))) as seen:
        asked = [*words, "--llm-url", seen.url, "--llm-candidates", "6", "--llm-cache", str(kept)]
        assert main(["search", "run", *asked]) == 0
        first = capsys.readouterr().out
        assert len(seen) == 6
        assert "measured on one" in seen[0][2]["messages"][1]["content"]
        assert main(["search", "run", *asked]) == 0
        assert len(seen) == 6
    assert capsys.readouterr().out == first
    run = tmp_path / "run.duckdb"
    assert main(["search", "run", *words, "--llm-url", seen.url, "-o", str(run), "--resume"]) == 2
    assert "--resume with --forecaster llm needs the --llm-cache FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--measure", "cupy"], "--measure cupy needs --launch FILE"),
        (["--measure", "'open"], "cannot be split into words"),
        (["--forecaster", "llm"], "--llm-url is missing"),
        (["--forecaster", "llm", "--llm-url", "http://x", "--llm-model", "m", "--llm-candidates", "0"], "is 0; give"),
    ],
)
def test_runs_that_cannot_measure_or_ask_are_refused(
    words: list[str], sentence: str, tmp_path: Path, capsys: Any
) -> None:
    pq.write_table(made_rows(), tmp_path / "space.parquet")
    assert main(["search", "run", "--space", str(tmp_path / "space.parquet"), "--gpu", "three", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_search_run_measures_by_a_command(tmp_path: Path, capsys: Any) -> None:
    pq.write_table(made_rows(("one", "two")), tmp_path / "space.parquet")
    bench = tmp_path / "bench.py"
    bench.write_text("import json, sys\np = json.loads(sys.argv[1])\nprint(p['tile_size_x'] + p['block_size_x'])\n")
    words = ["--space", str(tmp_path / "space.parquet"), "--gpu", "three", "--budget", "5", "--format", "json"]
    assert main(["search", "run", *words, "--measure", f"'{sys.executable}' '{bench}' {{parameters}}"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measured"] == 5
    assert found["best_us"] < 300.0
