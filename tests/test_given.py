"""What is *given* is stated by a person or a file: no folder that computes makes rows of a given contract."""

from __future__ import annotations

import ast
from pathlib import Path

from kernelsight.catalog.tables import contracts

PACKAGE = Path(__file__).resolve().parents[1] / "kernelsight"
COMPUTING = ("kernels", "forward", "serving", "sweeps", "sizing", "comparison", "searching", "choices", "present")
# functions whose first argument names the table that they make or give
MAKERS = {"give", "as_table", "table_of", "joined", "from_rows", "conform"}
# rows of given tables that these folders state for a fork: flags as rows, a log as it was read, a fact that is changed
STATED = {
    *("deployments", "scenarios", "comparisons", "production_settings", "production_requests", "log_corrections"),
    *(
        "run_info",
        "engine_fusions",
        "deployment_reach",
        "search_scenarios",
        "size_questions",
        "rate_questions",
        "advice_questions",
    ),
}


def made_in(path: Path) -> set[str]:
    """Return the tables that a module makes or gives by name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in MAKERS:
            words = {each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant)}
            words |= {
                each.value for each in ast.walk(node.args[-1]) if name == "conform" and isinstance(each, ast.Constant)
            }
            found |= {word for word in words if isinstance(word, str)}
    return found & set(contracts())


def test_no_folder_that_computes_makes_rows_of_a_given_table() -> None:
    given = {name for name, contract in contracts().items() if contract.kind == "given"}
    made = {}
    for room in COMPUTING:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            for name in made_in(path) & given - STATED:
                made.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    assert not made


def test_the_check_sees_what_a_module_makes(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('table = as_table(contracts()["gpus"], rows)\nsession.give("fabrics", rows)\nother("models")\n')
    assert made_in(module) == {"gpus", "fabrics"}
