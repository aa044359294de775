"""Words and files that are refused: each command of ``refusals.txt`` ends with status 2 and the sentence below it."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernelsight.cli.command_line import PLANNED, VERBS, check_options, flags_of_verb
from kernelsight.errors import InvalidInput
from kernelsight.scenario.flag import Flag
from kernelsight.scenario.flag_values import has_range, typed_value
from kernelsight.scenario.flags import FLAGS
from tests.choices.made_choices import SIZES, TARGET, rows, sweep
from tests.searching.llm.test_llm import candidates, measured
from tests.searching.made_spaces import made_rows

LINES = (Path(__file__).parent / "refusals.txt").read_text(encoding="utf-8").splitlines()
# files that commands name beside those that stand above them
GIVEN: dict[str, Callable[[Path], object]] = {
    "made.parquet": lambda folder: pq.write_table(made_rows(), folder / "made.parquet"),
    "candidates.parquet": lambda folder: pq.write_table(candidates(3), folder / "candidates.parquet"),
    "measurements.parquet": lambda folder: pq.write_table(measured(c0=100.0), folder / "measurements.parquet"),
    "sweep.parquet": lambda folder: sweep(folder, rows(TARGET, SIZES[::6])),
}


def refusals() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each command, its sentence and the files above it: a text, an object, or rows of a Parquet table."""
    files: dict[str, Any] = {}
    for line in LINES:
        if line.startswith("> "):
            name, content = line[2:].split(" ", 1)
            files[name] = json.loads(content)
        elif line.startswith("$ "):
            command = line.removeprefix("$ kernelsight")
        else:
            yield command, line, files
            files = {}


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet" and isinstance(content, list):
        pq.write_table(pa.Table.from_pylist(content), path)
    else:
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_bytes(text.encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(("line", "sentence", "files"), [*refusals()])
def test_words_are_refused_in_one_sentence(line, sentence, files, refusal, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)
    for word, before in zip(words, [None, *words], strict=False):
        if word in GIVEN and before != "-o":
            GIVEN[word](tmp_path)
    for name, content in files.items():
        write(tmp_path / name, content)
    before = sorted(tmp_path.rglob("*"))
    assert refusal(*words) == sentence
    assert sorted(tmp_path.rglob("*")) == before


def outside(flag: Flag) -> list[float]:
    """Return numbers just outside of a flag's range, and two that no range holds."""
    beyond = [flag.above, flag.below]
    beyond += [None if flag.least is None else flag.least - 1e-9, flag.most and flag.most * (1 + 1e-9)]
    whole = [flag.least - 1, flag.most + 1, flag.least + 0.5] if flag.kind == "whole" else []
    return [value for value in (whole or beyond) if value is not None] + [float("nan"), float("inf")]


@pytest.mark.parametrize("name", [name for name, flag in FLAGS.items() if has_range(flag)])
def test_a_flag_outside_of_its_range_is_refused(name: str) -> None:
    for value in outside(FLAGS[name]):
        with pytest.raises(InvalidInput, match=f"{name} is .*; give a"):
            typed_value(name, value)


@pytest.mark.parametrize("verb", [verb for verb, declared in VERBS.items() if "options" in declared])
def test_an_option_outside_of_its_range_is_refused_and_its_default_is_not(verb: str) -> None:
    for table, flag in flags_of_verb(verb):
        check_options(argparse.Namespace(**{flag.name: flag.default}), verb)
        for value in outside(flag) if has_range(flag) and table not in PLANNED else ():
            with pytest.raises(InvalidInput, match=f"{flag.options[0]} is .*; give a"):
                check_options(argparse.Namespace(**{flag.name: value}), verb)
