"""Rules and entry points: what they may do, and who may call them."""

from __future__ import annotations

from pathlib import Path

import numba
import numpy as np
import pytest

from kernelsight.errors import RunFailed
from kernelsight.serving.compilation import compiled, linking, machine_code


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


RECORD = np.dtype([("x", "i4"), ("y", "f8")], align=True)


@compiled.written_out
def first_of(values: np.ndarray) -> tuple:
    return values[0], values[values.size - 1]


@compiled.entry
def add_all(values: np.ndarray, own: np.void, pair: tuple, factor: float, twice: bool, *rest: np.ndarray) -> float:
    """One argument of each kind; what an array holds is read and written."""
    first, last = first_of(values)
    total = first + 10.0 * last + own["y"] + factor * pair[1][0]
    for i in range(rest[0].shape[0]):
        for j in range(rest[0].shape[1]):
            total += rest[0][i, j] * (2.0 if twice else 1.0)
    rest[1]["x"][1] = pair[0].size
    return total


def test_every_kind_of_argument() -> None:
    records, many = np.zeros(2, RECORD), np.arange(12.0).reshape(3, 4)
    records["y"] = 5.0
    pair = (np.zeros(7, np.bool_), np.array([3]))
    for square, twice in ((many, True), (many[:, ::2], np.True_), (many.T, False), (many[::-1], 0 > 1)):
        found = add_all(np.array([1.0, 2.0]), records[0], pair, np.float64(2.0), twice, square, records)
        assert found == 1.0 + 20.0 + 5.0 + 6.0 + square.sum() * (2.0 if twice else 1.0)
        assert records["x"].tolist() == [0, 7]
    values = np.array([1.0, 2.0])
    values.flags.writeable = False
    assert add_all(values, records[0], pair, 2, True, many, records) == 32.0 + 2.0 * many.sum()


def test_answers_and_what_no_entry_point_takes() -> None:
    @compiled.entry
    def is_small(number: float) -> bool:
        return number < 3.0

    @compiled.entry
    def forget(values: np.ndarray) -> None:
        values[:] = 0.0

    values = np.ones(3)
    assert is_small(2.0) is True and is_small(4.0) is False and forget(values) is None and not values.any()
    with pytest.raises(TypeError, match="takes arrays, records, numbers and tuples of them, not str"):
        is_small("two")


def test_a_fault_in_machine_code_is_an_error() -> None:
    @compiled.entry
    def refuse(number: int) -> int:
        if number > 2:
            raise ValueError("too many")
        return number

    assert refuse(2) == 2
    with pytest.raises(RunFailed, match="ended with status"):
        refuse(3)


def test_other_versions_of_numba_compile_rules_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The linking of rules is written against the versions that were tested."""

    def triple(number: int) -> int:
        return 3 * number

    monkeypatch.setattr(linking, "TESTED", ((0, 1), (0, 2)))
    rule = compiled.compiled(triple)
    one = compiled.entry(lambda number: rule(number) + 1)
    assert one(3) == 10
