"""Rules and entry points: what they may do, and who may call them."""

from __future__ import annotations

from pathlib import Path

import numba
import numpy as np
import pytest

from kernelsight.serving.engine import compiled, linking, machine_code


def test_a_rule_that_makes_an_array_is_refused() -> None:
    """Rules count no references to arrays, so that they cannot own one."""

    @compiled.entry
    def make(size: int) -> float:
        return np.zeros(size).sum()

    with pytest.raises(numba.core.errors.TypingError):
        make(3)


def test_python_cannot_call_a_rule() -> None:
    """A rule has no machine code of its own; before an entry point needs it and after."""

    @compiled.compiled
    def double(number: int) -> int:
        return 2 * number

    @compiled.entry
    def quadruple(number: int) -> int:
        return double(double(number))

    with pytest.raises(TypeError, match=r"double is a rule of the scheduler; call it through entry\(double.py_func\)"):
        double(3)
    assert quadruple(3) == 12
    with pytest.raises(TypeError, match="double is a rule"):
        double(3)


def test_numba_knows_a_rule_once_it_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code that is kept needs no rule; here there is none yet."""
    monkeypatch.setattr(machine_code, "PLACES", [tmp_path])
    machine_code.code_folder.cache_clear()

    @compiled.compiled
    def double(number: int) -> int:
        return 2 * number

    @compiled.entry
    def quadruple(number: int) -> int:
        return double(double(number))

    assert "dispatcher" not in vars(double)
    assert quadruple(3) == 12 and "dispatcher" in vars(double)
    machine_code.code_folder.cache_clear()


def test_an_entry_point_is_a_rule_to_others() -> None:
    @compiled.entry
    def increment(number: int) -> int:
        return number + 1

    @compiled.entry
    def twice(number: int) -> int:
        return increment(increment(number))

    assert (increment(3), twice(3)) == (4, 5)
    assert len(increment.signatures) == 1


def test_other_versions_of_numba_compile_rules_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The linking of rules is written against the versions that were tested."""

    def triple(number: int) -> int:
        return 3 * number

    monkeypatch.setattr(linking, "TESTED", ((0, 1), (0, 2)))
    rule = compiled.compiled(triple)
    one = compiled.entry(lambda number: rule(number) + 1)
    assert one(3) == 10
