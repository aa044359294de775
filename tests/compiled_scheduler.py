"""The compiled scheduler, made once for all workers: ``python -m tests.compiled_scheduler`` fills its cache."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOAD = {"model": "qwen3-0.6b", "gpu": "l4", "request_rate": 1.0, "num_prompts": 2, "input_len": 8, "output_len": 2}


def start_compiling() -> subprocess.Popen | None:
    """Start to compile beside the tests, unless the cache is there; the process holds the cache's lock to its end."""
    from kernelsight.serving.engine.machine_code import ENDING

    folder = kept_in()
    if folder is None or ((folder / "whole").exists() and any(folder.glob(f"*{ENDING}"))):
        return None
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = [sys.executable, "-m", "tests.compiled_scheduler"]
        nothing = subprocess.DEVNULL
        return subprocess.Popen(words, cwd=ROOT, pass_fds=[lock.fileno()], stdin=nothing, stdout=nothing)


@cache
def wait_for_compiled() -> None:
    """Wait, once a process, until nobody compiles: two that compile the same take twice the time."""
    if (folder := kept_in()) is not None:
        with (folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)


def kept_in() -> Path | None:
    """Return the folder that keeps the compiled scheduler; None where none is fit for it."""
    from kernelsight.serving.engine.machine_code import code_folder

    folder = code_folder()
    return None if folder is None else folder.path


def main() -> None:
    """Simulate one scenario, and sweep: the loop's two entries."""
    from kernelsight.cli.main import main as run

    flags = [word for name, value in LOAD.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as grid:
        json.dump(LOAD, grid)
        grid.flush()
        if run(["simulate", *flags]) == run(["sweep", grid.name]) == 0 and (folder := kept_in()) is not None:
            (folder / "whole").touch()


if __name__ == "__main__":
    main()
