"""Sweeps into a folder or at a URI: rows are made where they are simulated, and lie there once, whoever died."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.scenario.grid import Grid, expand
from kernelsight.session import Session, connect
from kernelsight.sweeps.blocks import Question, sweep_into
from kernelsight.sweeps.parts import MANIFEST, SWEEP_FILE, Parts
from kernelsight.sweeps.sweep import Execution
from tests.asked import sweep

from .conftest import LOAD, SMALL, table_bytes

AXES = {**{name: [value] for name, value in (SMALL | LOAD).items()}, "max_concurrency": [1, 4, 30], "tp": [1, 2, 3]}
NOTHING = Question({}, {}, {})


def into(
    session: Session, place: Path | str, grid: Grid | None = None, question: Question = NOTHING, **how: Any
) -> Any:
    """Sweep the axes into a place, in parts of four rows."""
    execution = Execution(**{"connect": connect, "partition_requests": 96, **how})
    return sweep_into(session, grid or Grid(AXES), Parts(place), question, execution)


def rows_at(place: Path) -> pa.Table:
    names = json.loads((place / MANIFEST).read_text())["parts"]
    return pa.concat_tables([pq.read_table(place / name) for name in names]).sort_by("scenario_id")


def test_a_folder_holds_what_a_sweep_returns(session: Session, tmp_path: Path) -> None:
    swept = into(session, tmp_path / "out", question=Question({}, {"ttft_p95_ms": 60.0}, {"l4": 0.7}))
    assert (swept.rows, swept.served) == (9, 6)
    whole = sweep(session, [row | {"price_per_gpu_hour": 0.7} for row in expand(AXES)], slo={"ttft_p95_ms": 60.0})
    assert table_bytes(rows_at(tmp_path / "out")) == table_bytes(whole)
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["rows"] == 9 and len(manifest["parts"]) == 3


def test_a_table_of_rows_is_a_grid_too(session: Session, tmp_path: Path) -> None:
    rows = expand(AXES)[::-1]
    into(session, tmp_path / "out", Grid({}, pa.Table.from_pylist(rows)))
    assert table_bytes(rows_at(tmp_path / "out")) == table_bytes(sweep(session, rows))


def test_only_missing_parts_are_simulated_again(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    into(session, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for lost in (sorted(before)[1], MANIFEST):
        (folder / lost).unlink()
    (folder / ".a.parquet.99.draft").write_bytes(b"half a dra")
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("0*")}
    with pytest.raises(InvalidInput, match="has parts of a sweep; continue it with --resume, or remove it"):
        into(session, folder)
    with pytest.raises(InvalidInput, match="belongs to a sweep with another grid; remove it, or use another -o"):
        into(session, folder, Grid({**AXES, "seed": [7]}), resume=True)
    into(session, folder, resume=True, partition_requests=10**6)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_a_row_that_cannot_be_used_is_named_before_the_work(session: Session, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"row 4 of the grid: seed is -1; give"):
        into(session, tmp_path / "out", Grid({**AXES, "seed": [0, 1, 2, -1]}))
    assert not (tmp_path / "out").exists()
    rows = pa.Table.from_pylist([*expand(AXES), expand(AXES)[3]])
    with pytest.raises(
        InvalidInput, match=r"rows of the grid are the same scenario, \w+; keep one of them|rows 4 and 10"
    ):
        into(session, tmp_path / "out", Grid({}, rows))


def test_parts_on_a_machine_of_their_own_are_missed(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Parts.write
    monkeypatch.setattr(Parts, "write", lambda parts, key, table: key[11] == "4" or write(parts, key, table))
    with pytest.raises(RunFailed, match="1 parts are not in .*; give a folder or a URI that all machines share"):
        into(session, tmp_path / "out")


@pytest.mark.parametrize("table", [False, True])
def test_rows_of_a_grid_keep_their_numbers(table: bool) -> None:
    axes = {"a": [1, 2, 3], "b": ["x", "y"], "c": [0.5, 1.5]}
    rows = expand(axes)
    grid = Grid({}, pa.Table.from_pylist(rows)) if table else Grid(axes)
    grid.sort({"c"})
    made = [grid.block(start, start + 5) for start in range(0, 12, 5)]
    numbers, found = [n for part, _ in made for n in part], [row for _, part in made for row in part]
    assert sorted(numbers) == list(range(1, 13)) and [rows[number - 1] for number in numbers] == found
    assert [row["c"] for row in found] == [0.5] * 6 + [1.5] * 6
    numbers, found = grid.samples()
    assert [rows[number - 1] for number in numbers] == found
    assert all({row[name] for row in found} == set(values) for name, values in axes.items())


def test_the_command_says_where_the_rows_lie(command: Callable, tmp_path: Path) -> None:
    grid, place = tmp_path / "grid.json", f"{tmp_path}/out/"
    grid.write_text(json.dumps(AXES))
    sentence = f"9 scenarios, 6 served, 3 cannot run; they are in {place}\n"
    assert command("sweep", grid, "-o", place) == (0, sentence, "")
    status, out, _ = command("sql", f"select count(*) as n from '{place}*.parquet'", "--format", "json")
    assert (status, json.loads(out)) == (0, [{"n": 9}])
    status, _, err = command("sweep", grid, "-o", "nothing://a/b")
    assert status == 2 and err.startswith("kernelsight: nothing://a/b cannot be opened (")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The URI of a bucket of a server that speaks S3."""
    pytest.importorskip("moto")
    pytest.importorskip("flask")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    words = [sys.executable, "-m", "moto.server", "-p", str(port)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        import pyarrow.fs as pafs

        of = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        files, _ = pafs.FileSystem.from_uri(f"s3://a/?{of}&allow_bucket_creation=true")
        files.create_dir("bucket")
        yield f"s3://bucket/out?{of}"
        server.kill()


@pytest.mark.whole
def test_an_object_store_holds_the_same_bytes(session: Session, tmp_path: Path, store: str) -> None:
    import pyarrow.fs as pafs

    into(session, tmp_path / "out")
    swept = into(session, store, workers=2)
    assert str(swept.parts) == "s3://bucket/out"
    files, path = pafs.FileSystem.from_uri(store)
    found = {info.base_name: files.open_input_stream(info.path).read()
             for info in files.get_file_info(pafs.FileSelector(path))}  # fmt: skip
    assert found == {each.name: each.read_bytes() for each in (tmp_path / "out").iterdir()}
    with pytest.raises(InvalidInput, match="s3://bucket/out has parts of a sweep; continue it with --resume"):
        into(session, store)


@pytest.mark.filterwarnings("ignore")  # Ray's own
@pytest.mark.whole
def test_a_killed_machine_leaves_the_same_bytes(session: Session, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    into(session, tmp_path / "here", partition_requests=24)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        node, killed = cluster.add_node(num_cpus=1), []

        def kill(_: Any) -> None:
            if not killed:
                killed.append(cluster.remove_node(node, allow_graceful=False))

        ray.init(address=cluster.address, log_to_driver=False)
        into(session, tmp_path / "there", partition_requests=24, executor="ray", report=kill)
    finally:
        ray.shutdown()
        cluster.shutdown()
    here, there = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("here", "there"))
    assert killed and here == there and len(here) == 9 + len((MANIFEST, SWEEP_FILE))
