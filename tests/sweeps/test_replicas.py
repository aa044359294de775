"""Replicas: copies of a whole deployment, behind one router."""

from __future__ import annotations

import pytest

from kernelsight.session import Session
from tests.asked import give_plan, summaries

from .conftest import SMALL

LOAD = {"num_prompts": 40, "input_len": 200, "output_len": 12, "range_ratio": 0.5}
MOE = {"model": "qwen3-30b-a3b", "gpu": "h100_sxm"}
TIMES = ("ttft_", "tpot_", "e2e_", "steps", "gpus", "output_throughput", "kv_cache_tokens")
HOW = [{"request_rate": 30.0}, {"max_concurrency": 9}, {"request_rate": 30.0, "router": "least_loaded"}]


@pytest.mark.whole
def test_replicas_of_a_dense_model_are_its_data_parallel_replicas(session: Session) -> None:
    loads = [SMALL | LOAD | how for how in HOW]
    ranks = summaries(session, [load | {"data_parallel_size": 3} for load in loads])
    copies = summaries(session, [load | {"replicas": 3} for load in loads])
    names = [name for name in ranks[0] if name.startswith(TIMES)]
    assert len(names) > 12
    assert [[row[name] for name in names] for row in copies] == [[row[name] for name in names] for row in ranks]
    answer = session.simulate(**loads[0], replicas=3).summary
    assert answer["replicas"] == answer["gpus"] == 3 and answer["settings"]["dp"] == 1
    assert "the 3 replicas step independently" in answer["assumed"]


def test_replicas_of_experts_share_nothing(session: Session) -> None:
    many = [{}, {"replicas": 2}, {"data_parallel_size": 2}, {"data_parallel_size": 2, "replicas": 2}]
    rows = [MOE | LOAD | more | {"max_concurrency": users} for more, users in zip(many, (4, 8, 8, 16), strict=True)]
    with session.fork() as fork:
        names = give_plan(fork, rows)
        found = {row["scenario_id"]: row for row in fork.table("scenario_summary").to_pylist()}
        settings = {row["deployment_id"]: row for row in fork.table("deployment_settings").to_pylist()}
        engines = fork.table("replica_totals")["scenario_id"].to_pylist()
    one, two, ranks, four = (found[name] for name in names)
    assert two["deployment_id"] == one["deployment_id"] and two["gpus"] == 2
    assert not settings[two["deployment_id"]]["lock_step"] and settings[ranks["deployment_id"]]["lock_step"]
    assert two["tpot_mean_ms"] == pytest.approx(one["tpot_mean_ms"], rel=0.1)
    # two replicas of two ranks each: as many engines as there are ranks
    assert engines.count(four["scenario_id"]) == 4 and four["completed"] == LOAD["num_prompts"]


@pytest.mark.whole
def test_advice_doubles_the_replicas_that_are_stated(session: Session) -> None:
    run = session.simulate(**SMALL | {"max_num_seqs": 4}, **LOAD, max_concurrency=64, replicas=2)
    changes = {(row["setting"], row["stated"], row["value"]) for row in run.advice().to_pylist()}
    assert ("replicas", "2", "4") in changes and not [one for one in changes if one[0] == "data_parallel_size"]
