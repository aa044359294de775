"""The on-disk cache: tables and parsed queries are shared by processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from kernelsight import connect
from kernelsight.caches import disk_cache
from kernelsight.dataflow.sql_nodes import parse_node, parse_query

ROW = {"deployment_id": "d", "model": "qwen3-0.6b", "gpu": "l4", "tp": 1, "pp": 1, "dp": 1, "ep": 1, "engine": "vllm"}
QUICK = ("memory_plan", "deployment_settings")
TABLES = ("memory_plan", "step_costs", "assumptions", "kernel_latencies", "deployment_settings")


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the environment variable names."""
    (tmp_path / "named").mkdir(mode=0o700)
    monkeypatch.setenv(disk_cache.VARIABLE, str(tmp_path / "named"))
    return tmp_path / "named"


@pytest.fixture
def place(named: Path) -> Path:
    return named / "kernelsight" / "kept"


@pytest.fixture(scope="module")
def cached_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, pa.Table], list[str]]:
    """A folder in which a session cached its tables, the tables, and those that a node ran for."""
    folder = tmp_path_factory.mktemp("once")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(disk_cache.VARIABLE, str(folder))
        return folder, *answers()


@pytest.fixture
def first(named: Path, cached_once: tuple) -> dict[str, pa.Table]:
    """Tables that an earlier session cached in the named folder."""
    shutil.copytree(cached_once[0], named, dirs_exist_ok=True)
    return cached_once[1]


def answers(row: dict = ROW, tables: tuple[str, ...] = TABLES) -> tuple[dict[str, pa.Table], list[str]]:
    """Return tables of one deployment, and the tables that a node ran for."""
    ran: list[str] = []
    with connect() as session:
        session.progress = lambda names, seconds: ran.extend(names.split(", "))
        session.give("deployments", [row])
        return {name: session.table(name) for name in tables}, ran


def test_another_session_takes_the_same_tables(cached_once: tuple, first: dict[str, pa.Table]) -> None:
    again, ran = answers()
    assert set(TABLES) <= set(cached_once[2])
    assert not set(TABLES) & set(ran)
    for name in TABLES:
        assert again[name].equals(first[name], check_metadata=True), name


def test_the_same_bytes_are_the_same_table(place: Path) -> None:
    """What is remembered of a table holds for every session that takes it; a file that says otherwise is believed."""
    schema, key = pa.schema({"x": pa.int64()}), 64 * "a"
    disk_cache.write_cached_table(key, pa.table({"x": [1, 2]}))
    first = disk_cache.read_cached_table(key, schema)
    assert first is disk_cache.read_cached_table(key, schema)
    disk_cache.write_cached_table(key, pa.table({"x": [1, 3]}))
    assert disk_cache.read_cached_table(key, schema)["x"].to_pylist() == [1, 3]
    (place / key).unlink()
    assert disk_cache.read_cached_table(key, schema) is None


def test_other_rows_are_computed(first: dict[str, pa.Table]) -> None:
    tables = (*QUICK, "kernel_latencies")
    other, ran = answers({**ROW, "gpu": "h100_sxm"}, tables)
    assert set(tables) <= set(ran)
    assert not other["kernel_latencies"].equals(first["kernel_latencies"])


def test_given_facts_are_part_of_the_key(first: dict[str, pa.Table]) -> None:
    with connect() as session:
        rows = [row for row in session.table("gpus").to_pylist() if row["gpu"] == "l4"]
        session.extend("gpus", [{**rows[0], "memory_bandwidth_bytes_per_s": 1e12}])
        session.give("deployments", [ROW])
        assert not session.table("kernel_latencies").equals(first["kernel_latencies"])


def test_what_replays_correct_is_not_cached(place: Path, first: dict[str, pa.Table]) -> None:
    before = set(place.iterdir())
    with connect() as session:
        session.give("deployments", [ROW])
        session.give("corrections", [{"deployment_id": "d", "part": "host", "factor": 1.0, "exposed_us": 500.0}])
        slower = {name: session.table(name) for name in ("step_costs", "host_settings", "memory_plan")}
    assert slower["memory_plan"].equals(first["memory_plan"])
    assert slower["host_settings"]["step_exposed_us"][0].as_py() >= 500.0
    assert set(place.iterdir()) == before


def same(some: dict[str, pa.Table], others: dict[str, pa.Table]) -> bool:
    """Return whether tables have the same rows as others: a join promises no order."""
    return all(
        sorted(map(repr, some[name].to_pylist())) == sorted(map(repr, others[name].to_pylist())) for name in some
    )


