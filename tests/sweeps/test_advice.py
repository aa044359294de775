"""What one change of a setting brings: simulated like the scenario itself, and said only where it helps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kernelsight.errors import InvalidInput
from kernelsight.scenario.stated_flags import object_text
from kernelsight.session import Session, connect
from kernelsight.sweeps.runs import Run
from tests.asked import give_plan, summaries

FLAGS = {"model": "qwen3-0.6b", "gpu": "l4", "num_prompts": 64, "input_len": 64, "output_len": 32}
SHORT = {**FLAGS, "max_concurrency": 32, "max_num_seqs": 4}


@pytest.fixture(scope="module")
def advised() -> Iterator[Run]:
    """A run that was advised."""
    with connect() as session:
        run = session.simulate(**SHORT)
        run.advice()
        yield run


def advice_of(session: Session, rows: Sequence[dict[str, Any]]) -> list[pa.Table]:
    """Return the advice on each of several scenarios, asked in one call."""
    names = give_plan(session, rows)
    asked = [{"scenario_id": name, "flags": object_text(row)} for name, row in zip(names, rows, strict=True)]
    session.give("advice_questions", asked)
    found = session.table("setting_advice")
    return [found.filter(pc.equal(found["scenario_id"], name)) for name in names]


def test_a_change_brings_what_its_own_simulation_says(advised):
    rows = advised.table("setting_advice").to_pylist()
    best = rows[0]
    assert (best["setting"], best["stated"]) == ("max_num_seqs", "4")
    with connect() as session:
        (changed,) = summaries(session, [SHORT | {"max_num_seqs": int(best["value"])}])
    assert best["ttft_p99_ms_after"] == changed["ttft_p99_ms"]
    assert best["e2e_gain"] == pytest.approx(1 - changed["e2e_mean_ms"] / best["e2e_mean_ms_before"])
    assert all(row["most_gain"] >= 0.01 for row in rows)
    # what serves each request longer is no help, whatever a GPU serves
    assert all(row["e2e_gain"] >= -0.01 for row in rows)
    assert {row["setting"] for row in rows if row["changes_numerics"]} <= {"quantization", "kv_cache_dtype"}


def test_a_free_change_that_helps_a_tail_alone_comes_before_more_gpus():
    # seats are short for seconds: mean E2E hardly sees it, TTFT p99 does
    load = FLAGS | {"num_prompts": 400, "input_len": 256, "output_len": 128, "range_ratio": 0.5, "request_rate": 12}
    with connect() as session:
        (found,) = advice_of(session, [load | {"max_num_seqs": 16}])
    first, *_, last = found.to_pylist()
    assert (first["setting"], first["value"], first["most_helped"]) == ("max_num_seqs", "32", "ttft_p99_ms")
    assert abs(first["e2e_gain"]) < 0.01 < 0.5 < first["most_gain"]
    assert first["most_gain"] == 1.0 - first["ttft_p99_ms_after"] / first["ttft_p99_ms_before"]
    costs = list(zip(found["gpus"].to_pylist(), found["changes_numerics"].to_pylist(), strict=True))
    assert costs == sorted(costs) and last["gpus"] == 2 and (1, True) in costs


@pytest.mark.whole
def test_graphs_that_end_below_the_batch_are_advised():
    # 60 requests run at once, and graphs hold 16
    load = FLAGS | {"num_prompts": 240, "max_concurrency": 60, "max_num_seqs": 64, "gpu": "h100_sxm"}
    with connect() as session:
        narrow, wide = advice_of(session, [load | {"max_cudagraph_capture_size": size} for size in (16, 64)])
    (row,) = [row for row in narrow.to_pylist() if row["setting"] == "max_cudagraph_capture_size"]
    assert (row["stated"], row["value"]) == ("16", "64") and row["e2e_gain"] > 0.1
    assert wide.num_rows and "max_cudagraph_capture_size" not in wide["setting"].to_pylist()


@pytest.mark.whole
def test_it_is_a_table_of_the_run_and_of_its_file(advised, tmp_path):
    assert advised.sql("select count(*) from setting_advice").fetchall()[0][0] > 0
    advised.save(tmp_path / "run.duckdb")
    with connect(tmp_path / "run.duckdb", read_only=True) as saved:
        assert saved.table("setting_advice").num_rows > 0
        assert saved.table("bottlenecks").num_rows > 0


def test_a_scenario_whose_flags_are_not_known_has_none():
    with connect() as session:
        found = session.what_if([FLAGS | {"max_concurrency": 2}])
        with pytest.raises(InvalidInput, match="simulate this scenario by itself"):
            found.scenario(found.scenarios[0]).advice()
