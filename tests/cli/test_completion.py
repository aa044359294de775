"""Completion of shells from the core install: a script for each, and the answers that it asks for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelsight.cli.main import main


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete "), ("zsh", "compdef"), ("fish", "complete --command")])
def test_each_shell_has_its_script(shell: str, word: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["completion", shell]) == 0 and word in (script := capsys.readouterr().out) and "kernelsight" in script


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("kernelsight simul", {"simulate"}),
        ("kernelsight simulate --engine ", {"vllm", "sglang", "trtllm"}),
        ("kernelsight calibrate f", {"fit"}),
    ],
)
def test_lines_are_completed(line: str, found: set[str], tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    asked["_ARGCOMPLETE_STDOUT_FILENAME"] = str(answer)
    subprocess.run([sys.executable, "-m", "kernelsight"], env={**os.environ, **asked}, check=True, timeout=120)
    assert {word.strip() for word in answer.read_text().split("\n")} == found
