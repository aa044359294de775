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

from kernelsight.serving import compiled

FOLDER = Path(compiled.__file__).parent
# asks a rule that calls another one from another module
ASK = (
    "import numpy as np; from kernelsight.serving import records;"
    "from kernelsight.serving.admission import first_chunk;"
    "limits = np.zeros(1, records.LIMITS)[0]; print(first_chunk(10, 7, limits))"
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

    @compiled.compiled
    def make(size: int) -> float:
        return np.zeros(size).sum()

    with pytest.raises(numba.core.errors.TypingError):
        make(3)
