"""The faults of ``benches/mutation.py``: each can still be put into the sources, and none is there twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benches import mutation
from benches.mutation import Fault


def test_every_fault_fits_the_sources_and_is_there_once() -> None:
    faults = mutation.read_faults(mutation.FAULTS)
    misfits = {fault.fault: mutation.misfit_of(place, faults) for place, fault in enumerate(faults)}
    assert {fault: why for fault, why in misfits.items() if why} == {}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a tree of one rule and its test."""
    (tmp_path / "rule.sql").write_text("-- a rule\nselect a + b + b as c\n\nwhere a > 0\n")
    (tmp_path / "test_rule.py").touch()
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    return tmp_path


def fault(**other: Any) -> Fault:
    return Fault(
        **{"fault": "", "file": "rule.sql", "old": "a > 0", "new": "a > 1", "tests": ("test_rule.py",)} | other
    )


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"old": "a >= 0"}, mutation.STALE),
        ({"old": "b", "new": "d"}, mutation.STALE),
        ({"file": "gone.sql"}, mutation.STALE),
        ({"new": "a > 0"}, mutation.NO_CHANGE),
        ({"tests": ()}, "STALE: there is no test"),
        ({"tests": ("test_rule.py::test_a", "test_gone.py")}, "STALE: there is no test test_gone.py"),
        ({"old": "where a > 0", "new": "where a > 1"}, "TWICE: as fault 1"),
        ({"old": "a +", "fault": "of one name"}, "TWICE: as fault 2"),
        ({"old": "a +"}, None),
    ],
)
def test_a_fault_that_does_not_fit_is_named(tree: Path, other: dict[str, Any], why: str | None) -> None:
    faults = [fault(), fault(old="select", fault="of one name"), fault(**{"fault": "another"} | other)]
    assert [mutation.misfit_of(place, faults) for place in range(3)] == [None, None, why]


def test_a_fault_with_which_a_file_is_no_python_is_named(tree: Path) -> None:
    """A line without its indentation leaves that to the next one, and no test could be collected."""
    (tree / "rule.py").write_text("def rule(a):\n    a += 1\n    a *= 2\n    return a\n")
    given = {"file": "rule.py", "old": "a *= 2\n", "new": ""}
    faults = [fault(**given), fault(**given | {"old": "    a *= 2\n", "fault": "whole"})]
    assert [mutation.misfit_of(place, faults) for place in range(2)] == [mutation.NO_PYTHON, None]


def test_the_bench_fails_for_a_fault_that_does_not_fit(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [fault(old="gone")._asdict()]
    (tree / "faults.json").write_text(json.dumps(rows))
    assert mutation.main(["--faults", str(tree / "faults.json")]) == 1
    assert f"rule.sql: : {mutation.STALE}\n0 of 1 faults" in capsys.readouterr().out


def test_drawn_lines_are_code(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, name, text in (
        ("sql", "rule.sql", (tree / "rule.sql").read_text()),
        (
            "kernelsight",
            "rule.py",
            '"""Words\n\nof a module."""\n\n\ndef rule():  # counts\n    """Words."""\n    # why\n    return 1\n',
        ),
    ):
        (tree / folder).mkdir()
        (tree / folder / name).write_text(text)
    assert mutation.main(["--draw", "4", "--seed", "3"]) == 0
    drawn = capsys.readouterr().out.splitlines()
    assert sorted(drawn) == [
        "kernelsight/rule.py:6: def rule():  # counts",
        "kernelsight/rule.py:9: return 1",
        "sql/rule.sql:2: select a + b + b as c",
        "sql/rule.sql:4: where a > 0",
    ]
