"""Deployment files of the forms in ``deployment_shapes``: what is read of each, and the sentences of what is not."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import yaml

from kernelsight.catalog.tables import facts
from kernelsight.errors import InvalidInput
from kernelsight.scenario.launch.deployments import read_launch_line
from kernelsight.scenario.launch.shape_fields import OPERATIONS

CASES = yaml.safe_load((Path(__file__).parent / "deployments.yaml").read_text(encoding="utf-8"))
# flags whose value is computed from what stands in a file
DERIVED = ("gpu", "max_model_len", "data_parallel_size", "expert_parallel_size", "enable_expert_parallel", "dtype")
SIZES = {"tensor_parallel_size", "pipeline_parallel_size", "max_num_seqs", "max_model_len", "gpu_memory_utilization"}
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
    said = str(error.value)
    assert BY_NAME[name]["refused"] in said and len(said.replace(str(tmp_path), "")) <= 200


def test_the_table_holds_what_the_reader_does():
    rows = facts("deployment_shapes").to_pylist()
    fields = {row["field"] for row in rows}
    assert fields == {*OPERATIONS, "is", "shape", "document", "base", "size"}
    forms = {row["form"] for row in rows}
    assert {row["value"].split()[0] for row in rows if row["field"] == "shape"} <= forms
    assert len(CASES) > 60 and len(BY_NAME) == len(CASES)


def changed(text: str, rng: random.Random) -> str:
    """Return a text with a line dropped, indented, outdented or doubled, or two in another order."""
    lines = text.split("\n")
    index, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.choice(("drop", "indent", "outdent", "double", "order"))
    if kind == "order":
        lines[index], lines[other] = lines[other], lines[index]
    else:
        line = lines[index]
        lines[index : index + 1] = {
            "drop": [],
            "indent": [f"  {line}"],
            "outdent": [line.removeprefix("  ")],
            "double": [line, line],
        }[kind]
    return "\n".join(lines)


@pytest.mark.parametrize("thirty", range(10))
def test_texts_that_were_changed_are_refused_or_read_as_they_say(thirty, tmp_path):
    for seed in range(30 * thirty, 30 * thirty + 30):
        check_changed(random.Random(seed), tmp_path)


def check_changed(rng: random.Random, tmp_path: Path) -> None:
    case = rng.choice([case for case in CASES if "flags" in case])
    text = changed(case["text"], rng)
    try:
        line = read({**case, "text": text}, tmp_path)
    except InvalidInput as error:
        assert "\n" not in str(error)
        return
    expected = {"engine": "vllm", **case["flags"]}
    for name, value in line.flags.items():
        if name.endswith("_replicas") and "&" in text:
            continue  # a command that stands there twice is two replicas
        # as before, or what stands in the text, or the one replica of a pool that states none
        assert value == expected.get(name) or str(value) in text or value == 1 or name in DERIVED, (name, value)
    # a size that is still there is read or listed
    listed = " ".join(word.words for word in line.words)
    # in a script another order has another meaning
    for name in SIZES & set(expected) - set(line.flags) if "script" not in case["case"] else ():
        spelled = re.compile(rf"\b{name.replace('_', '.?')}\b.?.?.?{expected[name]}\b", re.IGNORECASE)
        assert not spelled.search(text) or re.search(name.replace("_", ".?"), listed, re.IGNORECASE), name
