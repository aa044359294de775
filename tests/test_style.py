"""The whole tree is formatted and linted: one test command checks everything."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("words", [["format", "--check", "--quiet", "."], ["check", "--quiet", "."]])
def test_ruff_finds_nothing(words: list[str]) -> None:
    found = subprocess.run([sys.executable, "-m", "ruff", *words], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "kernelsight").rglob("*.py")), ids=lambda path: path.stem)
def test_no_comprehension_hides_a_function_of_the_module(path: Path) -> None:
    """Python 3.12.1 looks for a function of that name, called beside it, among the variables: UnboundLocalError."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        within = list(ast.walk(function))
        loops = [node.target for node in within if isinstance(node, ast.comprehension)]
        bound = {name.id for target in loops for name in ast.walk(target) if isinstance(name, ast.Name)}
        called = {node.func.id for node in within if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        assert not bound & called & imported, f"{function.name} of {path.name}"
