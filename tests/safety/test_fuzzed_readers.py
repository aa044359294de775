"""Files that were changed at random are read, or refused in one sentence; KERNELSIGHT_WORLDS above 100 looks longer."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.caches.journal import Journal
from kernelsight.catalog.tables import contracts
from kernelsight.errors import KernelSightError
from kernelsight.evaluation.runs.measured_runs import read_runs
from kernelsight.fitting.kernel_sweeps.importing import import_sweep
from kernelsight.fitting.kernel_sweeps.sources import READERS
from kernelsight.fitting.pack_rows import write_pack
from kernelsight.fitting.sweep_files import check_sweeps, measured_gpus
from kernelsight.forward.forward_step import predict_calls
from kernelsight.kernels.pack import default_pack, read_pack
from kernelsight.logs import read_logs
from kernelsight.measure.run import Points, read_points
from kernelsight.measure.suite import read_suite
from kernelsight.models.config import read_config, read_config_file
from kernelsight.scenario.corrections import give_corrections
from kernelsight.scenario.given_facts import extend_gpus, give_host_overheads
from kernelsight.scenario.grid import read_grid
from kernelsight.scenario.launch.deployments import read_launch_line
from kernelsight.scenario.plan import plan_rows
from kernelsight.scenario.prices import read_prices
from kernelsight.searching.cupy_measurer import read_launch
from kernelsight.searching.journal import open_journal
from kernelsight.searching.proposers import read_configurations
from kernelsight.searching.space_files import read_spaces
from kernelsight.searching.tuner_files import read_tuner_file
from kernelsight.searching.tuning_parameters import read_parameters
from kernelsight.serving.load.recorded_loads import read_load, read_trace
from kernelsight.session import Session, connect
from tests.cli.conftest import TINY_CONFIG
from tests.conftest import random_worlds

Reader = Callable[[Session, Path], object]
ROWS = [
    {"arrival_s": 0.0, "prompt_tokens": 40, "output_tokens": 4, "hash_ids": [1, 2, 3], "hash_block_tokens": 16},
    {"arrival_s": 0.5, "prompt_tokens": 7, "output_tokens": 1, "hash_ids": [1], "hash_block_tokens": 16},
]
LOAD = {"num_prompts": 4, "input_len": 64, "output_len": 8, "request_rate": 2.5}
GRID = [{"model": "qwen3-0.6b", "gpu": gpu, **LOAD} for gpu in ("l4", "t4")]
POINT = {
    "gpu": "h100_sxm", "family": "gemm", "implementation": "mine", "engine": "mine", "engine_version": "1",
    "shape": {"m": 16, "n": 4096, "k": 4096}, "dtype": "bf16", "format": "bf16", "math": "bf16", "distribution": None,
    "latency_us": 20.0, "samples": 5, "cv": 0.01, "sm_clock_hz": 1.7e9, "source": "my bench",
}  # fmt: skip
CALLS = [
    {
        "family": "gemm",
        "shape": {"m": 8, "n": 64, "k": 64},
        "math": "bf16",
        "format": "bf16",
        "flops": 1.0,
        "bytes": 9.0,
    }
]
RUN = {
    "run_id": "a", "model": "qwen3-32b", "gpu": "h100_sxm", "engine": "vllm", "isl": 100, "osl": 10, "tp": 2, "ep": 1,
    "campaign": "given", "pp": 1, "dp": 1, "workers": 1,
    "max_concurrency": 4, "ttft_ms": 100.0, "tpot_ms": 10.0, "source": "mine",
}  # fmt: skip
GPU = {"gpu": "mine", "like": "h100_sxm", "memory_bytes": 10**11, "sm_count": 100}
HOST = {"engine": "vllm", "from_version": "0.1", "step_exposed_us": 10.0, "overlapped": True}

CACHE = {
    "device_name": "l4", "kernel_name": "conv", "tune_params_keys": ["tile"],
    "cache": {str(tile): {"tile": tile, "time": 1.5, "times": [1.0, 2.0], "compile_time": 9} for tile in range(4)},
}  # fmt: skip
TUNING = {"name": "own", "tune_params": {"x": [16, 32], "w": ["row"]}, "restrictions": ["x % 16 == 0 and w in ['row']"]}
POD = b"""apiVersion: v1
kind: Pod
metadata: {creationTimestamp: 2026-01-02T03:04:05Z}
spec: &spec
  nodeSelector: {gpu: nvidia-l4}
  containers:
  - image: vllm/vllm-openai:v0.10.0
    command: [vllm, serve]
    args: [$(MODEL), --max-num-seqs, "8", --speculative-config, '{"method": "ngram", "num_speculative_tokens": 3}']
    env: [{name: MODEL, value: Qwen/Qwen3-0.6B}]
    resources: {limits: {nvidia.com/gpu: 1}}
