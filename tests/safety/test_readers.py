"""Nothing goes around the gate: what reads, parses or asks calls a function of kernelsight/files with a budget.

The others are named here, each with its reason. Parsers count as much as readers: text may be deep, or endless.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "kernelsight"
# what checks a file: a function that calls one of them may hand its path to a library
GATES = {
    *("check_file", "open_file", "read_bytes", "read_text", "read_json", "unpacked_file"),
    *("read_parquet", "read_source", "check_parquet", "read_schema", "parse_json", "parse_yaml", "query_sqlite"),
    *("read_rows", "get_text", "read_answer"),
}
# methods and functions that read a path as it is
READERS = {
    *("open", "stat", "lstat", "read_text", "read_bytes", "load", "fromfile", "loadtxt", "memory_map", "ZipFile"),
    *("read_table", "ParquetFile", "read_metadata", "read_schema", "read_csv", "read_parquet", "read_json"),
    *("scan_csv", "scan_parquet", "scan_ndjson", "read_ipc", "read_excel", "open_stream", "open_file"),
}
# what parses a text or asks a file or another machine, by module and name
PARSERS = {
    *("json.loads", "json.load", "decoder.raw_decode", "yaml.load", "yaml.safe_load", "yaml.load_all", "tomllib.load"),
    *("tomllib.loads", "csv.reader", "csv.DictReader", "sqlite3.connect", "request.stream", "request.body"),
    *("request.json", "urllib.request.urlopen", "pickle.loads", "ast.literal_eval", "ET.fromstring"),
}
IN_SQL = ("read_parquet(", "read_csv(", "read_json(")
WRITTEN = ("w", "a", "x")
WORDS = "|".join(sorted({name.rpartition(".")[2] for name in (*READERS, *PARSERS)} | {"read_"}))

OWN = "a file of the package or of a library"
MADE = "a file or bytes that the program itself wrote a moment ago"
OURS = "names or a lock beside a file that is written, and nothing of its content"
GATED = "opened by a gate, or handed over as bytes that one read"
GATE = "the gate itself"
COLUMN = "a text of a column that our own code wrote, or that a contract has checked"
LINE = "a line of at most the bytes that its reader takes at once; too deep is an error of the line"
SWEEPS = "sweeps that check_sweeps has read"
ALLOWED = {
    "catalog/tables.py::_implementations": OWN,
    "catalog/tables.py::read_columns": "the catalogue, and runs that _read_file has checked",
    "files/bounded_files.py::_piped_bytes": "a pipe that was asked for: /dev/stdin",
    "files/bounded_files.py::check_file": "the check itself",
    "dataflow/contract.py::load_contracts": OWN,
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
    "laboratory.py::options": OWN,
    "logs/plain.py::csv_source": "a LogFile, which open_log has opened",
    "logs/profile_tables.py::_rows": "one line of a LogFile, of at most LONGEST characters",
    "measure/catalogue.py::catalogue_rows": OWN,
    "measure/cuda/buffers.py::function": OWN,
    "measure/rows.py::sweep_schema": OWN,
    "models/config.py::_entries": OWN,
    "present/html/page.py::html_of": OWN,
    "scenario/flag.py::_read": OWN,
    "scenario/run_info.py::_schemas_digest": OWN,
    "searching/commands.py::_waited": MADE,
    "searching/commands.py::run_bounded": MADE,
    "serving/compilation/machine_code.py::_file_digest": OWN,
    "serving/compilation/machine_code.py::numba_version": OWN,
    "serving/compilation/machine_code.py::read_carried": OWN,
    "serving/compilation/machine_code.py::runs_here": OWN,
    "serving/compilation/machine_code.py::sources_digest": OWN,
    "serving/compilation/entries.py::rules_digest": OWN,
    "serving/load/trace_files.py::_read_csv": GATED,
    "serving/load/trace_files.py::_read_json_lines": GATED,
    "sweeps/partitions.py::read": "partitions that the sweep itself wrote",
    "sweeps/sweep.py::serve_plan": "a store of partitions, not a file",
    "caches/journal.py::_parsed": LINE,
    "cli/backtest.py::run": COLUMN,
    "cli/calibrate/evaluate.py::_report": COLUMN,
    "dataflow/python_nodes.py::_literals": OWN,
    "dataflow/sql_nodes.py::_read_query": "the tree of a query, from DuckDB",
    "dataflow/sql_nodes.py::parse_query": "the tree of a query, from DuckDB",
    "evaluation/kernels/evaluate.py::_cell": COLUMN,
    "evaluation/runs/recipes.py::flags_of": COLUMN,
    "files/bounded_values.py::parse_json": GATE,
    "files/bounded_values.py::parse_yaml": GATE,
    "files/redaction.py::redacted_text": "a word of a launch text, of at most MOST_CHARACTERS",
    "logs/files.py::_is_object": LINE,
    "logs/files.py::columns": LINE,
    "logs/files.py::documents": "a text of at most WHOLE bytes, document after document",
    "logs/reports.py::_cells": LINE,
    "present/pages/search.py::_parameters": COLUMN,
    "scenario/launch/commands.py::_put": "a word of a launch text, of at most MOST_CHARACTERS",
    "scenario/stated_flags.py::read_flags": COLUMN,
    "searching/arrays.py::space_arrays": COLUMN,
    "searching/cupy_measurer.py::_measured": COLUMN,
    "searching/llm/answers.py::_text_fields": GATED,
    "searching/llm/answers.py::_tool_fields": GATED,
    "searching/llm/forecaster.py::differences": COLUMN,
    "searching/llm/forecaster.py::nearest": COLUMN,
    "searching/measurers.py::_arguments": COLUMN,
    "searching/measurers.py::_parsed_output": LINE,
    "searching/proposers.py::__init__": COLUMN,
    "searching/proposers.py::_result": COLUMN,
    "searching/proposers.py::from_command": COLUMN,
    "searching/proposers.py::parsed": GATED,
    "searching/tuner_files.py::_entries": GATED,
    "searching/tuner_files.py::_parse": GATED,
    "searching/tuner_files.py::_whole_part": GATED,
    "server/app.py::_content_of": "counts what it takes itself, against the budget of a body",
    "server/tool_process.py::_answer": MADE,
    "server/tool_process.py::call": MADE,
    "serving/compilation/machine_code.py::of": OWN,
    "serving/load/trace_files.py::_csv_header": LINE,
    "serving/load/trace_files.py::_json_objects": LINE,
    "sizing/answer.py::_flag_columns": COLUMN,
    "sweeps/rate_questions.py::rates_of_grid": COLUMN,
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
    if not is_method:
        return name == "open"
    return name in READERS or ast.unparse(call.func) in PARSERS


def readers(path: Path) -> Iterator[str]:
    """Yield the functions of a module that read a path without a gate."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)) if re.search(WORDS, source) else ():
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not re.search(WORDS, ast.get_source_segment(source, node) or ""):
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
    assert found - ALLOWED.keys() == set(), "call a function of kernelsight.files first"
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
        "def g(text):\n    return json.loads(text)\n"
        "async def h(request):\n    return await request.body()\n"
    )
    assert list(readers(module)) == ["new.py::a", "new.py::b", "new.py::c", "new.py::g", "new.py::h"]
