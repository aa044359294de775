"""No reader goes around the checks of `bounded_files`: each one calls them, or is named here with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "kernelsight"
# what checks a file: a function that calls one of them may hand its path to a library
GATES = {
    *("check_file", "open_file", "read_bytes", "read_text", "read_json", "unpacked_file"),
    *("read_parquet", "read_source", "check_parquet", "read_schema"),
}
# methods and functions that read a path as it is
READERS = {
    *("open", "stat", "lstat", "read_text", "read_bytes", "load", "fromfile", "loadtxt", "memory_map", "ZipFile"),
    *("read_table", "ParquetFile", "read_metadata", "read_schema", "read_csv", "read_parquet", "read_json"),
    *("scan_csv", "scan_parquet", "scan_ndjson", "read_ipc", "read_excel", "open_stream", "open_file"),
}
IN_SQL = ("read_parquet(", "read_csv(", "read_json(")
WRITTEN = ("w", "a", "x")

OWN = "a file of the package or of a library"
MADE = "a file or bytes that the program itself wrote a moment ago"
OURS = "names or a lock beside a file that is written, and nothing of its content"
GATED = "opened by a gate, or handed over as bytes that one read"
SWEEPS = "sweeps that check_sweeps has read"
ALLOWED = {
    "catalog/tables.py::_implementations": OWN,
    "catalog/tables.py::read_columns": "the catalogue, and runs that _read_file has checked",
    "files/bounded_files.py::_piped_bytes": "a pipe that was asked for: /dev/stdin",
    "files/bounded_files.py::check_file": "the check itself",
    "files/bounded_http.py::get_text": "an address, within its own limits",
    "dataflow/contract.py::_read_json": OWN,
    "dataflow/databases.py::read_macros": OWN,
    "caches/disk_cache.py::_decoded": "bytes of private_folder, which checks them",
    "caches/disk_cache.py::decode": "bytes of private_folder, which checks them",
    "caches/disk_cache.py::library_stamp": OWN,
    "caches/disk_cache.py::program_digest": OWN,
    "caches/durable.py::_lock": OURS,
    "caches/durable.py::synchronise": OURS,
    "dataflow/graph.py::function": "a module, not a file",
    "files/parquet_files.py::_bounded": GATED,
    "caches/private_folder.py::_open": "checks owner and kind itself",
    "caches/private_folder.py::_our_files": "checks owner and kind itself",
    "dataflow/python_nodes.py::sources_with_nodes": OWN,
    "dataflow/sql_nodes.py::parse_node": OWN,
    "dataflow/sql_nodes.py::read_sql_node": "nodes of the package, or a folder of nodes, which are programs",
    "dataflow/workers.py::_received": MADE,
    "evaluation/kernels/evaluate.py::rejected_rows": SWEEPS,
    "fitting/sweep_files.py::launches_us": SWEEPS,
    "fitting/sweep_files.py::measured_families": SWEEPS,
    "fitting/sweep_files.py::measured_gpus": SWEEPS,
    "fitting/training.py::training_rows": SWEEPS,
    "cli/calibrate/fit.py::_refuse_unusable": SWEEPS,
    "cli/main.py::_silence_stdout": "/dev/null",
    "caches/disk_cache.py::read_cached_table": "bytes of private_folder, which checks them",
    "caches/private_folder.py::_content": "checks owner and kind itself",
    "caches/private_folder.py::_is_free": "checks owner and kind itself",
    "caches/private_folder.py::_open_step": "checks owner and kind itself",
    "caches/private_folder.py::_replace": "checks owner and kind itself",
    "fitting/kernel_sweeps/plain.py::read": "its own _check has read the file",
    "logs/files.py::lines": "LogFile.open is a gate",
    "logs/json_rows.py::_scan": "a LogFile, which open_log has opened",
    "logs/plain.py::csv_source": "a LogFile, which open_log has opened",
    "logs/profiles.py::_nsys_run": "a LogFile, which open_log has opened; SQLite sums its rows itself",
    "measure/catalogue.py::catalogue_rows": OWN,
    "measure/cuda/buffers.py::function": OWN,
    "measure/rows.py::sweep_schema": OWN,
    "models/config.py::_entries": OWN,
    "present/html/page.py::html_of": OWN,
    "scenario/flag.py::_read": OWN,
    "scenario/run_info.py::_schemas_digest": OWN,
    "searching/commands.py::_waited": MADE,
    "searching/commands.py::run_bounded": MADE,
    "searching/llm/client.py::_once": "an address, within its own limits",
    "serving/compilation/machine_code.py::_file_digest": OWN,
    "serving/compilation/machine_code.py::numba_version": OWN,
    "serving/compilation/machine_code.py::read_carried": OWN,
    "serving/compilation/machine_code.py::sources_digest": OWN,
    "serving/compilation/rule_digest.py::rules_digest": OWN,
    "serving/load/trace_files.py::_read_csv": GATED,
    "serving/load/trace_files.py::_read_json_lines": GATED,
    "sweeps/partitions.py::read": "partitions that the sweep itself wrote",
    "sweeps/sweep.py::serve_plan": "a store of partitions, not a file",
}


def called(node: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            yield each.func.attr if isinstance(each.func, ast.Attribute) else getattr(each.func, "id", ""), each


def is_read(name: str, call: ast.Call) -> bool:
    """Whether a call reads a path itself: not a gate, which is a plain name, and not a file that is written."""
    is_method = isinstance(call.func, ast.Attribute)
    modes = [word.value for word in (*call.args, *(k.value for k in call.keywords)) if isinstance(word, ast.Constant)]
    if any(isinstance(mode, str) and mode[:1] in WRITTEN and len(mode) <= 2 for mode in modes):
        return False
    return name == "open" if not is_method else name in READERS


def readers(path: Path) -> Iterator[str]:
    """Yield the functions of a module that read a path without a gate."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        calls = list(called(node))
        texts = [
            each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        in_sql = any(word in text for text in texts for word in IN_SQL if "\n" not in text)
        is_gated = any(name in GATES and isinstance(call.func, ast.Name) for name, call in calls)
        if (in_sql or any(is_read(*call) for call in calls)) and not is_gated:
            yield f"{path.relative_to(PACKAGE)}::{node.name}"


def test_every_reader_goes_through_the_checks_or_has_a_reason() -> None:
    found = {reader for path in PACKAGE.rglob("*.py") for reader in readers(path)}
    assert found - ALLOWED.keys() == set(), "call a function of dataflow.bounded_files or dataflow.parquet_files first"
    assert ALLOWED.keys() - found == set(), "no longer needed"


def test_a_reader_that_goes_around_is_found(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    module = tmp_path / "new.py"
    module.write_text(
        "def a(path):\n    return path.open('rb')\n"
        "def b(path):\n    return pq.read_table(path)\n"
        "def c(path):\n    return f'select * from read_csv({path})'\n"
        "def d(path):\n    check_file(path, refuse)\n    return open(path)\n"
        "def e(path):\n    return path.open('w')\n"
        "def f(path):\n    return read_text(path, refuse)\n"
    )
    assert list(readers(module)) == ["new.py::a", "new.py::b", "new.py::c"]
