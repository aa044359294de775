"""A sweep that is killed at any moment goes on where it was, and ends with the same bytes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kernelsight.errors import InvalidInput
from kernelsight.session import Session, connect
from kernelsight.sweeps.parts import SWEEP_FILE, Parts
from tests.asked import sweep
from tests.conftest import WORLDS_PERCENT

from .conftest import LOAD, SMALL, rows_of, table_bytes

ROOT = Path(__file__).resolve().parents[2]
# the checks that draw all random worlds kill more often too
KILLS = 10 if WORLDS_PERCENT >= 100 else 2
GRID = rows_of(tp=[1, 2], max_concurrency=[1, 4])


class Stopped(Exception):
    """Stands for a kill between two partitions."""


def stopped_after(monkeypatch: pytest.MonkeyPatch, partitions: int, folder: Path, session: Session) -> None:
    """Run a sweep that ends when so many partitions are kept."""
    write, kept = Parts.write, []

    def write_and_stop(parts: Parts, key: str, table: Any) -> None:
        if len(kept) == partitions:
            raise Stopped
        write(parts, key, table)
        kept.append(key)

    with monkeypatch.context() as patch:
        patch.setattr(Parts, "write", write_and_stop)
        with pytest.raises(Stopped):
            sweep(session, GRID, folder=folder, partition_requests=24)


def test_only_what_is_missing_is_served_again(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out.parts"
    stopped_after(monkeypatch, 3, folder, session)
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}
    assert len(before) == 3
    (folder / ".000003.parquet.99").write_bytes(b"half a dra")
    # another partition size would cut other partitions: the folder's own goes on
    resumed = sweep(session, GRID, folder=folder, resume=True, partition_requests=10**6)
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}
    assert len(after) == 4 and not list(folder.glob(".*"))
    assert {name: after[name] for name in before} == before
    assert table_bytes(resumed) == table_bytes(sweep(session, GRID))


def test_folders_that_cannot_be_gone_on_with(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out.parts"
    stopped_after(monkeypatch, 1, folder, session)

    def refused(grid: list[dict[str, Any]] = GRID, within: Session = session, resume: bool = True) -> str:
        with pytest.raises(InvalidInput) as caught:
            sweep(within, grid, folder=folder, resume=resume)
        return str(caught.value)

    other = f"{folder} belongs to a sweep with another {{}}; remove it, or use another -o."
    there = f"{folder} has parts of a sweep; continue it with --resume, or remove it."
    assert refused(resume=False) == there
    assert refused(GRID[:-1]) == other.format("grid")
    assert refused([row | {"price_per_gpu_hour": 1.0} for row in GRID]) == other.format("grid")
    with connect() as session_of_another:
        rows = session_of_another.table("eta_coefficients")
        session_of_another.give("eta_coefficients", rows.slice(0, rows.num_rows))
        assert sweep(session_of_another, GRID, folder=folder, resume=True).num_rows == 4
        changed = session_of_another.query("select * replace (tdp_w + 1 as tdp_w) from gpus where gpu = 'l4'")
        session_of_another.extend("gpus", changed)
        assert refused(within=session_of_another) == other.format("catalogue, gpus")
    with monkeypatch.context() as patch:
        patch.setattr("kernelsight.scenario.run_info.VERSION", "0.0.0")
        assert refused() == other.format("program version")
    (folder / SWEEP_FILE).write_text("{")
    unreadable = refused()
    assert "is not JSON" in unreadable and unreadable.endswith(f"; remove {folder} and start again.")
    (folder / SWEEP_FILE).unlink()
    assert refused() == f"{folder} exists, but has no {SWEEP_FILE} of a sweep; remove it."


def test_other_coefficients_are_another_sweep(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out.parts"
    stopped_after(monkeypatch, 1, folder, session)
    with connect() as other:
        other.give("eta_coefficients", other.table("eta_coefficients").slice(1))
        with pytest.raises(InvalidInput, match="another (catalogue, )?coefficients; remove it, or use another -o"):
            sweep(other, GRID, folder=folder, resume=True)


def victim(run: subprocess.Popen, draw: random.Random) -> int:
    """Return the number of a command's process, or of one of its workers."""
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    workers = [n for n in children if b"resource_tracker" not in Path(f"/proc/{n}/cmdline").read_bytes()]
    return int(draw.choice([run.pid, *workers]))


@pytest.mark.whole
@pytest.mark.parametrize("workers", ["1", "2"])
def test_killed_again_and_again_at_random_moments(tmp_path: Path, workers: str) -> None:
    grid, out = tmp_path / "grid.json", tmp_path / "out.parquet"
    grid.write_text(json.dumps(SMALL | LOAD | {"tp": [1, 2], "max_concurrency": [1, 2, 4]}))
    command = f"sweep {grid} -o {out} --partition-requests 24 --workers {workers}"
    words = [sys.executable, "-m", "kernelsight", *command.split()]
    # what a run before the kill computed of its deployments is kept, as it is for users
    environment = os.environ | {"PYTHONPATH": str(ROOT), "KERNELSIGHT_CACHE": str(tmp_path / "kept")}
    draw, kills = random.Random(11), 0
    folder, seen = tmp_path / "out.parquet.parts", set()
    for _ in range(10 * KILLS):
        before = len(list(folder.glob("*.parquet")))
        with subprocess.Popen([*words, "--resume"], env=environment, stdout=subprocess.DEVNULL) as run:
            if kills % 2 == 0:  # every other one dies some time after it has kept a partition
                while run.poll() is None and len(list(folder.glob("*.parquet"))) == before:
                    time.sleep(0.01)
            time.sleep(draw.uniform(0.0, 0.2 if kills % 2 == 0 else 0.8))
            if run.poll() is None:
                os.kill(victim(run, draw), signal.SIGKILL)
                try:
                    assert run.wait(120) in (0, 1, -signal.SIGKILL)
                finally:
                    run.kill()
                kills += 1
            else:
                assert run.returncode == 0
        seen.add(len(list(folder.glob("*.parquet"))))
        if kills == KILLS:
            break
        out.unlink(missing_ok=True)  # a run that was faster than its kill: the next one begins anew
    assert kills == KILLS
    subprocess.run([*words, "--resume"], env=environment, stdout=subprocess.DEVNULL, check=True)
    assert seen - {0, 6}, "no kill fell between two partitions"
    assert not folder.exists()
    with connect() as session:
        from kernelsight.scenario.grid import read_grid

        whole = session.sweep(read_grid(session, str(grid))).summary
    assert whole.num_rows == 6
    assert table_bytes(pq.read_table(out)) == table_bytes(whole)
