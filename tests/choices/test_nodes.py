"""Choices as nodes: questions in a table, answered in one call, kept in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kernelsight.catalog.tables import contracts, facts
from kernelsight.choices import choices
from kernelsight.cli.main import main
from kernelsight.errors import InvalidInput
from kernelsight.session import connect
from tests.choices.made_choices import SIZES, TARGET, rows, sweep


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sweep(tmp_path_factory.mktemp("sweep"), rows(TARGET, SIZES[::6]))


@pytest.mark.whole
def test_several_questions_are_answered_in_one_call(path: Path) -> None:
    with connect() as session:
        asked = {"family": "gemm", "sweeps": [str(path)]}
        session.give("choice_questions", [asked | {"gpu": TARGET}, asked | {"gpu": "a100", "tolerance": 9.0}])
        found = session.sql(
            "select gpu, count(*), bool_or(decision = 'measure') from choices group by gpu order by gpu"
        )
        other, own = found.fetchall()
        stated = session.sql("select distinct gpu, tolerance from choice_candidates order by gpu").fetchall()
        assert stated == [("a100_sxm", 9.0), (TARGET, 0.02)]
        assert own[:2] == (TARGET, len(SIZES)) and (other[0], other[2]) == ("a100_sxm", False)
        session.give("choice_questions", [asked | {"gpu": TARGET, "sources": [TARGET]}])
        with pytest.raises(InvalidInput, match="the GPU to choose for"):
            session.table("choices")


def test_names_and_tolerances_of_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """An alias is the GPU of the catalogue, unless a GPU was given under that very name; a tolerance of 0 is one."""
    asked = []

    def choice_of(sweeps: list[Path], family: str, gpu: str, *_: Any) -> str:
        return gpu

    def candidates(gpu: str, _: Any, tolerance: float) -> Any:
        asked.append((gpu, tolerance))
        return contracts()["choice_candidates"].schema.empty_table()

    monkeypatch.setattr(choices, "choice_of", choice_of)
    monkeypatch.setattr(choices, "contrasts", lambda choice: (None, None))
    monkeypatch.setattr(choices, "choice_candidates", candidates)
    gpus = facts("gpus")
    rows = [{"gpu": gpu, "tolerance": tolerance} for gpu, tolerance in (("A100", None), ("A100", 0.0), ("l40s", 0.5))]
    schema = contracts()["choice_questions"].schema
    rows = [{"family": "gemm", "sweeps": ["sweep.parquet"]} | row for row in rows]
    choices.answer_questions(pa.Table.from_pylist(rows, schema), gpus)
    own_name = gpus.set_column(gpus.column_names.index("gpu"), "gpu", [["A100", *gpus["gpu"].to_pylist()[1:]]])
    choices.answer_questions(pa.Table.from_pylist(rows[:1], schema), own_name)
    assert asked == [("a100_sxm", 0.02), ("a100_sxm", 0.0), ("l40s", 0.5), ("A100", 0.02)]


def test_a_question_is_kept_with_its_answer(path: Path, tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "choices.duckdb"
    words = ["--gpu", TARGET, "--family", "gemm", "--sweep", str(path), "-o", str(target), "--format", "json"]
    assert main(["search", "choose", *words]) == 0
    capsys.readouterr()
    with connect(target, read_only=True) as saved:
        assert saved.table("choices").num_rows == len(SIZES)
        assert saved.table("choice_questions").to_pylist()[0]["tolerance"] == 0.02
