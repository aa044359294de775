"""Searches whose candidates are new sources: evolved or written by a model, checked before they are timed."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.caches.journal import journal_path
from kernelsight.catalog.tables import contracts, facts
from kernelsight.cli.main import main
from kernelsight.errors import InvalidInput
from kernelsight.searching.evolution import from_evolution, from_model
from kernelsight.searching.experience import of_search, ranked_scores, write_experience
from kernelsight.searching.llm.client import RECORDED, server_of
from kernelsight.searching.llm.forecaster import Settings, answer_cache
from kernelsight.searching.proposers import Proposer, candidates_of, proposer_of
from kernelsight.searching.scenarios import scenario_rows
from kernelsight.searching.search import candidate_rows, save_search, search
from kernelsight.searching.source_edits import crossed, edits_of, language_of, mutated, numbers_of
from kernelsight.searching.space_files import OPTIONAL, space_tables
from kernelsight.session import connect
from tests.measure.nvrtc import compiled, library
from tests.searching.llm.llm_server import serving, tool_answer
from tests.searching.made_spaces import made_rows

SOURCE = """#define WORK 4
extern "C" __global__ void scale(float *out, const float *in, int n) {
  int first = (blockIdx.x * blockDim.x + threadIdx.x) * WORK;
  for (int k = 0; k < WORK; ++k)
    if (first + k < n) out[first + k] = 2.0f * in[first + k];
}
"""
TRITON = """import triton
@triton.jit
def add(x, BLOCK: tl.constexpr = 256, num_warps=4):
    for k in range(4):
        tl.dot(x, x)
"""
# threads of the CPU in turn: a kernel without barriers computes the same
ON_CPU = """#include <cstdio>
struct Place { unsigned x, y, z; } threadIdx, blockIdx, blockDim;
#define __global__
#define __restrict__
#include "kernel.cu"
int main() {
  static float in[N], out[N];
  for (int i = 0; i < N; ++i) in[i] = i;
  blockDim.x = BLOCK;
  for (blockIdx.x = 0; blockIdx.x < (N + BLOCK * 4 - 1) / (BLOCK * 4); ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < BLOCK; ++threadIdx.x) scale(out, in, N);
  for (int i = 0; i < N; ++i) if (out[i] != 2.0f * i) return 3;
}
"""
ROWS = [
    {"space": "scale", "gpu": "a100_sxm", "parameters": json.dumps({"block_size_x": block}), "latency_us": None}
    | {"status": "unmeasured", "source": "made"}
    for block in (32, 64, 128)
]
TYPES = {**dict.fromkeys(ROWS[0], pa.string()), "latency_us": pa.float64(), **OPTIONAL}
TABLES = space_tables(pa.Table.from_pylist(ROWS, pa.schema(list(TYPES.items()))), "made")
SCENARIO = scenario_rows(
    [{"space": "scale", "gpu": "a100_sxm", "budget_measurements": 18, "batch": 3, "proposer": "given"}]
)[0]


@cache
def checked(source: str, block: int) -> str:
    """Return the status of a source on the CPU: it does not compile, is wrong, or right."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.cu").write_text(source)
        Path(folder, "main.cpp").write_text(ON_CPU)
        words = ["g++", "-O0", "-w", f"-DBLOCK={block}", "-DN=1000", f"{folder}/main.cpp", "-o", f"{folder}/run"]
        if subprocess.run(words, capture_output=True).returncode:
            return "compile_failed"
        code = subprocess.run([f"{folder}/run"], capture_output=True, timeout=60).returncode
        return {0: "ok", 3: "wrong_result"}.get(code, "runtime_failed")


def measured(candidates: pa.Table) -> pa.Table:
    """Compile and check each candidate; the time of a right one falls with the work of a thread, to a limit."""
    rows = []
    for row in candidates.to_pylist():
        text = row["source_text"] or SOURCE
        block = json.loads(row["parameters"])["block_size_x"]
        status, work = checked(text, block), numbers_of(text)["text WORK"]
        time = 100.0 / min(work, 64.0) + block / 64.0 + 2.0 * numbers_of(text)["text unrolled"]
        words = {"gpu": "a100_sxm", "run": 1, "status": status, "latency_us": time if status == "ok" else None}
        rows.append({"space": "scale", "candidate_id": row["candidate_id"], "cv": 0.01, "source": "test"} | words)
    return pa.Table.from_pylist(rows, contracts()["kernel_measurements"].schema)


def evolving(arrays: Any, target: Any) -> Proposer:
    candidates = candidates_of(arrays, target, TABLES.kernel_candidates)
    return Proposer(from_evolution(candidates, SCENARIO, SOURCE), candidates, target, 6, grows=True)


@pytest.fixture(scope="module")
def found() -> dict[str, pa.Table]:
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ to check sources with")
    return search(TABLES, SCENARIO, measured, proposer=evolving)


