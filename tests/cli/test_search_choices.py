"""`search choose`, `search plan` and `search forecast` as a user types them: what is printed, written and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kernelsight.caches.journal import Journal, journal_path, read_journal
from kernelsight.cli.main import main
from kernelsight.errors import InvalidInput
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


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    pq.write_table(candidates(3), tmp_path / "c.parquet")
    pq.write_table(measured(c0=100.0), tmp_path / "m.parquet")
    given = {"--candidates": "c.parquet", "--measurements": "m.parquet"}
    return [word for flag, name in given.items() for word in (flag, str(tmp_path / name))]


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
