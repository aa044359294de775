"""Workers are processes: none is left behind when the command is killed or stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelsight.dataflow.workers import work, worker_pool

from .conftest import LOAD, SMALL

ROOT = Path(__file__).resolve().parents[2]
INTERRUPTED = "interrupted; what is finished is kept; the same command with --resume goes on."
from_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are read from /proc")


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


def words_of(process: int) -> bytes:
    """Return the command line of a process."""
    return Path(f"/proc/{process}/cmdline").read_bytes()


@contextlib.contextmanager
def running(tmp_path: Path) -> Iterator[subprocess.Popen]:
    """Start a sweep in two workers and yield it once its first partition is finished."""
    grid = tmp_path / "grid.json"
    grid.write_text(json.dumps(SMALL | LOAD | {"max_concurrency": list(range(1, 65))}))
    words = [sys.executable, "-m", "kernelsight", "sweep", grid, "--workers", "2", "-o", tmp_path / "out.csv"]
    words += ["--partition-requests", "24"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while run.poll() is None and not list(tmp_path.glob("out.csv.parts/*.parquet")):
        time.sleep(0.02)
    with ended(run):
        yield run


@contextlib.contextmanager
def ended(run: subprocess.Popen) -> Iterator[None]:
    """Kill a process at the end of the block, which a test would wait for otherwise."""
    with run:
        try:
            yield
        finally:
            run.kill()


def left_of(processes: set[int]) -> set[int]:
    """Return those of some processes that have not ended within seconds."""
    for _ in range(100):
        alive = {each for each in processes if Path(f"/proc/{each}").exists()}
        if not alive:
            break
        time.sleep(0.1)
    return alive


@from_proc
def test_no_worker_outlives_the_process_of_its_pool(tmp_path: Path) -> None:
    drafts = [tmp_path / name for name in "ab"]
    tasks = [f"import time; open({str(draft)!r}, 'w').close(); time.sleep(3600)" for draft in drafts]
    code = "from kernelsight.dataflow.workers import work, worker_pool\n"
    code += f"with worker_pool(2) as pool: list(pool.map(work, [exec] * 2, {tasks}))"
    with subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}) as run:
        while run.poll() is None and not all(draft.exists() for draft in drafts):
            time.sleep(0.02)
        children = children_of(run.pid)
        assert len(children) >= 2
        os.kill(run.pid, signal.SIGKILL)
    assert not left_of(children)


@from_proc
@pytest.mark.whole
def test_a_signal_to_the_command_ends_its_workers_and_keeps_what_is_finished(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        children = children_of(run.pid)
        os.kill(run.pid, signal.SIGTERM)
        _, err = run.communicate(timeout=120)
    assert (run.returncode, err.splitlines()[-1:]) == (143, [f"kernelsight: {INTERRUPTED}"])
    assert not left_of(children)
    names = {path.name for path in tmp_path.rglob("*")} - {"grid.json", "out.csv.parts", "sweep.json"}
    assert names and all(name.endswith(".parquet") and name[0] != "." for name in names)


def test_a_pool_that_is_stopped_ends_its_tasks_and_runs_their_cleaning(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    with pytest.raises(KeyboardInterrupt), worker_pool(1) as pool:
        task = pool.submit(work, sleep_beside, draft)
        while not draft.exists():
            assert not task.done()
            time.sleep(0.02)
        raise KeyboardInterrupt
    assert not draft.exists()


def sleep_beside(draft: Path) -> None:
    """Sleep for an hour while a draft is there."""
    try:
        draft.touch()
        time.sleep(3600)
    finally:
        draft.unlink()


LONG_RESULTS = """
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from kernelsight.dataflow.signals import ending_signals
from kernelsight.dataflow.workers import work, worker_pool

if __name__ == "__main__":
    with ending_signals():
        try:
            with worker_pool(2) as pool:
                for done in as_completed([pool.submit(work, bytes, 3_000_000) for _ in range(2000)]):
                    assert len(done.result()) == 3_000_000
                    print("received", flush=True)
        except (KeyboardInterrupt, BrokenProcessPool) as error:
            print(type(error).__name__)
"""


@from_proc
@pytest.mark.parametrize(("to", "error"), [("the command", "KeyboardInterrupt"), ("a worker", "BrokenProcessPool")])
def test_a_signal_while_long_results_are_received_ends_the_pool(to: str, error: str, tmp_path: Path) -> None:
    """A worker that ended halfway through a message left its reader waiting for the rest, for ever."""
    program, folder = tmp_path / "program.py", tmp_path / "temporary"
    program.write_text(LONG_RESULTS)
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    for moment in range(3):
        run = subprocess.Popen([sys.executable, program], env=environment, stdout=subprocess.PIPE, text=True)
        with ended(run):
            for _ in range(1 + 3 * moment):
                assert run.stdout.readline() == "received\n"
            if to == "the command":
                run.terminate()
            else:  # as the system does where memory is short
                workers = [each for each in children_of(run.pid) if b"spawn_main" in words_of(each)]
                os.kill(workers[0], signal.SIGKILL)
            out, _ = run.communicate(timeout=120)
        assert out.splitlines()[-1] == error
        assert list(folder.iterdir()) == []
