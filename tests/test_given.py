"""What is *given* is stated by a person or a file: no folder that computes makes rows of a given contract."""

from __future__ import annotations

import ast
from pathlib import Path

from kernelsight.catalog.tables import contracts
from kernelsight.session import connect

PACKAGE = Path(__file__).resolve().parents[1] / "kernelsight"
COMPUTING = (
    *("kernels", "forward", "serving", "sweeps", "sizing", "comparison", "searching", "choices", "present"),
    *("evaluation", "cli"),
)
# functions whose first argument names the table that they make or give
MAKERS = {"give", "as_table", "table_of", "joined", "from_rows", "conform"}
# rows of given tables that these folders state: flags as rows, a log or runs as they were read, a fact that is changed
STATED = {
    *("deployments", "scenarios", "comparisons", "production_settings", "production_requests", "log_corrections"),
    *("run_info", "engine_fusions", "deployment_reach", "search_scenarios", "measured_runs", "energy_constants"),
    "eta_coefficients",
}
# what commands and methods ask: each has a node that answers it
QUESTIONS = {
    "size_questions": ("size_answers", "sized_deployments"),
    "rate_questions": ("found_rates",),
    "advice_questions": ("setting_advice",),
    "choice_questions": ("choice_candidates", "choices"),
    "kernel_evaluations": ("kernel_scores",),
    "backtests": ("backtest_scores", "replayed_runs"),
    "comparisons": ("prediction_vs_production", "causes"),
    "search_scenarios": ("search_summary",),
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
            for name in made_in(path) & given - STATED - set(QUESTIONS):
                made.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    assert not made


def test_the_check_sees_what_a_module_makes(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('table = as_table(contracts()["gpus"], rows)\nsession.give("fabrics", rows)\nother("models")\n')
    assert made_in(module) == {"gpus", "fabrics"}


def test_what_is_asked_is_given_and_what_answers_it_is_made_by_a_node_of_it() -> None:
    with connect() as session:
        for asked, answers in QUESTIONS.items():
            assert contracts()[asked].kind == "given" and session.graph.node(asked) is None
            for name in answers:
                assert contracts()[name].kind != "given" and session.graph.depends(name, asked), name
