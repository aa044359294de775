"""Nothing goes around the gate: what reads, parses or asks stands in kernelsight/files, and takes a budget.

Outside of it no call of a reader or a parser is allowed but those below, each with its reason. Parsers count as much as
readers: text may be deep, or endless.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "kernelsight"
# the gate, and what is one of its own: the cache's folder, whose owner and kind it checks, and the compiled rules of
# the package, which are named by the digest of their sources
GATE = ("files/", "caches/private_folder.py", "serving/compilation/")
# methods that read a path, or what was read of one
READERS = {
    *("open", "read_text", "read_bytes", "fromfile", "loadtxt", "memory_map", "ZipFile", "OSFile", "input_stream"),
    *("read_table", "ParquetFile", "ParquetDataset", "read_metadata", "read_schema", "read_feather", "read_ipc"),
    *("read_csv", "read_parquet", "read_json", "read_ndjson", "read_excel", "scan_csv", "scan_parquet", "scan_ndjson"),
    *("scan_ipc", "open_stream", "open_file", "sniff_csv", "raw_decode", "DictReader", "open_input_stream"),
}
# what parses a text or asks a file or another machine, by module and name
PARSERS = {
    *("json.loads", "json.load", "yaml.load", "yaml.safe_load", "yaml.load_all", "yaml.parse", "tomllib.load"),
    *("tomllib.loads", "csv.reader", "sqlite3.connect", "request.stream", "request.body", "request.json", "np.load"),
    *("request.form", "urllib.request.urlopen", "pickle.loads", "pickle.load", "marshal.loads", "ast.literal_eval"),
    *("ET.fromstring", "ET.parse", "gzip.decompress", "zlib.decompress", "zlib.decompressobj", "socket.recv"),
}
IN_SQL = re.compile(r"\b((read_parquet|read_csv|read_json|read_text|read_blob|sqlite_scan)\(|attach $|from '$)", re.I)
WRITTEN = ("w", "a", "x")
WORDS = re.compile("|".join(sorted({name.rpartition(".")[2] for name in (*READERS, *PARSERS)} | {"attach", "scan"})))

CHECKED = "its path was checked in the same function: a regular file, within a budget of bytes"
CACHED = "bytes of private_folder, which checks their owner, kind and digest"
SWEEPS = "a sweep that check_parquet has read"
LOG = "a file that open_log has opened; a signal, or a limit of DuckDB, ends the query"
CHILD = "a file or bytes that a program which the user named has written, of a number of bytes that is asked first"
GIVEN = "bytes that a gate has read"
ALLOWED = {
    "caches/disk_cache.py::_decoded": CACHED,
    "caches/disk_cache.py::decode": CACHED,
    "caches/durable.py::synchronise": "a folder, to make what was written in it durable",
    "catalog/tables.py::_implementations": "the catalogue",
    "catalog/tables.py::read_columns": "the catalogue, and runs that _read_file has checked",
    "dataflow/storage.py::attach": "a DuckDB file by its first bytes, which _foreign has looked at",
    "dataflow/python_nodes.py::_literals": "sources of nodes, which are programs",
    "dataflow/workers.py::_received": "what a worker of this process has written",
    "fitting/kernel_sweeps/package_files.py::_in_wheel": CHECKED,
    "fitting/kernel_sweeps/package_files.py::read_table": "of a wheel a member whose size was asked; check_parquet",
    "fitting/kernel_sweeps/plain.py::read": SWEEPS,
    "fitting/kernel_sweeps/points.py::read_csv": GIVEN,
    "fitting/sweep_files.py::read_points": SWEEPS,
    "fitting/training.py::training_rows": SWEEPS,
    "forward/call_files.py::_read": "check_parquet before it is unpacked",
    "logs/files.py::open": CHECKED,
    "logs/measured_runs.py::_rows": LOG,
    "logs/plain.py::_open": LOG,
    "logs/plain.py::csv_source": LOG,
    "logs/queries.py::_scan": LOG,
    "scenario/grid.py::_read_csv": CHECKED,
    "searching/commands.py::run_bounded": CHILD,
    "searching/cupy_measurer.py::_expected": CHECKED,
    "searching/llm/client.py::_once": "through opener, which follows no redirect, and read_answer",
    "server/app.py::_content_of": "counts what it takes itself, against the budget of a body",
    "serving/load/trace_files.py::content_of": GIVEN,
    "serving/load/trace_files.py::_read_csv": GIVEN,
    "serving/load/trace_files.py::_read_json_lines": GIVEN,
    "sweeps/parts.py::read": "a file that the sweep itself wrote; of sweep.json a number of bytes",
}
# methods of these names that read no file
OTHERS = {"self.open", "file.open", "webbrowser.open"}


def is_read(call: ast.Call) -> bool:
    """Whether a call reads a path or parses itself: no gate, which is a plain name, and no file that is written."""
    words = [*call.args, *(keyword.value for keyword in call.keywords)]
    modes = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    name = ast.unparse(call.func)
    if any(mode[:1] in WRITTEN and len(mode) <= 2 for mode in modes) or "O_WRONLY" in ast.unparse(call):
        return False
    if name == "duckdb.connect":
        return bool(words) and modes[:1] != [":memory:"]
    if name in OTHERS or not isinstance(call.func, ast.Attribute):
        return name == "open"
    return call.func.attr in READERS or name in PARSERS


def asks_a_file(node: ast.AST) -> bool:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_text and len(node.value) < 200 and "\n" not in node.value and bool(IN_SQL.search(node.value))


def readers(path: Path) -> Iterator[str]:
    """Yield the functions of a module that read, parse or ask."""
    source = path.read_text(encoding="utf-8")
    name = path.relative_to(PACKAGE).as_posix()
    if name.startswith(GATE) or not WORDS.search(source):
        return
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    own = {child: function for function in functions for child in ast.walk(function)}
    for node in ast.walk(tree):
        if (isinstance(node, ast.Call) and is_read(node)) or asks_a_file(node):
            function = own.get(node)
            yield f"{name}::{function.name if function else '<module>'}"


def test_every_reader_is_of_the_gate_or_has_a_reason() -> None:
    found = {reader for path in PACKAGE.rglob("*.py") for reader in readers(path)}
    assert found - ALLOWED.keys() == set(), "read it by a function of kernelsight.files"
    assert ALLOWED.keys() - found == set(), "no longer needed"


def test_a_reader_that_goes_around_is_found(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    module = tmp_path / "new.py"
    module.write_text(
        "def a(path):\n    return path.open('rb')\n"
        "def b(path):\n    check_file(path, refuse)\n    return pq.read_table(path)\n"
        "def c(path):\n    return f'select * from read_csv({path})'\n"
        "def d(path):\n    return open(path)\n"
        "def e(path):\n    return path.open('w')\n"
        "def f(path):\n    return read_text(path, refuse)\n"
        "def g(text):\n    return json.loads(text)\n"
        "async def h(request):\n    return await request.body()\n"
        "def i(path):\n    return duckdb.connect(path), duckdb.connect()\n"
        "def j(path):\n    return gzip.open(path)\n"
        "def k(path):\n    return read_json(path, refuse)\n"
        "rows = yaml.safe_load(text)\n"
    )
    found = [name.partition("::")[2] for name in readers(module)]
    assert sorted(found) == ["<module>", "a", "b", "c", "d", "g", "h", "i", "j"]
