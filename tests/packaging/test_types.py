"""What a type checker sees of the public names: no errors where they are used as documented, no unknown types."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# where the classes and functions behind the public names stand
HOMES = ("session.", "dataflow.session.Session", "sweeps.runs.", "scenario.forward_step.Prediction", "errors.")
# pyarrow ships no types: without these every table would be unknown
PYARROW = "class Table:\n    num_rows: int\n"


@pytest.fixture(scope="module", autouse=True)
def checker() -> None:
    """Skip where there is no pyright, or no node for it to run on."""
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("types are checked where `pip install 'pyright[nodejs]'` was run")
    if pyright("--version").returncode:
        pytest.skip("pyright finds no node: `pip install 'pyright[nodejs]'` brings one")


def pyright(*words: object, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run pyright with this interpreter's packages and this tree."""
    places = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": places, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    command = [sys.executable, "-m", "pyright", *map(str, words)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_documented_use_has_no_errors_and_no_unknown_types(tmp_path: Path) -> None:
    (tmp_path / "stubs" / "pyarrow").mkdir(parents=True)
    (tmp_path / "stubs" / "pyarrow" / "__init__.pyi").write_text(PYARROW, encoding="utf-8")
    used = tmp_path / "public_names.py"
    used.write_text((Path(__file__).parent / "public_names.py").read_text(encoding="utf-8"), encoding="utf-8")
    config = {"include": [used.name], "stubPath": "stubs", "extraPaths": [str(ROOT)], "typeCheckingMode": "strict"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    found = pyright("--pythonpath", sys.executable, folder=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    # the same file with one wrong use: the check can fail
    used.write_text(used.read_text(encoding="utf-8") + "\nks.connect().table(3)\n", encoding="utf-8")
    assert "reportArgumentType" in pyright("--pythonpath", sys.executable, folder=tmp_path).stdout


def test_public_names_have_known_types() -> None:
    words = ("--pythonpath", sys.executable, "--verifytypes", "kernelsight", "--ignoreexternal", "--outputjson")
    symbols = json.loads(pyright(*words).stdout)["typeCompleteness"]["symbols"]
    public = [symbol for symbol in symbols if is_public(symbol)]
    assert {"kernelsight.connect", "kernelsight.session.Session.sweep"} <= {symbol["name"] for symbol in public}
    unknown = [symbol["name"] for symbol in public if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]]
    assert unknown == []


def is_public(symbol: dict[str, Any]) -> bool:
    """Return whether a symbol is a public name, or a member of what one stands for."""
    name = symbol["name"].removeprefix("kernelsight.")
    return symbol["category"] != "module" and ("." not in name or name.startswith(HOMES))
