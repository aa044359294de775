"""Nothing heavy is imported before a verb needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compiled_scheduler import start_compiling

ROOT = Path(__file__).resolve().parents[1]
ASK = """
import contextlib, io, sys
from kernelsight.cli.main import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    assert main(sys.argv[1:]) == 0
print(*sorted({"pyarrow", "duckdb", "jax", "numba", "pandas", "polars", "numpy", "scipy.linalg"} & set(sys.modules)))
"""
STEP = (
    "predict",
    "--model",
    "qwen3-30b-a3b",
    "--gpu",
    "h100_sxm",
    "-tp",
    "2",
    "--phase",
    "mixed",
    "--isl",
    "64",
    "--context-len",
    "64",
)
RUN = (
    "simulate",
    "--model",
    "qwen3-0.6b",
    "--gpu",
    "l4",
    "--max-concurrency",
    "4",
    "--num-prompts",
    "8",
    "--input-len",
    "64",
    "--output-len",
    "8",
)


@pytest.mark.parametrize(
    ("words", "imported"),
    [
        (("--help",), ""),
        (("--version",), ""),
        (("predict", "--help"), ""),
        (("simulate", "--help"), ""),
        (("tables",), "duckdb numpy pyarrow"),
        (STEP, "numpy pyarrow"),
        (RUN, "numpy pyarrow"),
    ],
)
def test_heavy_modules(words: tuple[str, ...], imported: str, tmp_path: Path) -> None:
    environment = dict(os.environ)
    if words is RUN and (compiling := start_compiling()):  # the compiler, which runs once, imports more
        compiling.wait()
    command = [sys.executable, "-c", ASK, *words]
    if words in (STEP, RUN):  # what is kept of a deployment and its step is computed by DuckDB, once
        environment["KERNELSIGHT_CACHE"] = str(tmp_path)
        subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert set(found.stdout.split()) <= set(imported.split()), found.stdout
