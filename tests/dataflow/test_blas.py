"""BLAS on one thread: of numpy and of SciPy, nested, and as it was afterwards."""

from __future__ import annotations

import ast
import inspect

import scipy.linalg  # noqa: F401  brings a BLAS of its own
from threadpoolctl import ThreadpoolController

from kernelsight.comparison import causes_by_evidence, explanation, log_pairs
from kernelsight.dataflow.blas import one_blas_thread


def threads() -> set[int]:
    return {library.num_threads for library in ThreadpoolController().select(user_api="blas").lib_controllers}


def test_every_library_is_limited_within_and_restored_after() -> None:
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        before = threads()
        with one_blas_thread():
            with one_blas_thread():
                assert threads() == {1}
            assert threads() == {1}
        assert threads() == before


def test_nodes_that_solve_small_systems_run_on_one_thread() -> None:
    limited = {
        node.name
        for module in (causes_by_evidence, explanation, log_pairs)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.FunctionDef) and "one_blas_thread()" in ast.unparse(node)
    }
    assert limited == {"incident_rows", "cause_rows", "explanation_tables", "change_rows"}
