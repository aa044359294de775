"""What a run reports against what happened: percentiles by numpy, goodput by hand, breakdown and cache by steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kernelsight.serving.runs.statistics_tables import gap_percentiles
from kernelsight.session import Session, connect
from tests.invariants.test_invariants import scenarios, serving

OBJECTIVES = {"goodput_ttft_ms": 60.0, "goodput_tpot_ms": 12.0, "goodput_e2el_ms": 700.0}
LAYERS = {"dense": 32, "experts": 48, "latent": 61, "windows": 24, "stages": 32}
SHARES = {"p50": 50, "p90": 90, "p99": 99}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Chunked prompts everywhere; dense and windowed attention, MLA, experts, two replicas, prefill-first and mixed."""
    with serving([row | OBJECTIVES for row in scenarios()]) as served:
        yield served


def columns(session: Session, query: str) -> dict[str, np.ndarray]:
    """Return the columns of a query; a null is NaN."""
    return {name: np.array(values, dtype=float) for name, values in session.query(query).to_pydict().items()}


def test_percentiles_are_those_of_numpy(session: Session) -> None:
    requests = session.table("request_metrics")
    for row in session.table("scenario_summary").to_pylist():
        own = requests.filter(pc.equal(requests["scenario_id"], row["scenario_id"]))
        for metric in ("ttft", "tpot", "e2e", "queue"):
            values = own[f"{metric}_ms"].drop_null().to_numpy()
            assert row[f"{metric}_mean_ms"] == pytest.approx(values.mean(), rel=1e-9, abs=1e-6)
            for word, share in SHARES.items():
                wanted = np.percentile(values, share, method="linear")
                assert row[f"{metric}_{word}_ms"] == pytest.approx(wanted, rel=1e-9), (row["scenario_id"], metric, word)


@pytest.mark.parametrize("count", [1, 2, 37, 5000])
def test_percentiles_of_gaps_are_those_of_numpy_within_a_bin(count: int) -> None:
    gaps_us = np.random.default_rng(count).lognormal(9.0, 0.7, count)
    bins, counts = np.unique((np.log(gaps_us) / np.log(1.002)).astype(np.int64), return_counts=True)
    histogram = pa.table({"scenario_id": ["s"] * bins.size, "bin": bins, "gaps": counts})
    found = {row["percentile"]: row["itl_ms"] for row in gap_percentiles(histogram).to_pylist()}
    assert set(found) == set(SHARES.values())
    for share, value in found.items():
        assert value == pytest.approx(np.percentile(gaps_us, share) / 1e3, rel=1.01e-3)


