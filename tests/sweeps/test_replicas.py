"""Replicas: copies of a whole deployment, behind one router."""

from __future__ import annotations

import pytest

from kernelsight.errors import InvalidInput
from kernelsight.session import Session

from .conftest import SMALL

LOAD = {"num_prompts": 40, "input_len": 200, "output_len": 12, "range_ratio": 0.5}
MOE = {"model": "qwen3-30b-a3b", "gpu": "h100_sxm"}
TIMES = ("ttft_ms", "tpot_ms", "e2e_ms", "steps", "gpus", "output_throughput", "kv_cache_tokens")


@pytest.mark.parametrize("how", [{"request_rate": 30.0}, {"max_concurrency": 9}, {"request_rate": 30.0, "router": "least_loaded"}])  # fmt: skip # noqa: E501
def test_replicas_of_a_dense_model_are_its_data_parallel_replicas(session: Session, how) -> None:
    ranks = session.simulate(**SMALL, **LOAD, **how, data_parallel_size=3).summary
    copies = session.simulate(**SMALL, **LOAD, **how, replicas=3).summary
    assert {name: copies[name] for name in TIMES} == {name: ranks[name] for name in TIMES}
    assert copies["replicas"] == copies["gpus"] == 3 and copies["settings"]["dp"] == 1
    assert "the 3 replicas step independently" in copies["assumed"]


def test_replicas_of_experts_share_nothing(session: Session) -> None:
    one = session.simulate(**MOE, **LOAD, max_concurrency=4).summary
    two = session.simulate(**MOE, **LOAD, max_concurrency=8, replicas=2)
    ranks = session.simulate(**MOE, **LOAD, max_concurrency=8, data_parallel_size=2)
    assert two.table("deployment_settings")["lock_step"].to_pylist() == [False]
    assert ranks.table("deployment_settings")["lock_step"].to_pylist() == [True]
    assert two.summary["gpus"] == 2 and two.summary["memory"] == one["memory"]
    assert two.summary["tpot_ms"]["mean"] == pytest.approx(one["tpot_ms"]["mean"], rel=0.1)
    # two replicas of two ranks each: as many engines as there are ranks
    four = session.simulate(**MOE, **LOAD, max_concurrency=16, data_parallel_size=2, replicas=2)
    assert four.table("replica_totals").num_rows == 4 and four.summary["completed"] == LOAD["num_prompts"]


def test_replicas_in_a_grid(session: Session) -> None:
    found = session.what_if({**SMALL, **LOAD, "request_rate": 30.0, "replicas": [1, 2, 4]}).summary
    rows = {row["replicas"]: row for row in found.to_pylist()}
    assert {count: row["gpus"] for count, row in rows.items()} == {1: 1, 2: 2, 4: 4}
    assert rows[4]["e2e_mean_ms"] < rows[1]["e2e_mean_ms"]


def test_advice_doubles_the_replicas_that_are_stated(session: Session) -> None:
    run = session.simulate(**SMALL | {"max_num_seqs": 4}, **LOAD, max_concurrency=64, replicas=2)
    changes = {(row["setting"], row["stated"], row["value"]) for row in run.advice().to_pylist()}
    assert ("replicas", "2", "4") in changes and not [one for one in changes if one[0] == "data_parallel_size"]


def test_sizing_finds_how_many_itself(session: Session) -> None:
    question = {"gpus": ["l4"], "slo": {"ttft_p95_ms": 400.0}, "rate": 2.0, "max_gpus": 1, "tune": False}
    flags = {"model": "qwen3-0.6b", "input_len": 64, "output_len": 8}
    with pytest.raises(InvalidInput, match="size finds the number of replicas; remove replicas"):
        session.size(**flags, replicas=2, **question)
    line = """
    spec:
      replicas: 5
      containers: [{image: vllm/vllm-openai, args: [--model, Qwen/Qwen3-0.6B, --max-num-seqs, "32"]}]
    """
    found = session.size(launch=line, input_len=64, output_len=8, **question)
    assert found.chosen["gpus"] == found.chosen["instances"] == 1 and "replicas" not in found.chosen
    assert found.launch == ["vllm serve Qwen/Qwen3-0.6B --max-num-seqs 32"]
