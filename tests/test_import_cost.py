"""Nothing heavy is imported before a verb needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ASK = """
import contextlib, io, sys
from kernelsight.cli.main import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    for words in " ".join(sys.argv[1:]).split(" and "):
        assert main(words.split()) == 0
heavy = {"pyarrow", "pyarrow.csv", "duckdb", "jax", "numba", "pandas", "polars", "numpy", "numpy.ma", "scipy.linalg"}
print(*sorted(heavy & set(sys.modules)))
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


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is kept of a deployment and its step is computed by DuckDB, once."""
    folder = tmp_path_factory.mktemp("kept")
    environment = {**os.environ, "KERNELSIGHT_CACHE": str(folder)}
    command = [sys.executable, "-c", ASK, *STEP, "and", *RUN]
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
    return folder


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
@pytest.mark.whole
def test_heavy_modules(words: tuple[str, ...], imported: str, kept: Path) -> None:
    environment = dict(os.environ)
    if words in (STEP, RUN):
        environment["KERNELSIGHT_CACHE"] = str(kept)
    command = [sys.executable, "-c", ASK, *words]
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert set(found.stdout.split()) <= set(imported.split()), found.stdout