def test_the_duration_ends_with_the_last_token_whichever_request_has_it(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0.0,40,200\n0.01,40,2\n", encoding="utf-8")
    with connect() as session:
        run = session.simulate(model="qwen3-0.6b", gpu="l4", trace=str(trace))
        summary, events = run.summary, run.table("request_events").to_pylist()
    assert events[0]["finish_ns"] > events[1]["finish_ns"]
    assert summary["duration_s"] == pytest.approx((events[0]["finish_ns"] - events[0]["sent_ns"]) / 1e9, rel=1e-9)


def test_goodput_counts_requests_within_every_objective(session: Session) -> None:
    some, all_of_them = 0, 0
    for row in session.table("scenario_summary").to_pylist():
        named = f"scenario_id = '{row['scenario_id']}' and status = 'finished' and not warmup"
        moments = "sent_ns, first_token_ns, finish_ns, request_events.output_tokens as output_tokens"
        of = columns(session, f"select {moments} from request_events where {named}")
        ttft, e2e = (of["first_token_ns"] - of["sent_ns"]) / 1e6, (of["finish_ns"] - of["sent_ns"]) / 1e6
        tpot = (of["finish_ns"] - of["first_token_ns"]) / 1e6 / (of["output_tokens"] - 1)
        good = ((ttft <= 60.0) & (tpot <= 12.0) & (e2e <= 700.0)).sum()
        assert row["goodput"] == pytest.approx(good / row["duration_s"])
        some, all_of_them = some + good, all_of_them + ttft.size
    # the objectives divide the requests: neither all nor none keep them
    assert 0 < some < all_of_them


BY_PHASE = """
with kept as (
  select
    scenario_id,
    case when decode_tokens = 0 then 'prefill' when prefill_tokens = 0 then 'decode' else 'mixed' end as phase,
    count(*) as steps
  from steps group by all
),
called as (
  -- decodes that run in the kernel of prompts are decodes
  select scenario_id, phase, if(name = 'decode_as_prefill', 'decode_attention', name) as name, sum(calls) as calls
  from kernel_breakdown group by all
)
select kept.*, called.name, called.calls from kept join called using (scenario_id, phase)
"""


def test_the_breakdown_calls_each_kernel_as_often_as_steps_did(session: Session) -> None:
    phases = set()
    for row in session.query(BY_PHASE).to_pylist():
        deployment = row["scenario_id"].partition(" ")[0]
        steps, layers = row["steps"], LAYERS[deployment]
        phases.add((deployment, row["phase"]))
        wanted = {
            "embedding": steps,
            "o_proj": steps * layers,
            "residual_norm": 2 * steps * layers,
            # three layers of DeepSeek-V3 have no experts
            "experts": steps * (58 if deployment == "latent" else layers),
        }
        attention = steps * layers
        wanted |= dict.fromkeys(("decode_attention", "mla_decode"), attention if row["phase"] != "prefill" else 0)
        # chunks of one step share a launch
        wanted |= dict.fromkeys(("prefill_attention", "mla_prefill"), attention if row["phase"] != "decode" else 0)
        if row["name"] in wanted:
            assert row["calls"] == pytest.approx(wanted[row["name"]], rel=1e-6), row
        if row["name"] == "lm_head":
            # a step that ends no prompt samples nothing
            assert row["calls"] <= steps * (1 + 1e-9) and (row["phase"] == "prefill" or row["calls"] == steps)
    assert {phase for _, phase in phases} == {"prefill", "decode", "mixed"}
    assert {deployment for deployment, _ in phases} == set(LAYERS)


IN_WINDOWS = """
select scenario_id, replica, sum(steps) as steps, sum(prefill_tokens) as prefill_tokens,
  sum(decode_tokens) as decode_tokens, sum(cached_tokens) as cached_tokens, sum(looked_up_tokens) as looked_up_tokens,
  sum(preemptions) as preemptions, max(kv_blocks_used_max) as most, max(running_max) as batch,
  sum(kv_blocks_used_mean * (end_s - start_s)) as kv_block_s, sum(running_mean * (end_s - start_s)) as running_s,
  sum(busy_share * (end_s - start_s)) as busy_s
from cache_over_time group by all order by all
"""
IN_STEPS = """
with apart as (
  -- steps of pipeline stages overlap: what a step says holds until the next one begins
  select * replace (
    least(end_ns, lead(start_ns, 1, end_ns) over (partition by scenario_id, replica order by step)) as end_ns
  )
  from steps
)
select scenario_id, replica, count(*) as steps, sum(prefill_tokens) as prefill_tokens,
  sum(decode_tokens) as decode_tokens, sum(cached_tokens) as cached_tokens, sum(looked_up_tokens) as looked_up_tokens,
  sum(preemptions) as preemptions, max(kv_blocks_used) as most, max(running) as batch,
  sum(kv_blocks_used * (end_ns - start_ns) / 1e9) as kv_block_s, sum(running * (end_ns - start_ns) / 1e9) as running_s,
  sum((end_ns - start_ns) / 1e9) as busy_s
from apart group by all order by all
"""


def test_cache_over_time_adds_up_to_the_steps(session: Session) -> None:
    steps = session.query(IN_STEPS).to_pylist()
    windows = {(row["scenario_id"], row["replica"]): row for row in session.query(IN_WINDOWS).to_pylist()}
    # one deployment has two replicas
    assert len(windows) == len(steps) == 14
    for row in steps:
        found = windows[row["scenario_id"], row["replica"]]
        assert found == {
            name: pytest.approx(value, rel=1e-6) if isinstance(value, float) else value for name, value in row.items()
        }
    counted = session.query("select scenario_id, sum(preemptions) as n from cache_over_time group by all").to_pylist()
    reported = {row["scenario_id"]: row["preemptions"] for row in session.table("scenario_summary").to_pylist()}
    assert {row["scenario_id"]: row["n"] for row in counted} == reported and sum(reported.values()) > 0


def test_time_lost_to_preemption_is_inside_prefill_and_decode(session: Session) -> None:
    rows = session.query("select * from request_metrics order by scenario_id, request_id").to_pylist()
    for row in rows:
        lost = row["requeue_ms"] + row["recompute_ms"]
        assert (lost > 0) == (row["preemptions"] > 0)
        assert lost <= row["prefill_ms"] + row["decode_ms"] + 1e-5
    assert any(row["preemptions"] for row in rows)