def test_evolved_sources_are_checked_before_they_are_timed_and_the_best_is_new(found: dict[str, pa.Table]) -> None:
    new = {row["candidate_id"]: row for row in found["kernel_candidates"].to_pylist()}
    measurements = found["search_measurements"].to_pylist()
    status = {row["candidate_id"]: row["status"] for row in measurements}
    best = found["search_summary"].to_pylist()[0]
    assert best["best_candidate"] in new and best["best_us"] < 25.0, "faster than any of the given source"
    wrong = [name for name, row in new.items() if numbers_of(row["source_text"])["text WORK"] < 4 and name in status]
    assert all(status[name] == "wrong_result" for name in wrong)
    assert {"wrong_result", "ok"} <= set(status.values()) and len(measurements) == 18
    known = {*new, *TABLES.kernel_candidates["candidate_id"].to_pylist()}
    assert all(row["proposer"] == "evolution" and row["parent_id"] in known for row in new.values())
    assert found["search_rounds"]["proposed"].to_pylist()[-1] > 3, "more are forecast than measured"


def test_a_killed_search_of_sources_resumes_to_the_same(found: dict[str, pa.Table], tmp_path: Path) -> None:
    calls = []

    def dies(candidates: pa.Table) -> pa.Table:
        calls.append(1)
        if len(calls) > 7:
            raise KeyboardInterrupt
        return measured(candidates)

    output = tmp_path / "run.duckdb"
    with pytest.raises(KeyboardInterrupt):
        search(TABLES, SCENARIO, dies, output, proposer=evolving)
    again = search(TABLES, SCENARIO, measured, output, True, proposer=evolving)
    for name in ("search_measurements", "kernel_candidates", "search_rounds", "search_summary"):
        assert again[name].to_pylist() == found[name].to_pylist(), name
    with connect() as session:
        save_search(session, TABLES, SCENARIO, again, output)
    assert not journal_path(output).exists()


def test_the_experience_of_a_search_has_proper_rewards(found: dict[str, pa.Table], tmp_path: Path) -> None:
    rows = [*TABLES.kernel_candidates.to_pylist(), *found["kernel_candidates"].to_pylist()]
    candidates = {row["candidate_id"]: row for row in rows}
    gpu = next(row for row in facts("gpus").to_pylist() if row["gpu"] == "a100_sxm")
    experience = list(of_search(found, candidates, SCENARIO, gpu, 2))
    write_experience(experience, tmp_path / "e.jsonl")
    read = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    assert read == json.loads(json.dumps(experience)) and len(read) > 5
    measurements = {row["candidate_id"]: row for row in found["search_measurements"].to_pylist()}
    for row in read:
        bins = np.array([row["forecast"][f"bin_{number}"] for number in range(1, 9)])
        assert bins.sum() == pytest.approx(1.0)
        assert row["outcome"]["latency_us"] == measurements[row["candidate_id"]]["latency_us"]
        prompt, time = row["prompt"][1]["content"], row["outcome"]["latency_us"]
        assert candidates[row["candidate_id"]]["parameters"] in prompt
        assert (row["reward"] is None) == (time is None) == (row["outcome"]["status"] != "ok")
        if time is not None:
            score = ranked_scores(bins[None], np.array([row["outcome"]["bin"] - 1]))[0]
            assert 0.0 <= row["reward"] == pytest.approx(1.0 - score)
            # the anchor's time is told, its own is not
            anchor = row["outcome"]["speed_up"] * time
            assert f"measured on {gpu['name']}: {anchor:.6g} us" in prompt
            assert anchor == pytest.approx(measurements[row["anchor"]]["latency_us"], rel=0.05)
    held = np.array([0.1, 0.2, 0.4, 0.3])
    expected = [
        sum(held[hit] * (1.0 - ranked_scores(stated[None], np.array([hit]))[0]) for hit in range(4))
        for stated in (held, np.eye(4)[2], np.full(4, 0.25))
    ]
    assert expected[0] > max(expected[1:]), "honest probabilities have the largest reward"


def test_edits_make_variants_that_compile(tmp_path: Path) -> None:
    nvrtc = library()
    if nvrtc is None:
        pytest.skip("there is no nvidia-cuda-nvrtc to compile with")
    draw = np.random.default_rng(0)
    texts = [SOURCE]
    for _ in range(24):
        child = mutated(texts[int(draw.integers(len(texts)))], draw)
        texts += [child] if child and child not in texts else []
    mixed = [crossed(one, other, draw) for one, other in zip(texts[1:], texts[2:], strict=False)]
    children = [*texts, *(text for text in mixed if text)]
    failed = [text for text in children if not compiled(text, "compute_90", nvrtc)[0]]
    assert len(children) > 12 and len(failed) < 0.2 * len(children), failed[:1]


def test_edits_of_both_languages_apply_and_describe() -> None:
    assert (language_of(SOURCE), language_of(TRITON)) == ("cuda", "triton")
    draw = np.random.default_rng(3)
    for text in (SOURCE, TRITON):
        children = {mutated(text, draw) for _ in range(60)}
        assert len(children) >= 4 and text not in children - {None}
    assert numbers_of(TRITON)["text BLOCK"] == 256 and numbers_of(TRITON)["text product"] == 1
    assert {edit.name for edit in edits_of("triton")} >= {"constant", "option", "loop"}
    assert mutated("int x;", draw) is None and crossed("a\nb", "c\nd", draw) is None


