"""Progress of long work: share and time left on a terminal, lines elsewhere, nothing where output is quiet."""

from __future__ import annotations

import sys
import time

import pytest

from kernelsight.dataflow.progress import Done
from kernelsight.present import output, progress
from kernelsight.present.progress import Waiting


def show(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(progress, "LINES_EVERY_S", 0.01)
    monkeypatch.setattr(progress, "LOOKS_EVERY_S", 0.01)
    with Waiting("sizing") as waiting:
        waiting("4 of 9 deployments fit")
        waiting(Done(1, 4, "deployments"))
        time.sleep(0.1)


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    show(monkeypatch, True)
    shown = capsys.readouterr().err
    assert "4 of 9 deployments fit\n" in shown and "sizing:  25%|" in shown and "1/4 [00:00<00:00" in shown
    assert shown.endswith("\r\033[K")


def test_a_file_has_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    show(monkeypatch, False)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "4 of 9 deployments fit" and lines[1] == "sizing: 1 of 4 deployments, 0 s, 0 s left"
    output.set_verbosity(output.QUIET)
    show(monkeypatch, False)
    output.set_verbosity(output.NORMAL)
    assert capsys.readouterr().err == ""
