"""Words that are refused: each command of ``refusals.txt`` ends with status 2 and the sentence below it."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import pytest

from kernelsight.cli.command_line import PLANNED, VERBS, check_options, flags_of_verb
from kernelsight.errors import InvalidInput
from kernelsight.scenario.flag import Flag
from kernelsight.scenario.flag_values import has_range, typed_value
from kernelsight.scenario.flags import FLAGS

LINES = (Path(__file__).parent / "refusals.txt").read_text(encoding="utf-8").splitlines()
COMMANDS = [line.removeprefix("$ kernelsight") for line in LINES[::2]]


@pytest.mark.parametrize(("line", "sentence"), [*zip(COMMANDS, LINES[1::2], strict=True)])
def test_words_are_refused_in_one_sentence(line: str, sentence: str, refusal, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(*shlex.split(line)) == sentence


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