WRITTEN = SOURCE.replace("WORK 4", "WORK 32")


def by_model(settings: Settings, file: Path) -> Any:
    import pyarrow.parquet as pq

    def proposer(arrays: Any, target: Any) -> Proposer:
        candidates = candidates_of(arrays, target, TABLES.kernel_candidates)
        source = from_model(candidates, settings, {"name": "A100"}, SOURCE, lambda: answer_cache(file, pq.read_table))
        return Proposer(source, candidates, target, 4, grows=True)

    return proposer


def test_a_model_writes_sources_and_its_record_answers_without_it(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ to check sources with")
    scenario, file = SCENARIO | {"budget_measurements": 6}, tmp_path / "answers.parquet"

    def script(body: dict, number: int) -> tuple[int, Any, float, dict[str, str]]:
        assert body["tool_choice"]["function"]["name"] == "write_kernel"
        assert "#define WORK" in body["messages"][1]["content"] and "Also measured" in body["messages"][1]["content"]
        answers = ({"source_text": WRITTEN, "parameters": {"block_size_x": 32, "other": 1}}, {"source_text": " "})
        return 200, tool_answer(answers[number % 2]), 0.0, {}

    with serving(script) as seen:
        settings = Settings(server_of(seen.url, "m", 5.0, 0))
        found = search(TABLES, scenario, measured, proposer=by_model(settings, file))
    new = found["kernel_candidates"].to_pylist()
    assert [(row["source_text"], row["proposer"]) for row in new] == [(WRITTEN, "llm")] * len(new) and new
    assert found["search_summary"]["best_candidate"][0].as_py() in {row["candidate_id"] for row in new}
    recorded = Settings(server_of(RECORDED, "m", 5.0, 0))
    again = search(TABLES, scenario, measured, proposer=by_model(recorded, file))
    assert again["search_measurements"] == found["search_measurements"]
    with pytest.raises(InvalidInput, match="--llm-url recorded: .* answers of m are not in --llm-cache"):
        search(TABLES, scenario | {"seed": 1}, measured, proposer=by_model(recorded, tmp_path / "none.parquet"))


def test_a_proposed_source_is_used_where_candidates_are_measured_alone(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text(json.dumps([{"block_size_x": 32}, {"source_text": WRITTEN, "parameters": {"block_size_x": 64}}]))
    for grows in (True, False):

        def proposer(arrays: Any, target: Any, grows: bool = grows) -> Proposer:
            candidates = candidates_of(arrays, target, TABLES.kernel_candidates)
            return proposer_of(str(file), candidates, target, 4, 5.0, grows)

        measures = lambda rows: pa.Table.from_pylist(  # noqa: E731 - what it is given is what is looked at
            [{"space": "scale", "gpu": "a100_sxm", "candidate_id": row["candidate_id"], "run": 1, "status": "ok"}
             | {"latency_us": 5.0, "source": "test"} for row in rows.to_pylist()],
            contracts()["kernel_measurements"].schema,
        )  # fmt: skip
        found = search(TABLES, SCENARIO | {"budget_measurements": 3}, measures, proposer=proposer)
        assert ("kernel_candidates" in found) == grows
        notes = found["search_summary"]["notes"][0].as_py() or ""
        assert ("1 proposals are no candidates" in notes) != grows
    assert candidate_rows([{"candidate_id": "a", "parameters": {"b": 1}}], "s")["parameters"].to_pylist() == [
        '{"b": 1}'
    ]


def test_evolution_at_the_command_line_varies_parameters_and_exports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.parquet as pq

    file, learn = tmp_path / "made.parquet", tmp_path / "learn.jsonl"
    pq.write_table(made_rows(), file)
    words = ["search", "run", "--space", str(file), "--gpu", "two", "--budget", "20", "--format", "json"]
    assert main([*words, "--propose", "evolution", "--export", str(learn)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["measured"] == 20 and found["regret"] < 0.5
    rows = [json.loads(line) for line in learn.read_text().splitlines()]
    assert rows and all(0.0 <= row["reward"] <= 1.0 for row in rows if row["outcome"]["status"] == "ok")
    assert main([*words, "--propose", "llm", "--llm-url", RECORDED, "--llm-model", "m"]) == 2
    assert "--propose llm rewrites a source, and measures it; name the source in --launch" in capsys.readouterr().err
    (tmp_path / "kernel.cu").write_text(SOURCE)
    launch = {"kernel": "scale", "problem_size": [8], "arguments": [], "source": "kernel.cu"}
    (tmp_path / "launch.json").write_text(json.dumps(launch))
    measure = ["--propose", "evolution", "--measure", "cupy", "--launch", str(tmp_path / "launch.json")]
    assert main([*words, *measure]) == 2
    assert "name the right result as expected in --launch" in capsys.readouterr().err
