"""Deployment files of the forms in ``deployment_shapes``: what is read of each, and the sentences of what is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kernelsight.catalog.tables import facts
from kernelsight.errors import InvalidInput
from kernelsight.scenario.launch.deployments import read_launch_line
from kernelsight.scenario.launch.shapes import OPERATIONS

CASES = yaml.safe_load((Path(__file__).parent / "deployments.yaml").read_text(encoding="utf-8"))
BY_NAME = {case["case"]: case for case in CASES}


def read(case: dict, folder: Path):
    """Return the launch line of a case, whose text is a file."""
    path = folder / case.get("name", "launch")
    path.write_text(case["text"], encoding="utf-8")
    return read_launch_line(f"@{path}{'#' + case['launch'] if 'launch' in case else ''}")


@pytest.mark.parametrize("name", [name for name, case in BY_NAME.items() if "flags" in case])
def test_what_is_read(name, tmp_path):
    line = read(BY_NAME[name], tmp_path)
    assert line.flags == {"engine": "vllm", **BY_NAME[name]["flags"]}
    ignored = {word.words for word in line.words if word.effect != "used"}
    assert set(BY_NAME[name].get("listed", ())) <= ignored


@pytest.mark.parametrize("name", [name for name, case in BY_NAME.items() if "refused" in case])
def test_what_is_refused(name, tmp_path):
    with pytest.raises(InvalidInput) as error:
        read(BY_NAME[name], tmp_path)
    assert BY_NAME[name]["refused"] in str(error.value) and len(str(error.value)) < 500


def test_the_table_holds_what_the_reader_does():
    rows = facts("deployment_shapes").to_pylist()
    fields = {row["field"] for row in rows}
    assert fields == {*OPERATIONS, "is", "shape", "document", "base", "size"}
    forms = {row["form"] for row in rows}
    assert {row["value"].split()[0] for row in rows if row["field"] == "shape"} <= forms
    assert len(CASES) > 60 and len(BY_NAME) == len(CASES)
