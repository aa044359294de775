"""The wheel holds everything and runs alone: from any folder, and where nothing can be written beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kernelsight.serving.compilation import machine_code

ROOT = Path(__file__).resolve().parents[2]
SIMULATE = "simulate --model qwen3-0.6b --gpu l4 --request-rate 20 --num-prompts 4 --isl 64 --osl 4".split()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which only the unpacked wheel is found; neither it nor the home folder takes compiled code."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    # a file in its place refuses the folder of compiled code to every user, also to one whom permissions do not stop
    (folder / "kernelsight" / "serving" / "engine" / "__pycache__").touch()
    kept = {name: value for name, value in os.environ.items() if name not in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    return {**kept, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/dev/null"}


def run(environment: dict[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with the unpacked wheel before everything else."""
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


def test_the_wheel_ships_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "kernelsight").rglob("*.py")}
    wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / "kernelsight" / "catalog").iterdir() if path.is_file()}
    wanted |= {f"kernelsight/_sql/{path.relative_to(ROOT / 'sql')}" for path in (ROOT / "sql").rglob("*.sql")}
    wanted |= {f"kernelsight/_schemas/{path.name}" for path in (ROOT / "schemas").glob("*.json")}
    wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / "kernelsight").rglob("*.cu")}
    wanted |= {str(path.relative_to(ROOT)) for path in machine_code.CARRIED.iterdir()}
    wanted |= {f"kernelsight/_benches/suites/{path.name}" for path in (ROOT / "benches" / "suites").glob("*.json")}
    assert wanted - shipped == set()
    assert not [name for name in shipped if name.startswith(("tests", "benches")) or name.endswith(".pyc")]


def test_the_unpacked_wheel_is_what_runs(alone: dict[str, str], tmp_path: Path) -> None:
    found = run(alone, tmp_path, "-c", "import kernelsight; print(kernelsight.__file__)")
    assert found.stdout.startswith(alone["PYTHONPATH"])
    tables = run(alone, tmp_path, "-m", "kernelsight", "tables", "--format", "csv")
    assert (tables.returncode, tables.stderr) == (0, "")
    listed = [line.split(",")[0] for line in tables.stdout.splitlines()[1:]]
    read = [path for path in (ROOT / "schemas").glob("*.json") if b'"kind": "internal"' not in path.read_bytes()]
    contracts = {path.stem for path in read} - {"table.schema", "family_latencies"}
    assert sorted(listed) == sorted(contracts)


def test_it_refuses_what_only_the_checkout_holds(alone: dict[str, str], tmp_path: Path) -> None:
    found = run(alone, tmp_path, "-m", "kernelsight", "search", "evaluate", "--space", "x.parquet")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith(
        "kernelsight: `kernelsight search evaluate` is part of the evaluation of KernelSight"
    )
    assert "evaluate" not in run(alone, tmp_path, "-m", "kernelsight", "search", "--help").stdout


@pytest.mark.whole
def test_it_predicts_as_the_checkout_does(alone: dict[str, str], tmp_path: Path) -> None:
    words = ["-m", "kernelsight", *"predict --model qwen3-0.6b --gpu l4 --context-len 100 --format json".split()]
    here = run({**os.environ, "PYTHONPATH": str(ROOT)}, tmp_path, *words)
    there = run(alone, tmp_path, *words)
    assert (there.returncode, there.stderr) == (0, "")
    assert there.stdout == here.stdout


@pytest.mark.whole
def test_its_rules_are_compiled_where_nothing_can_be_written(alone: dict[str, str], tmp_path: Path) -> None:
    rule = (
        "import numpy as np; from kernelsight.serving.engine import admission, limits;"
        "from kernelsight.serving.compilation import compiled;"
        "first_chunk = compiled.entry(admission.first_chunk.py_func);"
        "print(first_chunk(10, 7, np.zeros(1, limits.LIMITS)[0]))"
    )
    found = run({**alone, "TMPDIR": str(tmp_path)}, tmp_path, "-c", rule)
    assert (found.returncode, found.stderr, found.stdout) == (0, "", "7\n")
    assert not list(tmp_path.rglob("*.nb*"))


@pytest.mark.skipif(not machine_code.runs_here(), reason="carried code needs a processor of the level x86-64-v3")
@pytest.mark.whole
def test_it_simulates_with_the_code_that_it_carries(alone: dict[str, str], tmp_path: Path) -> None:
    left = {**alone, "TMPDIR": str(tmp_path)}
    found = run(left, tmp_path, "-m", "kernelsight", *SIMULATE)
    said = [line for line in found.stderr.splitlines() if not line.startswith("simulating ")]
    assert (found.returncode, said) == (0, [])
    assert "4 of 4" in found.stdout
