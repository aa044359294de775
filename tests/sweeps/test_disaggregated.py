"""Disaggregated serving from flags to tables: what is given, what it adds up to, and the same in a sweep."""

from __future__ import annotations

import pytest

from kernelsight.errors import InvalidInput, UnknownName
from kernelsight.scenario.scenario_rows import deployment_row, normalise, prefill_row, scenario_row
from kernelsight.session import Session
from tests.asked import give_plan

from .conftest import LOAD, SMALL, rows_of

APART = {"prefill_replicas": 2, "prefill_tensor_parallel_size": 2, "decode_replicas": 3}
GRID = [
    *rows_of(
        max_concurrency=[1, 8],
        prefill_replicas=[1, 2],
        prefill_tensor_parallel_size=[1, 2],
        router=[None, "least_loaded"],
    ),
    *rows_of(max_concurrency=[8], **{name: [value] for name, value in APART.items()}, data_parallel_size=[2]),
    *rows_of(request_rate=[40.0], prefill_replicas=[1], kv_transfer_fabric=["pcie4_x16"]),
    *rows_of(max_concurrency=[1, 8]),
]


@pytest.fixture(scope="module")
def served(session: Session) -> Session:
    with session.fork() as fork:
        give_plan(fork, GRID)
        yield fork


def test_one_deployment_for_each_side_and_the_same_name_for_the_same_scenario() -> None:
    flags = normalise({**SMALL, **LOAD, **APART, "max_concurrency": 8})
    decode, prefill = deployment_row(flags), prefill_row(flags)
    assert (decode["tp"], prefill["tp"]) == (1, 2)
    scenario = scenario_row(flags, decode)
    assert (scenario["deployment_id"], scenario["prefill_deployment_id"]) == (
        decode["deployment_id"],
        prefill["deployment_id"],
    )
    plain = normalise({**SMALL, **LOAD, "max_concurrency": 8})
    assert prefill_row(plain) is None
    names = {scenario_row({**flags, **more}, decode)["scenario_id"] for more in ({}, {"decode_replicas": 4})}
    assert len(names | {scenario_row(plain, decode)["scenario_id"]}) == 3


def test_experts_over_all_gpus_stay_over_all_gpus() -> None:
    flags = {"model": "gpt-oss-20b", "gpu": "l4", "tp": 2, "enable_expert_parallel": True, "prefill_replicas": 1}
    assert prefill_row(normalise(flags | {"prefill_tp": 4}))["ep"] == 4
    assert prefill_row(normalise(flags | {"prefill_tp": 4, "prefill_expert_parallel_size": 2}))["ep"] == 2


def test_words_for_what_does_not_go_together(session: Session) -> None:
    with pytest.raises(InvalidInput, match="prefill_tensor_parallel_size needs P/D disaggregation"):
        prefill_row(normalise({**SMALL, "prefill_tp": 2}))
    with pytest.raises(InvalidInput, match="decode_replicas needs P/D disaggregation"):
        prefill_row(normalise({**SMALL, "decode_replicas": 2}))
    with pytest.raises(InvalidInput, match="replicas cannot be used with prefill_replicas; set prefill_replicas and"):
        prefill_row(normalise({**SMALL, "replicas": 2, "prefill_replicas": 1}))
    with pytest.raises(InvalidInput, match="static scheduling cannot be used with prefill_replicas"):
        prefill_row(normalise({**SMALL, "scheduling": "static", "prefill_replicas": 1}))
    with pytest.raises(InvalidInput, match="prefill_replicas is 0; give a whole number from 1 to 1024"):
        normalise({"prefill_replicas": 0})
    with session.fork() as fork, pytest.raises(UnknownName, match="infiniband_ndr"):
        give_plan(fork, [{**SMALL, **LOAD, "prefill_replicas": 1, "kv_transfer_fabric": "infiniband_nrd"}])
    with session.fork() as fork, pytest.raises(UnknownName, match="h100_sxm"):
        give_plan(fork, [{**SMALL, **LOAD, "prefill_replicas": 1, "prefill_gpu": "h100_sxn"}])


def test_all_gpus_count_and_every_replica_has_its_deployment(served: Session) -> None:
    rows = served.query("""
        select gpus, totals.n, sizes from scenario_summary
        join (
          select scenario_id, count(*) as n, count(distinct deployment_id) as sizes from replica_totals group by all
        ) as totals using (scenario_id)
        join scenarios using (scenario_id) where decode_replicas = 3
    """).to_pylist()
    # 2 x tp 2 x dp 2 that compute prompts, 3 x dp 2 that decode
    assert rows == [{"gpus": 14, "n": 10, "sizes": 2}]


def test_inv_3_first_tokens_come_before_the_transfer_and_that_before_the_others(served: Session) -> None:
    wrong = served.query("""
        select * from request_events join scenarios using (scenario_id) where prefill_deployment_id is not null
        and not (sent_ns <= scheduled_ns and scheduled_ns < first_token_ns
                 and first_token_ns < kv_received_ns and kv_received_ns < finish_ns and prefill_replica < replica)
    """)
    assert wrong.num_rows == 0
    together = "select * from request_events join scenarios using (scenario_id) where prefill_deployment_id is null"
    assert served.query(together)["kv_received_ns"].null_count == 2 * LOAD["num_prompts"]


def test_the_transfer_takes_the_bytes_of_the_prompt_over_the_port(served: Session) -> None:
    # one request at a time, tensor-parallel size 1: nobody else is on the link
    rows = served.query("""
        select kv_transfer_ms, latency_us + prompt_tokens * full_token_bytes / (bytes_per_s * efficiency) * 1e6 as us
        from request_metrics join scenarios using (scenario_id)
        join deployments on deployments.deployment_id = prefill_deployment_id
        join kv_layout on kv_layout.deployment_id = prefill_deployment_id
        join fabrics on fabric = 'infiniband_ndr'
        where max_concurrency = 1 and deployments.tp = 1
    """).to_pylist()
    assert len(rows) == 4 * LOAD["num_prompts"]
    for row in rows:
        assert row["kv_transfer_ms"] * 1e3 == pytest.approx(row["us"], abs=2e-3)


def test_inv_9_the_breakdown_adds_up_over_both_sides(served: Session) -> None:
    spent = served.query("""
        with broken as (select scenario_id, sum(total_us) as kernels_us from kernel_breakdown group by all),
        clock as (select scenario_id, sum(gpu_ns) / 1e3 as steps_us,
                         sum(last_ns - first_ns - host_ns - idle_ns) / 1e3 as busy_us from replica_totals group by all)
        select * from broken full join clock using (scenario_id)
    """).to_pylist()
    assert len(spent) == len(GRID)
    for row in spent:
        assert row["kernels_us"] == pytest.approx(row["steps_us"], rel=1e-6)
        assert row["busy_us"] == pytest.approx(row["steps_us"], rel=1e-6)


def test_prompts_are_computed_by_one_side_only(served: Session) -> None:
    rows = served.query("""
        select totals.deployment_id = scenarios.deployment_id as decodes, sum(scheduled_prompt_tokens) as prompts
        from replica_totals as totals join scenarios using (scenario_id)
        where prefill_deployment_id <> scenarios.deployment_id group by all order by all
    """).to_pylist()
    assert rows[0]["prompts"] > 0 and rows[1] == {"decodes": True, "prompts": 0}