"""
OPTIONS = b"""max-num-seqs: 8
tensor-parallel-size: 1
speculative-config: &drafts {method: ngram, num_speculative_tokens: 3}
compilation-config: {cudagraph_capture_sizes: [1, 2, 4]}
"""
TURN = {"t": 0.0, "in": 130, "out": 3, "hash_ids": [1, 2], "api_time": 1.5, "think_time": 2}
CONVERSATION = {
    "id": "a", "block_size": 64, "tool_tokens": 70, "system_tokens": 9,
    "requests": [TURN, {"t": 9.0, "duration_ms": 1000, "requests": [TURN]}, TURN | {"t": 12.0}],
}  # fmt: skip
SUITE = {"suite": "own", "rule": {"block": 5}, "entries": [{"family": "gemm", "axes": {"m": [1, 2], "n": 64, "k": 64}}]}
KERNEL = {"kernel": "add", "problem_size": [64], "arguments": [{"dtype": "float32", "size": 64}], "samples": 3}
CORRECTIONS = [{"part": "host", "factor": 1.1, "exposed_us": 2.0, "fingerprint": "0" * 16, "fitted_on": "a", "n": 5}]
REQUEST = {"arrival_s": 1.0, "prompt_tokens": 9, "output_tokens": 3, "ttft_ms": 5.0, "e2e_ms": 9.0}
REPORT = b"""benchmarks:
- config: {strategy: {type_: constant, rate: 2.0}}
  scheduler_metrics: {measure_start_time: 0.0}
  requests:
    successful:
    - {prompt_tokens: 9, output_tokens: 3, info: {timings: {request_start: 1.0, first_token_iteration: 1.5}}}
