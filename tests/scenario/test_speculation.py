"""Speculative decoding from flags to tables: who proposes, what it holds and costs, and the same in a sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelsight.catalog.tables import facts
from kernelsight.errors import ContractBroken, InvalidInput
from kernelsight.scenario.flags import FLAGS
from kernelsight.scenario.scenario_rows import deployment_rows, normalise
from kernelsight.session import Session
from tests.asked import give_plan, sweep
from tests.sweeps.conftest import LOAD, SMALL, rows_of

BIG = {"model": "qwen3-4b", "speculative_model": "qwen3-0.6b"}
DRAFTS = {"num_speculative_tokens": 3, "draft_acceptance_rate": 0.7}
GRID = [
    *rows_of(max_concurrency=[1, 8], **{name: [value] for name, value in DRAFTS.items()}, speculative_method=["ngram"]),
    *rows_of(
        max_concurrency=[8],
        num_speculative_tokens=[1, 4],
        draft_acceptance_rate=[0.0, 1.0],
        **{name: [value] for name, value in BIG.items()},
        pipeline_parallel_size=[1, 2],
    ),
    *rows_of(
        max_concurrency=[8],
        **{name: [value] for name, value in (DRAFTS | BIG).items()},
        prefill_replicas=[1],
        prefill_tensor_parallel_size=[2],
    ),
    *rows_of(max_concurrency=[1, 8], data_parallel_size=[2]),
]
BY_FLAGS = """
    select * from scenario_summary
    join scenarios using (scenario_id)
    join deployments as d on d.deployment_id = scenarios.deployment_id
