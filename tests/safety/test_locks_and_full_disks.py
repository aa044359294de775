"""Two processes on one output, a disk that fills, and folders of others: one sentence, and nothing is lost."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernelsight.caches.durable import durable_file, locked
from kernelsight.cli.calibrate import fit
from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.session import Session
from tests.asked import sweep
from tests.sweeps.conftest import LOAD, SMALL, rows_of, table_bytes

ROOT = Path(__file__).resolve().parents[2]
GRID = rows_of(max_concurrency=[1, 2, 3, 4])
HOLDER = """
import sys
from pathlib import Path
from kernelsight.caches.durable import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def held() -> Iterator[Callable[[Path], subprocess.Popen]]:
    """Return a function that lets another process hold the lock of a file; every one ends with the test."""
    running = []

    def hold(target: Path) -> subprocess.Popen:
        words = [sys.executable, "-c", HOLDER, str(target)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        running.append(
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        )
        assert running[-1].stdout.readline() == "held\n"
        return running[-1]

    yield hold
    for process in running:
        process.communicate()


def test_a_second_sweep_on_the_same_output_is_refused(held: Callable, refusal: Callable, tmp_path: Path) -> None:
    grid, out = tmp_path / "grid.json", tmp_path / "out.parquet"
    grid.write_text(json.dumps(SMALL | LOAD | {"max_concurrency": [1, 4]}))
    first = held(out)
    for resume in ([], ["--resume"]):
        assert refusal("sweep", grid, "-o", out, *resume) == (
            f"another process is writing {out}; wait until it finishes, or use another -o FILE."
        )
    first.communicate()
    assert first.returncode == 0 and sorted(path.name for path in tmp_path.iterdir()) == ["grid.json"]


def test_the_draft_of_a_running_sweep_is_never_removed(held: Callable, session: Session, tmp_path: Path) -> None:
    folder = tmp_path / "out.parts"
    folder.mkdir()
    draft = folder / ".000003.parquet.77.draft"
    draft.write_bytes(b"half")
    held(folder)
    for resume in (False, True):
        with pytest.raises(InvalidInput, match=r"another process is writing .*out\.parts; wait until it finishes"):
            sweep(session, GRID, folder=folder, resume=resume)
    assert draft.read_bytes() == b"half"


def test_a_lock_ends_with_its_process(held: Callable, session: Session, tmp_path: Path) -> None:
    holder = held(tmp_path / "out.parts")
    holder.kill()
    holder.wait()
    assert sweep(session, GRID[:1], folder=tmp_path / "out.parts").num_rows == 1
    assert not (tmp_path / ".out.parts.lock").exists()


def test_a_lock_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    words = "cannot be written: No such file or directory; use another place"
    with pytest.raises(InvalidInput, match=words), locked(tmp_path / "nowhere" / "out.parts"):
        raise AssertionError("nothing was locked")


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_text(text: str, target: Path) -> None:
    with durable_file(target) as draft:
        draft.write_text(text[:10])
        full_disk()


@pytest.mark.whole
def test_a_disk_that_fills_in_a_sweep_keeps_what_is_finished(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, written = tmp_path / "out.parts", []
    write = pq.write_table

    def write_twice(table: pa.Table, place: IO[bytes], **options: object) -> None:
        if len(written) == 2:
            place.write(b"what still went on the disk")
            full_disk()
        written.append(place)
        write(table, place, **options)

    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", write_twice)
        with pytest.raises(RunFailed) as refusal:
            sweep(session, GRID, folder=folder, partition_requests=24)
    sentence = f"{folder} could not be written: No space left on device; free space and continue with --resume."
    assert str(refusal.value) == sentence
    assert len(list(folder.glob("*.parquet"))) == 2 and not list(folder.glob(".*")), "a draft is left"
    assert table_bytes(sweep(session, GRID, folder=folder, resume=True)) == table_bytes(sweep(session, GRID))


@pytest.mark.whole
def test_a_disk_that_fills_at_the_end_of_a_sweep_loses_no_partition(
    command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = tmp_path / "grid.json"
    grid.write_text(json.dumps(SMALL | LOAD | {"max_concurrency": [1, 4]}))
    for name in ("out.duckdb", "out.csv"):
        out = tmp_path / name
        with monkeypatch.context() as patch:
            if name == "out.csv":  # partitions and the manifest still find space
                patch.setattr("kernelsight.present.output.write_text", full_text)
            else:
                patch.setattr("kernelsight.dataflow.storage._write_database", full_disk)
            answer = command("sweep", grid, "-o", out)
        assert answer.status == 1 and answer.err.count("\n") == 1, answer
        assert not out.exists() and list((tmp_path / f"{name}.parts").glob("*.parquet"))
        assert command("sweep", grid, "-o", out, "--resume").status == 0
        assert out.exists() and not (tmp_path / f"{name}.parts").exists()


@pytest.mark.whole
def test_a_disk_that_fills_under_a_limit_of_the_system(command: Callable, tmp_path: Path) -> None:
    """The system refuses to write on: a limit of the size of files stands for a disk without space."""
    grid = tmp_path / "grid.json"
    grid.write_text(json.dumps(SMALL | LOAD | {"max_concurrency": [1, 2, 4]}))
    limited = (
        "import resource, sys; from kernelsight.cli.main import main; import kernelsight.sweeps.sweep; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); sys.exit(main(sys.argv[1:]))"
    )
    words = ["sweep", str(grid), "-o", str(tmp_path / "out.csv"), "--partition-requests", "24"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_ENABLE_COMPILATION_CACHE": "false"}
    run = subprocess.run([sys.executable, "-c", limited, *words], env=environment, capture_output=True, text=True)
    assert run.returncode == 1, run.stderr
    sentence = f"kernelsight: {tmp_path}/out.csv.parts could not be written: "
    assert run.stderr.startswith(sentence) and run.stderr.endswith("; free space and continue with --resume.\n")
    assert run.stderr.count("\n") == 1
    assert command(*words, "--resume").status == 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 4


def test_a_fitted_model_is_not_lost_with_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, elsewhere = tmp_path / "full" / "pack.parquet", tmp_path / "temporary"
    for folder in (target.parent, elsewhere):
        folder.mkdir()
    pack, write = pa.table({"family": ["gemm"]}), pq.write_table
    monkeypatch.setattr(fit.tempfile, "gettempdir", lambda: str(elsewhere))

    def write_pack(rows: pa.Table, path: Path) -> None:
        if path == target:
            raise RunFailed(f"{path} could not be written: No space left on device.")
        write(rows, path)

    monkeypatch.setattr("kernelsight.fitting.pack_rows.write_pack", write_pack)
    with pytest.raises(RunFailed) as refusal:
        fit.keep_pack(pack, target)
    [kept] = elsewhere.iterdir()
    assert str(refusal.value) == (
        f"{target} could not be written: No space left on device. The kernel model is in {kept}; move it where there "
        "is space."
    )
    assert pq.read_table(kept).equals(pack) and not list(target.parent.iterdir())