"""
SPACES = [
    {"space": "conv", "gpu": "l4", "parameters": f'{{"tile": {tile}}}', "latency_us": 2.0 * tile, "status": "ok"}
    for tile in range(1, 5)
]


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def csv(rows: list[dict[str, Any]]) -> bytes:
    plain = [{name: value for name, value in row.items() if not isinstance(value, list | dict)} for row in rows]
    sink = io.BytesIO()
    pa.csv.write_csv(pa.Table.from_pylist(plain), sink)
    return sink.getvalue()


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def config_bytes(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode()


def read_grid_and_plan(session: Session, path: Path) -> None:
    with session.fork() as fork:
        plan_rows(fork, read_grid(fork, str(path)))


def read_gpus(session: Session, path: Path) -> None:
    with session.fork() as fork:
        extend_gpus(fork, path)


def read_launch_file(session: Session, path: Path) -> None:
    read_launch_line(f"@{path}")


def read_option_file(session: Session, path: Path) -> None:
    read_launch_line(f"vllm serve Qwen/Qwen3-0.6B --config {path}", read_files=True)


def read_proposals(session: Session, path: Path) -> None:
    read_configurations(path)


def read_correction(session: Session, path: Path) -> None:
    with session.fork() as fork:
        give_corrections(fork, path)


def read_host(session: Session, path: Path) -> None:
    with session.fork() as fork:
        give_host_overheads(fork, path)


def read_calls(session: Session, path: Path) -> None:
    with session.fork() as fork:
        predict_calls(fork, str(path), "h100_sxm", None)


def read_sweep(session: Session, path: Path) -> None:
    check_sweeps([path])
    measured_gpus([path])


def import_points(session: Session, path: Path) -> None:
    import_sweep(READERS["parquet"](path, None, None), path.with_name("imported.parquet"))


def read_saved(session: Session, path: Path) -> None:
    with connect(path, read_only=True) as saved:
        saved.query("select count(*) from fabrics")


def point_bytes() -> bytes:
    schema = contracts()["sweep_points"].schema.remove_metadata()
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([POINT, POINT | {"latency_us": 3.0}], schema), sink)
    return sink.getvalue()


def journal_bytes(folder: Path) -> bytes:
    """Return the journal of a measurement with two points."""
    path = folder / "made.journal"
    points = Points(path, {"suite": "tiny"}, [])
    points.add("a", {"latency_us": 2.0})
    points.add("b", None, "no such library is installed")
    points.close()
    return path.read_bytes()


def search_bytes(folder: Path) -> bytes:
    """Return the journal of a search with one record."""
    with Journal(folder / "made.journal", "search", "1f") as journal:
        journal.append({"run": 1})
    return (folder / "made.journal").read_bytes()


def pack_bytes(folder: Path) -> bytes:
    write_pack(default_pack().slice(0, 20), folder / "whole.parquet")
    return (folder / "whole.parquet").read_bytes()


def saved_bytes(folder: Path) -> bytes:
    with connect() as session:
        session.save(folder / "whole.duckdb", ["fabrics"])
    return (folder / "whole.duckdb").read_bytes()


# name of the file: what a sound one holds, and who reads it
ARCHITECTURE = {"like": "llama", "architectures": ["LlamaForCausalLM"], "layers": {"attention": "full"}}


def read_architecture(_: Session, path: Path) -> None:
    read_config(TINY_CONFIG, model="m", huggingface_id=None, source="here", own_architecture=path)


FILES: dict[str, tuple[Callable[[Path], bytes], Reader]] = {
    "trace.csv": (lambda _: csv(ROWS), lambda _, path: read_trace(path)),
    "trace.jsonl": (lambda _: lines(ROWS), lambda _, path: read_trace(path)),
    "trace.parquet": (lambda _: parquet(ROWS), lambda _, path: read_trace(path)),
    "trace.jsonl.gz": (lambda _: gzip.compress(lines(ROWS)), lambda _, path: read_trace(path)),
    "agent.json": (lambda _: config_bytes(CONVERSATION), lambda _, path: read_load(path)),
    "config.json": (lambda _: config_bytes(TINY_CONFIG), lambda _, path: read_config_file(path)),
    "mine.yaml": (lambda _: config_bytes(ARCHITECTURE), read_architecture),
    "grid.json": (lambda _: config_bytes(GRID[0]), read_grid_and_plan),
    "grid.csv": (lambda _: csv(GRID), read_grid_and_plan),
    "grid.parquet": (lambda _: parquet(GRID), read_grid_and_plan),
    "calls.parquet": (lambda _: parquet(CALLS), read_calls),
    "runs.csv": (lambda _: csv([RUN]), lambda _, path: read_runs(str(path))),
    "runs.parquet": (lambda _: parquet([RUN]), lambda _, path: read_runs(str(path))),
    "gpus.json": (lambda _: config_bytes(GPU), read_gpus),
    "gpus.csv": (lambda _: csv([GPU]), read_gpus),
    "host.json": (lambda _: config_bytes(HOST), read_host),
    "sweep.parquet": (lambda _: point_bytes(), read_sweep),
    "points.parquet": (lambda _: point_bytes(), import_points),
    "pack.parquet": (pack_bytes, lambda _, path: read_pack(path)),
    "run.duckdb": (saved_bytes, read_saved),
    "cache.json": (lambda _: config_bytes(CACHE), lambda _, path: read_tuner_file(path)),
    "cache.json.gz": (lambda _: gzip.compress(config_bytes(CACHE)), lambda _, path: read_tuner_file(path)),
    "tuning.json": (lambda _: config_bytes(TUNING), lambda _, path: read_parameters(path)),
    "pod.yaml": (lambda _: POD, read_launch_file),
    "options.yaml": (lambda _: OPTIONS, read_option_file),
    "suite.json": (lambda _: config_bytes(SUITE), lambda _, path: read_suite(str(path))),
    "kernel.json": (lambda _: config_bytes(KERNEL), lambda _, path: read_launch(path)),
    "proposals.jsonl": (lambda _: lines([{"tile": 1}, {"candidate_id": "tile=2"}]), read_proposals),
    "correction.parquet": (lambda _: parquet(CORRECTIONS), read_correction),
    "prices.csv": (lambda _: csv([{"gpu": "l4", "price_per_gpu_hour": 0.7}]), lambda s, path: read_prices(s, path)),
    "log.csv": (lambda _: csv([REQUEST]), lambda _, path: read_logs(path)),
    "log.jsonl.gz": (lambda _: gzip.compress(lines([REQUEST])), lambda _, path: read_logs(path)),
    "report.yaml": (lambda _: REPORT, lambda _, path: read_logs(path)),
    "spaces.parquet": (lambda _: parquet(SPACES), lambda _, path: read_spaces([path])),
    "points.journal": (journal_bytes, lambda _, path: read_points(path)),
    "run.journal": (
        search_bytes,
        lambda _, path: open_journal(path, "1f", True)[0].close(),
    ),
}
SPICE = [
    *(
        b"",
        b"\x00",
        b"\xff",
        b"\xef\xbb\xbf",
        b'"',
        b",",
        b"\n",
        b"{",
        b"}",
        b"[",
        b"]",
        b"null",
        b"NaN",
        b"-1",
        b"1e999",
    ),
    *(b"&a ", b"*a", b"*spec", b"!!int ", b"!!timestamp ", b"<<: ", b": ", b"- ", b"2020-13-45", b"|\n", b"? "),
    *(b"0", b"1.5", b"true", b"\\ud800", b"9" * 25, b"-", b"\r", b";", b"PAR1", b"\x1f\x8b", b"'", b"  ", b"Infinity"),
]
ONE_CHANGE = st.tuples(
    st.floats(0, 1),
    st.sampled_from(["cut", "put", "over", "drop"]),
    st.sampled_from(SPICE) | st.binary(max_size=4),
)
CHANGES = st.lists(ONE_CHANGE, min_size=1, max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4)
    | st.sampled_from(["auto", "qwen3-0.6b", "l4", "bf16", "nan", "inf", "../x", "0x10", "1_000"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)  # fmt: skip


class Sound(dict[str, bytes]):
    """The sound content of every file; hypothesis shows it with each example, and it is large."""

    def __repr__(self) -> str:
        return "sound files"


def changed(content: bytes, changes: list[tuple[float, str, bytes]]) -> bytes:
    """Return a file after changes: cut there, put in, written over, or a part dropped."""
    for share, how, spice in changes:
        at = int(share * len(content))
        if how == "cut":
            content = content[:at]
        elif how == "drop":
            content = content[:at] + content[at + 1 + len(spice) :]
        else:
            content = content[:at] + spice + content[at + (len(spice) if how == "over" else 0) :]
    return content


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzzed")


@pytest.fixture(scope="module")
def sound(folder: Path) -> dict[str, bytes]:
    """The sound content of every file."""
    return Sound({name: make(folder) for name, (make, _) in FILES.items()})


def read_or_refuse(name: str, content: bytes, session: Session, folder: Path) -> None:
    """Read a file; a refusal is one sentence."""
    path = folder / name
    path.write_bytes(content)
    try:
        FILES[name][1](session, path)
    except KernelSightError as error:
        assert "\n" not in str(error) and str(error).strip(), repr(str(error))


@pytest.mark.parametrize("name", FILES)
def test_a_sound_file_is_read(name: str, session: Session, folder: Path, sound: dict[str, bytes]) -> None:
    (folder / name).write_bytes(sound[name])
    FILES[name][1](session, folder / name)


@pytest.mark.parametrize("name", FILES)
@random_worlds(300, few=15)
@given(changes=CHANGES)
def test_a_file_that_was_changed_is_read_or_refused(
    name: str, changes: list, session: Session, folder: Path, sound: dict[str, bytes]
) -> None:
    read_or_refuse(name, changed(sound[name], changes), session, folder)


OBJECTS = {
    "tuning.json": TUNING,
    "config.json": TINY_CONFIG,
    "mine.yaml": ARCHITECTURE,
    "grid.json": GRID[0],
    "gpus.json": GPU,
    "host.json": HOST,
    "trace.jsonl": ROWS[0],
    "suite.json": SUITE,
    "kernel.json": KERNEL,
    "proposals.jsonl": {"candidate_id": "a", "parameters": {"tile": 1}},
}
FIELDS = [
    *("rope_scaling", "quantization_config", "text_config", "num_experts", "n_routed_experts", "layer_types", "dtype"),
    *("like", "fields", "layers", "columns", "products", "modules", "checks", "notes"),
]


@pytest.mark.parametrize("name", OBJECTS)
@random_worlds(300, few=20)
@given(data=st.data())
def test_a_field_of_any_value_is_read_or_refused(name: str, data: Any, session: Session, folder: Path) -> None:
    row = dict(OBJECTS[name])
    for _ in range(data.draw(st.integers(1, 3))):
        field = data.draw(st.sampled_from([*row, *FIELDS, "arrival_s", "seed", "trace", "lengths_from", "name"]))
        row[field] = data.draw(VALUES)
    read_or_refuse(name, json.dumps(row).encode("utf-8", "replace"), session, folder)


TABLES = {
    "grid.parquet": GRID,
    "trace.parquet": ROWS,
    "calls.parquet": CALLS,
    "runs.parquet": [RUN],
    "sweep.parquet": [POINT],
    "correction.parquet": CORRECTIONS,
    "spaces.parquet": SPACES,
}
TYPES = [
    *(pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.string(), pa.large_string(), pa.binary(), pa.bool_()),
    *(pa.date32(), pa.timestamp("us", "UTC"), pa.decimal128(38, 3), pa.list_(pa.int8()), pa.null(), pa.time64("ns")),
    *(pa.dictionary(pa.int32(), pa.string()), pa.struct([("m", pa.float64()), ("x", pa.int32())]), pa.duration("s")),
    *(pa.timestamp("ns"), pa.timestamp("ms", "UTC"), pa.duration("ns"), pa.list_(pa.time64("ns"))),
]


@pytest.mark.parametrize("name", [*TABLES, "points.parquet"])
@random_worlds(200, few=20)
@given(data=st.data())
def test_a_column_of_any_type_is_read_or_refused(name: str, data: Any, session: Session, folder: Path) -> None:
    table = pa.Table.from_pylist(TABLES.get(name, [POINT]))
    for _ in range(data.draw(st.integers(1, 2))):
        number, kind = data.draw(st.integers(0, table.num_columns - 1)), data.draw(st.sampled_from(TYPES))
        nulls = pa.nulls(table.num_rows, kind)
        try:
            column = table.column(number).cast(kind) if data.draw(st.booleans()) else nulls
        except pa.ArrowException:
            column = nulls
        table = table.set_column(number, table.field(number).name, column)
    sink = io.BytesIO()
    try:
        pq.write_table(table, sink)
    except pa.ArrowException:
        return  # no type of Parquet
    read_or_refuse(name, sink.getvalue(), session, folder)


WORDS = (
    "select from gpus with x_as_( ( ) * copy insert_into pivot on using explain analyze , 'a' \"b\" 1 ; -- /* */ "
    "values union order_by gpu describe ::int"
)


@random_worlds(300)
@given(
    query=st.lists(st.sampled_from([word.replace("_", " ") for word in WORDS.split()]), max_size=9).map(" ".join)
    | st.text(max_size=20)
)
def test_any_query_is_answered_or_refused(query: str, session: Session) -> None:
    try:
        session.query(query)
    except KernelSightError as error:
        assert "\n" not in str(error)