def damaged_on_the_disk(place: Path) -> None:
    for number, path in enumerate(sorted(place.iterdir())):
        content = path.read_bytes()
        flipped = content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]
        path.write_bytes((flipped, b"", content[: len(content) // 2])[number % 3])


def swapped(place: Path) -> None:
    paths = sorted(place.iterdir())
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)


def garbage_with_its_digest(place: Path) -> None:
    for path in place.iterdir():
        disk_cache.write_cached(path.name, b"\xffgarbage")


def another_table_with_its_digest(place: Path) -> None:
    for path in place.iterdir():
        disk_cache.write_cached_table(path.name, pa.table({"x": [1]}))


DAMAGES = (damaged_on_the_disk, swapped, garbage_with_its_digest, another_table_with_its_digest)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.whole
def test_damaged_files_are_computed_again(
    place: Path, first: dict[str, pa.Table], damage: Callable[[Path], None]
) -> None:
    names = {path.name for path in place.iterdir()}
    damage(place)
    again, ran = answers(tables=QUICK)
    assert set(QUICK) <= set(ran) and same(again, first)
    assert {path.name for path in place.iterdir()} == names
    assert not set(QUICK) & set(answers(tables=QUICK)[1])


def test_the_files_of_the_user_stay(named: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in the named folder, and in ours, are no business of the cache, however large it may be."""
    monkeypatch.setattr(disk_cache, "LARGEST_FOLDER", 250)
    place.mkdir(parents=True, mode=0o700)
    for path in (named / "thesis.tar", place / "photos.zip", place / ".thesis.tar.1.draft"):
        path.write_bytes(bytes(10_000))
        os.utime(path, (0, 0))
    answers(tables=QUICK)
    assert sorted(path.name for path in named.iterdir()) == ["kernelsight", "thesis.tar"]
    assert {".thesis.tar.1.draft", "photos.zip"} <= {path.name for path in place.iterdir()}


def test_nothing_is_cached_where_the_variable_is_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(disk_cache.VARIABLE, "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    answers(tables=QUICK)
    assert not list(tmp_path.iterdir())


def test_a_program_is_told_apart_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "rule.py").write_text("x = 1")
    before = disk_cache.program_digest(tmp_path)
    (tmp_path / "rule.py").write_text("x = 2")
    assert disk_cache.program_digest(tmp_path) != before


def test_what_follows_from_the_program_is_made_once(place: Path) -> None:
    rows = pa.table({"x": [1.5, None]}).replace_schema_metadata({"doc": "of x"})
    made: list[str] = []

    def make(name: str, value: object) -> Callable[[], object]:
        return lambda: made.append(name) or value

    for _ in range(2):
        assert disk_cache.cached_for_program("1" * 64, "rows", make("rows", rows)).equals(rows, check_metadata=True)
        assert disk_cache.cached_for_program("1" * 64, "names", make("names", {"a": [1, 2]})) == {"a": [1, 2]}
    assert disk_cache.cached_for_program("2" * 64, "names", make("another program", [])) == []
    assert made == ["rows", "names", "another program"]


def test_a_parsed_query_is_the_same_from_disk(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "with c as (select * from gpus) select * from c join models using (x)"
    first = parse_node(text)
    monkeypatch.setattr("kernelsight.dataflow.sql_nodes.parse_query", lambda text: pytest.fail("parsed again"))
    assert parse_node(text) == first == parse_query(text)


def test_a_query_is_parsed_again_where_its_file_is_garbage(place: Path) -> None:
    text = "select * from gpus"
    first = parse_node(text)
    for content in (b"\xff", b"{}", b"[1]", b"null", b'{"tables": []}', b"["):
        [path] = place.iterdir()
        disk_cache.write_cached(path.name, content)
        assert parse_node(text) == first, content
        assert [each.name for each in place.iterdir()] == [path.name]


TWO = """
import sys
from kernelsight.cli.main import main
sys.stdin.read(1)  # all begin together
sys.exit(main("predict --model qwen3-0.6b --gpu l4 --context-len 100 --format json".split()))
"""


@pytest.mark.whole
def test_two_processes_with_an_empty_cache_predict_the_same(named: Path, place: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"PYTHONPATH": str(Path(disk_cache.__file__).parents[2])}
    running = [subprocess.Popen([sys.executable, "-c", TWO], **pipes, env=environment) for _ in range(2)]
    for process in running:
        process.stdin.write("!")
        process.stdin.flush()
    said = [process.communicate() for process in running]
    assert said[0] == said[1] and json.loads(said[0][0])["total_us"] > 0 and said[0][1] == ""
    names = [path.name for path in place.iterdir()]
    assert names and not [name for name in names if name.startswith(".")]
