"""`kernelsight cache`: where, how large, why not used; --clear removes files of ours alone."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kernelsight.caches import disk_cache
from kernelsight.serving.compilation import machine_code

KEY = 64 * "0"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """Two files of tables, one of machine code, and one of another version; their folders."""
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path / "named"))
    code = tmp_path / "code" / f"numba-{16 * '0'}"
    monkeypatch.setattr(machine_code, "PLACES", [code])
    machine_code.code_folder.cache_clear()
    disk_cache.write_cached(KEY, bytes(68))
    disk_cache.write_cached(64 * "1", bytes(868))
    machine_code.code_folder().write(KEY, bytes(2**20))
    machine_code.opened(code.with_name(f"numba-{16 * 'f'}")).write(KEY, bytes(8))
    yield tmp_path / "named" / "kernelsight" / "kept", code
    machine_code.code_folder.cache_clear()


def test_each_folder_is_a_row(command: Callable, places: tuple[Path, Path]) -> None:
    tables, code, earlier = command("cache", "--format", "json").json
    assert tables == {
        **{"cache": "tables", "folder": str(places[0]), "files": 2, "bytes": 1000, "limit_bytes": 512 * 2**20},
        **{"removed_files": 0, "removed_bytes": 0, "not_used": None},
    }
    assert (code["cache"], code["folder"], code["files"]) == ("compiled scheduler", str(places[1]), 1)
    assert (code["bytes"], code["limit_bytes"]) == (2**20 + 32, 256 * 2**20)
    assert (earlier["cache"], earlier["bytes"]) == ("compiled scheduler, other version", 40)


def test_clear_removes_files_of_ours_alone(command: Callable, places: tuple[Path, Path]) -> None:
    others = [places[0].parents[1] / "thesis.tar", *(place / "thesis.tar" for place in places)]
    for path in others:
        path.write_bytes(b"mine")
    rows = command("cache", "--clear", "--format", "json").json
    assert [(row["files"], row["removed_files"]) for row in rows] == [(0, 2), (0, 1), (0, 1)]
    assert sum(row["removed_bytes"] for row in rows) == 1000 + 2**20 + 32 + 40
    assert all([path.name for path in place.iterdir()] == ["thesis.tar"] for place in places)
    assert all(path.read_bytes() == b"mine" for path in others)
    # another version that holds nothing is no row
    assert [row["files"] for row in command("cache", "--format", "json").json] == [0, 0]


def test_a_person_reads_a_sentence_and_a_table(command: Callable, places: tuple[Path, Path]) -> None:
    lines = command("cache").out.splitlines()
    assert lines[0] == "4 files, 1 MiB."
    assert lines[1].split() == ["cache", "files", "MiB", "limit", "MiB", "folder"]
    assert lines[4].split() == ["compiled", "scheduler", "1", "1", "256", str(places[1])]
    assert command("cache", "--clear").out.startswith("Removed 4 files, 1 MiB.\n")
    assert command("cache", "--clear").out.startswith("Removed 0 files, 0 MiB.\n")


def test_why_a_folder_is_not_used(
    command: Callable, places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places[0].parent.chmod(0o777)
    places[1].chmod(0o770)
    monkeypatch.setattr(machine_code, "PLACES", [places[1], tmp_path / "second", tmp_path / "third"])
    tables, code, second, _ = command("cache", "--clear", "--format", "json").json
    assert tables["not_used"] == f"{places[0].parent}: other users can write it (mode 777)"
    assert code["not_used"] == "other users can write it (mode 770)"
    assert (second["folder"], second["not_used"]) == (str(tmp_path / "second"), None)
    assert len(list(places[0].iterdir())) == 2 and len(list(places[1].iterdir())) == 1
    assert command("cache").out.splitlines()[1].endswith("  not used because")
    monkeypatch.setenv(disk_cache.VARIABLE, "")
    tables = command("cache", "--format", "json").json[0]
    assert (tables["folder"], tables["not_used"]) == (None, "the environment variable KERNELSIGHT_CACHE is empty")


def test_rows_are_written(command: Callable, places: tuple[Path, Path], tmp_path: Path) -> None:
    said = command("cache", "--format", "csv", "-o", tmp_path / "rows.parquet").out
    written = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [row["bytes"] for row in written] == [1000, 2**20 + 32, 40]
    assert [row["folder"] for row in csv.DictReader(io.StringIO(said))] == [row["folder"] for row in written]