"""


def row_of(**flags: Any) -> dict[str, Any]:
    return {**SMALL, **LOAD, "max_concurrency": 4, **flags}


@pytest.fixture(scope="module")
def served(session: Session) -> Session:
    with session.fork() as fork:
        give_plan(fork, GRID)
        yield fork


def test_the_model_that_proposes_is_a_deployment_of_its_own() -> None:
    stated = {**DRAFTS, **BIG, "quantization": "fp8", "tp": 2, "pp": 2, "kv_cache_tokens": 10_000}
    target, draft = deployment_rows(normalise(row_of(**stated)))
    assert target["draft_deployment_id"] == draft["deployment_id"]
    assert (target["speculative_method"], target["num_speculative_tokens"]) == ("draft_model", 3)
    # on the same GPUs, in its own formats, all of it in the last pipeline stage
    assert (draft["model"], draft["tp"], draft["pp"]) == ("qwen3-0.6b", 2, 1)
    assert not {"quantization", "kv_cache_tokens", "num_speculative_tokens"} & draft.keys()
    # who computes prompts for others proposes too
    rows = deployment_rows(normalise(row_of(**stated, prefill_replicas=1, prefill_tp=4)))
    assert [row["tp"] for row in rows] == [2, 4, 2, 4]
    assert len(deployment_rows(normalise(row_of(**DRAFTS, speculative_method="ngram")))) == 1


def test_words_for_what_does_not_go_together(session: Session) -> None:
    for flags, words in (
        (
            {"draft_acceptance_rate": 0.5},
            "draft_acceptance_rate needs speculative decoding, but num_speculative_tokens",
        ),
        ({**DRAFTS, "speculative_method": "draft_model"}, "speculative_model is unset"),
        ({**DRAFTS, "speculative_method": "ngram", "speculative_model": "qwen3-0.6b"}, "speculative_method is ngram"),
        ({**DRAFTS, "draft_acceptance_rate": 1.5}, "draft_acceptance_rate is 1.5; give a number from 0 to 1"),
        ({**DRAFTS, "num_speculative_tokens": 65}, "give a whole number from 0 to 64"),
        ({"num_speculative_tokens": 2, "draft_acceptance": "0.8,0.9"}, "draft_acceptance is '0.8,0.9'; give the share"),
        ({**DRAFTS, "draft_acceptance": "0.8,0.7"}, "draft_acceptance and draft_acceptance_rate both say"),
        ({**DRAFTS, "speculative_num_steps": 5, "speculative_eagle_topk": 4}, "a tree of 3 draft tokens by mtp"),
    ):
        with pytest.raises(InvalidInput, match=words):
            normalise(flags)
    with session.fork() as fork, pytest.raises(InvalidInput, match=r"qwen3-0\.6b has no multi-token-prediction layer"):
        give_plan(fork, [row_of(**DRAFTS)])
    row = {"deployment_id": "d", "engine": "vllm", "model": "qwen3-0.6b", "gpu": "l4", "draft_acceptance_rate": 1.5}
    row |= dict.fromkeys(("tp", "pp", "dp", "ep"), 1)
    with session.fork() as fork, pytest.raises(ContractBroken, match="draft_acceptance_rate"):
        fork.give("deployments", [row])


def test_multi_token_prediction_is_a_layer_of_the_checkpoint(session: Session) -> None:
    # README_WEIGHTS of deepseek-ai/DeepSeek-V3: 11.5 billion parameters of its own, embedding and head shared
    flags = {"model": "deepseek-v3", "gpu": "b200_sxm", "tp": 8, **LOAD, "max_concurrency": 8}
    with session.fork() as fork:
        others = [{"tp": 1}, {"model": "glm-5-nvfp4"}]
        give_plan(fork, [flags, flags | DRAFTS, *(flags | DRAFTS | more for more in others)])
        [counted] = fork.query("""
            select sum(parameters)::double as parameters from layer_weights join deployments using (deployment_id)
            where model = 'deepseek-v3.mtp' and tp = 1
        """).to_pylist()
        assert counted["parameters"] == pytest.approx(11.5e9, rel=0.01)
        joined = 2 * 7168**2
        plans = {
            row["drafts"]: row
            for row in fork.query(
                "select num_speculative_tokens as drafts, weights_bytes, kv_bytes_per_token from memory_plan "
                "join deployments using (deployment_id) where model = 'deepseek-v3' and tp = 8"
            ).to_pylist()
        }
        # fp8, an eighth of it a GPU; the projection in 16 bit and whole; one layer of 576 values more in the cache
        extra = plans[3]["weights_bytes"] - plans[None]["weights_bytes"]
        assert extra == pytest.approx((counted["parameters"] - joined) / 8 + 2 * joined, rel=0.02)
        assert plans[3]["kv_bytes_per_token"] / plans[None]["kv_bytes_per_token"] == pytest.approx(62 / 61)
        # verification: heads of four tokens over one reading of the cache, 1/8 of 128 heads a GPU
        heads = fork.query(
            "select distinct model, heads from mla_decode_calls join deployments using (deployment_id) where tp = 8"
        )
        assert {tuple(row.values()) for row in heads.to_pylist()} == {
            ("deepseek-v3", 16),
            ("deepseek-v3", 64),
            ("deepseek-v3.mtp", 16),
        }
        # what the checkpoint leaves in 16 bit is in 16 bit
        formats = fork.query("select model, expert_format from models where model like 'glm-5-nvfp4%'").to_pylist()
        assert {row["model"]: row["expert_format"] for row in formats} == {
            "glm-5-nvfp4": "nvfp4",
            "glm-5-nvfp4.mtp": "bf16",
        }


EAGLE3 = {
    "architectures": ["Eagle3Speculator"],
    "draft_vocab_size": 32000,
    "torch_dtype": "bfloat16",
    "transformer_layer_config": {
        **{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 1, "vocab_size": 128256},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 2048},
    },
}


def test_a_head_is_read_from_its_config_and_estimated_without_one(session: Session, tmp_path: Path) -> None:
    config = tmp_path / "head" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(EAGLE3))
    flags = {**LOAD, "max_concurrency": 4, "gpu": "h100_sxm", "model": "llama-3.1-8b", "num_speculative_tokens": 3}
    known = flags | {"speculative_method": "eagle3", "speculative_model": str(config)}
    named = flags | {"speculative_method": "eagle3", "speculative_model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"}
    weights = """
        select weights.name, n, k, copies, count from layer_weights as weights join deployments using (deployment_id)
        where draft_deployment_id is null or name = 'draft_state_proj' order by all
    """
    found = []
    for stated in (known, named):
        with session.fork() as fork:
            give_plan(fork, [stated])
            found.append(fork.query(weights).to_pylist())
            sentences = " ".join(row["sentence"] for row in fork.table("assumptions").to_pylist())
            assert ("sizes of the eagle3 head yuhuili/EAGLE3" in sentences) == (stated is named)
    # of Llama 3.1 8B the estimate is the published head: attention over two states, three of the model's fused to one
    assert found[0] == found[1]
    sizes = {row["name"]: (row["n"], row["k"], row["copies"]) for row in found[0]}
    assert sizes["qkv_proj"] == (6144, 8192, 1) and sizes["draft_state_proj"] == (4096, 3 * 4096, 1)
    assert sizes["lm_head"] == (32000, 4096, 1) and sizes["embedding"][2] == 0
    with (
        session.fork() as fork,
        pytest.raises(InvalidInput, match=r"qwen3-0\.6b is a whole model, not a head of eagle3"),
    ):
        give_plan(fork, [flags | {"speculative_method": "eagle3", "speculative_model": "qwen3-0.6b"}])


def test_shares_by_position_trees_and_blocks(session: Session) -> None:
    load = {**SMALL, "max_concurrency": 1, "num_prompts": 4, "input_len": 30, "output_len": 200}
    by_position = {"speculative_method": "ngram", "num_speculative_tokens": 3, "draft_acceptance": "0.9,0.6,0.3"}
    tree = {"speculative_method": "eagle3", "num_speculative_tokens": 12, "draft_acceptance_rate": 0.7}
    deep = tree | {"speculative_num_steps": 3, "speculative_eagle_topk": 4}
    block = {"speculative_method": "dflash", "num_speculative_tokens": 7, "draft_acceptance_rate": 0.7}
    asked = ({}, by_position, tree, deep, block)
    rows = [session.what_if([load | more]).summary.to_pylist()[0] for more in asked]
    plain, positions, chain, branched, blocks = rows
    steps = positions["draft_tokens"] / 3
    assert positions["accepted_draft_tokens"] / steps == pytest.approx(1.8, abs=0.15)
    # three passes instead of twelve, and at most three accepted; seven drafts in one pass
    assert branched["accepted_draft_tokens"] < chain["accepted_draft_tokens"]
    assert blocks["tpot_mean_ms"] < branched["tpot_mean_ms"] < chain["tpot_mean_ms"]
    assert plain["draft_tokens"] is None


def test_drafts_that_do_not_pay_are_advised_off(session: Session) -> None:
    # one token in five accepted by a model a sixth as large: each step loses more than it wins
    flags = {
        "model": "qwen3-4b",
        "gpu": "h100_sxm",
        "max_concurrency": 4,
        "num_prompts": 8,
        "input_len": 30,
        "output_len": 60,
    }
    flags |= {"speculative_model": "qwen3-0.6b", "num_speculative_tokens": 4, "draft_acceptance_rate": 0.2}
    advice = {(row["setting"], row["value"]) for row in session.simulate(**flags).advice().to_pylist()}
    assert ("num_speculative_tokens", "0") in advice
    assert normalise(flags | {"num_speculative_tokens": 0}).keys() == flags.keys() - {
        *("speculative_model", "num_speculative_tokens", "draft_acceptance_rate")
    }


def test_an_assumed_acceptance_widens_the_interval(session: Session) -> None:
    load = {**SMALL, "max_concurrency": 1, "num_prompts": 4, "input_len": 30, "output_len": 100}
    load |= {"speculative_method": "ngram", "num_speculative_tokens": 3}
    rates = facts("draft_acceptance_rates").to_pylist()
    [rate] = [row["acceptance_rate"] for row in rates if row["method"] == "ngram"]
    ends = []
    for more in ({}, {"draft_acceptance_rate": rate}):
        told = session.what_if([load | more]).sql("select * from scenario_intervals where metric = 'tpot_mean_ms'")
        [row] = told.to_arrow_table().to_pylist()
        ends.append((row["low"], row["high"]))
    (assumed_low, assumed_high), (low, high) = ends
    assert assumed_low < low < high < assumed_high


def test_all_or_none_accepted_is_so_many_steps(served: Session) -> None:
    found = served.query(
        f"{BY_FLAGS} where draft_acceptance_rate in (0, 1) order by num_speculative_tokens"
    ).to_pylist()
    assert len(found) == 8
    for row in found:
        proposed, accepted = row["draft_tokens"], row["accepted_draft_tokens"]
        assert accepted == (proposed if row["draft_acceptance_rate"] else 0)
    tpot = {
        (row["num_speculative_tokens"], row["draft_acceptance_rate"], row["pp"]): row["tpot_mean_ms"] for row in found
    }
    for stages in (1, 2):
        assert tpot[4, 1.0, stages] < tpot[1, 1.0, stages] < tpot[1, 0.0, stages] < tpot[4, 0.0, stages]


def test_inv_9_the_breakdown_adds_up_with_the_model_that_proposes(served: Session) -> None:
    spent = served.query("""
        with broken as (select scenario_id, sum(total_us) as kernels_us from kernel_breakdown group by all),
        clock as (select scenario_id, sum(gpu_ns) / 1e3 as steps_us from replica_totals group by all)
        select * from broken full join clock using (scenario_id)
    """).to_pylist()
    assert len(spent) == len(GRID)
    for row in spent:
        assert row["kernels_us"] == pytest.approx(row["steps_us"], rel=1e-6)
    own = served.query("""
        select count(distinct scenario_id) as n from step_cost_uses join deployments using (deployment_id)
        where model = 'qwen3-0.6b' and scenario_id in (select scenario_id from scenarios join deployments
        using (deployment_id) where model = 'qwen3-4b')
    """).to_pylist()
    assert own == [{"n": 9}]


def test_a_sweep_gives_what_the_session_gives(session: Session, served: Session) -> None:
    told = {row["scenario_id"]: row for row in sweep(session, GRID).to_pylist()}
    expected = served.table("scenario_summary").to_pylist()
    assert len(expected) == len(told) == len(GRID)
    assert {row["speculative_model"] for row in told.values()} == {None, "qwen3-0.6b"}
    for row in expected:
        found = told[row["scenario_id"]]
        assert {name: found[name] for name in row} == row


def test_a_draft_that_cannot_be_split_is_a_status(session: Session) -> None:
    with session.fork() as fork:
        give_plan(fork, [row_of(model="qwen3-4b", speculative_model="qwen2.5-0.5b", tp=4, **DRAFTS)])
        [row] = fork.table("scenario_summary").to_pylist()
        assert "qwen2.5-0.5b has 14 attention heads, not divisible by tensor-parallel size 4" in row["status"]


def attentions(answer: dict[str, Any]) -> float:
    """Launches of attention a step that decodes; several queries of a sequence may run as a prompt's do."""
    decoding = [row for row in answer["breakdown"] if row["phase"] == "decode" and "_attention" in row["family"]]
    return sum(row["calls"] for row in decoding) / answer["steps"]


