"""numba's cache sees every edit of the scheduler's rules, though they stand in several modules."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from kernelsight.serving import compiled, linking

FOLDER = Path(compiled.__file__).parent
# asks a rule that calls another one from another module
ASK = (
    "import numpy as np; from kernelsight.serving import limits as declared;"
    "from kernelsight.serving.admission import first_chunk; from kernelsight.serving.compiled import entry;"
    "limits = np.zeros(1, declared.LIMITS)[0]; print(entry(first_chunk.py_func)(10, 7, limits))"
)


def test_the_cache_folder_is_named_by_the_sources(tmp_path: Path) -> None:
    copy = tmp_path / "serving"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    before = compiled.cache_folder(copy)
    assert compiled.cache_folder(copy) == before
    (copy / "scheduler.py").write_text((copy / "scheduler.py").read_text() + "\n# edited\n")
    assert compiled.cache_folder(copy) != before


def test_an_edited_rule_is_compiled_anew(tmp_path: Path) -> None:
    package = tmp_path / "kernelsight"
    shutil.copytree(FOLDER.parent, package, ignore=shutil.ignore_patterns("__pycache__"))

    def answer() -> str:
        asked = subprocess.run([sys.executable, "-c", ASK], cwd=tmp_path, capture_output=True, text=True, check=True)
        return asked.stdout.strip()

    assert answer() == "7"
    rule = package / "serving" / "admission.py"
    assert rule.read_text().count("    return min(needed, budget)\n") == 1
    rule.write_text(
        rule.read_text().replace("    return min(needed, budget)\n", "    return min(needed, budget) + 1\n")
    )
    assert answer() == "8"


def test_a_folder_that_cannot_be_written_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.mkdir

    def refuse(self: Path, *arguments: object, **flags: object) -> None:
        if "__pycache__" in self.parts:
            raise PermissionError(13, "read-only", str(self))
        real(self, *arguments, **flags)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(Path, "mkdir", refuse)
    place = compiled.cache_folder()
    assert place.is_relative_to(tmp_path)
    assert os.access(place, os.W_OK)


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


def test_compiling_the_scheduler_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    @compiled.loop_entry
    def serve(number: int) -> int:
        return number

    @compiled.entry
    def count(number: int) -> int:
        return number

    with caplog.at_level("INFO", logger="kernelsight"):
        assert (count(1), serve(1), serve(2)) == (1, 1, 2)
    assert caplog.messages == ["compiling the scheduler, once after an installation"]
