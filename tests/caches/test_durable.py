"""Files that are written whole and synchronised, or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kernelsight.caches.durable import draft_of, durable_file
from kernelsight.errors import RunFailed


def test_a_file_is_synchronised_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append("sync"), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("replace"), replace(*paths)))
    with durable_file(tmp_path / "a.txt") as draft:
        draft.write_text("new")
    assert done == ["sync", "replace", "sync"]  # the file, then the folder that names it
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_an_error_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(RunFailed, match=r"a\.txt could not be written: No space left"), durable_file(path) as draft:
        draft.write_text("half")
        raise full
    with pytest.raises(KeyError), draft_of(path) as draft:
        draft.write_text("half")
        raise KeyError("not of the disk")
    assert path.read_text() == "old" and [each.name for each in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_that_is_not_there_is_a_failed_run(tmp_path: Path) -> None:
    path = tmp_path / "none" / "a.txt"
    with pytest.raises(RunFailed, match="could not be written: No such file"), durable_file(path) as draft:
        draft.write_text("new")


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    latest = tmp_path / "latest.txt"
    latest.symlink_to(Path("runs") / "first.txt")
    for text in ("created", "replaced"):
        with draft_of(latest) as draft:
            draft.write_text(text)
        assert latest.is_symlink() and (tmp_path / "runs" / "first.txt").read_text() == text
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["first.txt"]