def test_the_command_tells_what_was_accepted(command) -> None:
    words = "simulate --model qwen3-0.6b --gpu l4 --max-concurrency 1 --num-prompts 2 --isl 30 --osl 10"
    drafts = "--num-speculative-tokens 2 --draft-acceptance-rate 1 --speculative-method ngram"
    status, out, _ = command(*words.split(), *drafts.split())
    # 9 tokens after the first, three a step
    assert status == 0 and "12 of 12: 3 tokens per step" in out
    assert "num_speculative_tokens 2: each draft token is accepted with probability 1.00" in out
    drafts = "--num-speculative-tokens 2 --draft-acceptance-rate 0 --speculative-model qwen2.5-0.5b"
    status, out, err = command(*words.split(), *drafts.split(), "--format", "json")
    assert status == 0, err
    alone = json.loads(command(*words.split(), "--format", "json")[1])
    # two passes of 24 layers beside the model's 28, in every step
    assert attentions(json.loads(out)) / attentions(alone) == pytest.approx((28 + 2 * 24) / 28, rel=0.1)


def test_an_acceptance_rate_that_is_not_stated_is_assumed_and_said(session: Session) -> None:
    cases = (
        ({"speculative_method": "ngram"}, 0.42, "PLD keeps 1.73 tokens a step"),
        ({"speculative_model": "qwen2.5-0.5b"}, 0.56, "SpS keeps 2.28 tokens a step"),
    )
    load = {"max_concurrency": 1, "num_prompts": 2, "input_len": 30, "output_len": 10, "gpu": "l4"}
    load |= {"model": "qwen3-0.6b", "num_speculative_tokens": 2}
    found = session.what_if(
        [load | flags | more for flags, rate, _ in cases for more in ({}, {"draft_acceptance_rate": rate})]
    )
    sentences = dict(
        found.sql(
            "select scenario_id, string_agg(sentence, ' | ') from assumptions join scenarios using (deployment_id) "
            "where contains(sentence, 'each draft token') group by all"
        ).fetchall()
    )
    rows = {row["scenario_id"]: row for row in found.summary.to_pylist()}
    names = [row["scenario_id"] for row in found._plan.scenarios]
    for assumed, stated, (_, rate, source) in zip(names[::2], names[1::2], cases, strict=True):
        said = sentences[assumed]
        assert f"probability {rate:.2f}" in said and "no draft_acceptance_rate is stated" in said and source in said
        assert "is stated" not in sentences[stated]
        times = [{name: value for name, value in rows[one].items() if "tpot" in name} for one in (assumed, stated)]
        assert times[0] == times[1] and times[0]["tpot_mean_ms"] > 0.0


def test_every_method_has_a_rate_with_its_source() -> None:
    rows = facts("draft_acceptance_rates").to_pylist()
    assert {row["method"] for row in rows} == set(FLAGS["speculative_method"].choices)
    assert all(0 < row["acceptance_rate"] < 1 and row["source"] for row in rows)
