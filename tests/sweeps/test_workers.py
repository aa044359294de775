"""Workers are processes: none is left behind when the command is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import LOAD, SMALL

ROOT = Path(__file__).resolve().parents[2]


def children_of(parent: int) -> set[int]:
    """Return the processes that a process has started, by /proc."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.add(int(path.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are read from /proc")
def test_no_worker_outlives_the_command(tmp_path: Path) -> None:
    grid = tmp_path / "grid.json"
    grid.write_text(json.dumps(SMALL | LOAD | {"tp": [1, 2, 4], "max_concurrency": list(range(1, 25))}))
    words = [sys.executable, "-m", "kernelsight", "sweep", grid, "--workers", "2", "-o", tmp_path / "out.csv"]
    words += ["--partition-requests", "24"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        while run.poll() is None and not list(tmp_path.glob("out.csv.parts/*.parquet")):
            time.sleep(0.02)
        children = children_of(run.pid)
        assert len(children) >= 2
        os.kill(run.pid, signal.SIGKILL)
    for _ in range(100):
        alive = {child for child in children if Path(f"/proc/{child}").exists()}
        if not alive:
            break
        time.sleep(0.1)
    assert not alive
