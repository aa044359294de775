"""The laboratory: what a checkout registers, and an installed package that lacks it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelsight import laboratory
from kernelsight.cli.command_line import VERBS, module_of
from kernelsight.cli.main import main
from tests.cli.test_backtest import HEADER, RUNS


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package without its laboratory."""
    monkeypatch.setattr(laboratory, "is_here", lambda: False)


@pytest.fixture
def runs(tmp_path: Path) -> str:
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([HEADER, *RUNS[:2]]))
    return str(path)


@pytest.mark.parametrize("verb", laboratory.OPTIONS)
def test_options_are_those_that_the_laboratory_declares(verb: str) -> None:
    declared = {f"--{one['name'].replace('_', '-')}": one.get("default") for one in laboratory.options(verb)}
    assert declared == laboratory.OPTIONS[verb]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "words",
    [
        ["backtest", "--runs", "runs.csv", "--against", "aiconfigurator"],
        ["backtest", "--runs", "runs.csv", "--constants=transfer"],
        ["backtest", "--runs", "aiconfigurator"],
        ["calibrate", "evaluate", "--sweep", "s.parquet", "--test-versions", "new"],
        ["calibrate", "import", "vidur", "folder", "-o", "s.parquet"],
        ["search", "evaluate", "--space", "s.parquet"],
    ],
)
def test_an_installed_package_says_where_it_is(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    answer = capsys.readouterr()
    assert answer.out == "" and answer.err.count("\n") == 1
    assert "is part of the evaluation of KernelSight itself" in answer.err and "from a checkout" in answer.err


@pytest.mark.usefixtures("installed")
def test_own_runs_are_scored_without_it(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backtest", "--runs", runs, "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["runs"], report["constants"], report["fitted_constants"]) == (2, "shipped", [])


def test_every_verb_of_the_laboratory_has_its_module() -> None:
    names = [module for module in map(module_of, VERBS) if module and module.startswith("kernelsight.laboratory.")]
    assert names
    for name in names:
        assert callable(laboratory.part(name.removeprefix("kernelsight.laboratory."), "a verb").run)
