"""Each sentence that says why a deployment cannot run."""

from __future__ import annotations

import re

import pytest

from kernelsight.dataflow.locations import folder
from kernelsight.errors import InvalidInput
from kernelsight.scenario.refusals import ORDER, refuse_faults
from kernelsight.session import connect
from tests.asked import give_plan, refusals


def refused(*deployments):
    """What is refused of a session's deployments, as one sentence; "" if nothing is."""
    with connect() as session:
        session.give("deployments", list(deployments))
        try:
            refuse_faults(session)
        except InvalidInput as refusal:
            return str(refusal)
    return ""


# a deployment, and the sentence of each of its faults
REFUSED = refusals("lowering/test_deployment_faults::REFUSED")
RUNNING = [
    {"model": "qwen2.5-7b", "tp": 4},
    {"model": "phi-4", "tp": 5},
    {"model": "llama-3.1-8b", "tp": 16},
    {"model": "qwen2.5-0.5b", "gpu": "t4", "dtype": "fp16"},
    {"model": "qwen2.5-0.5b", "gpu": "v100_sxm", "dtype": "fp16"},
    {"model": "qwen3-32b", "max_model_len": 40960},
    {"model": "llama-3.1-8b", "pp": 32},
    {"model": "llama-3.1-8b", "max_num_batched_tokens": 256, "max_num_seqs": 256},
    {"model": "llama-3.1-8b", "max_num_batched_tokens": 128, "max_num_seqs": 256, "engine": "sglang"},
    {"model": "deepseek-v3", "tp": 8, "dp": 2, "ep": 16},
    {"model": "qwen3-next-80b-a3b", "tp": 4},
]


@pytest.fixture(scope="module")
def sentences_by_case(ask):
    """Sentences by fault of each deployment above, of one question about all of them."""
    stated = [deployment for deployment, _ in REFUSED] + RUNNING
    found = [{} for _ in stated]
    rows = ask("deployment_faults", *({**row, "deployment_id": str(case)} for case, row in enumerate(stated)))
    for row in rows:
        found[int(row["deployment_id"])][row["fault"]] = row["sentence"]
    return found


@pytest.mark.parametrize(
    "case",
    range(len(REFUSED)),
    ids=lambda case: "-".join(f"{name}={each}" for name, each in REFUSED[case][0].items())[:60],
)
def test_sentences(sentences_by_case, case):
    assert sentences_by_case[case] == REFUSED[case][1]


@pytest.mark.parametrize(
    "case", range(len(RUNNING)), ids=lambda case: "-".join(str(each) for each in RUNNING[case].values())
)
def test_deployments_that_run(sentences_by_case, case):
    assert sentences_by_case[len(REFUSED) + case] == {}


H100 = {"model": "llama-3.1-8b", "gpu": "h100_sxm"}
GPT = {"model": "gpt-oss-20b", "gpu": "h100_sxm"}
LARGE = {"model": "llama-3.1-70b", "gpu": "h100_sxm", "tp": 1}
TOO_LARGE = {"model": "deepseek-v3", "gpu": "h100_sxm"}
TOKENS = (16, 10_000, 10**12)


def held_share(plan, tokens):
    """The share of memory that is left for nothing but so many tokens of the cache."""
    held = plan["weights_bytes"] + plan["activations_bytes"] + plan["graphs_bytes"] + tokens * 131072
    return held / plan["memory_bytes"]


def block_units(plan):
    return plan["full_units"] + plan["window_units"]


def fitting_tokens(plan):
    return plan["memory_units"] // block_units(plan) * plan["block_size"]


def tokens_beyond(plan):
    """The first whole block that is more than 5 % beyond what fits."""
    return (int(plan["memory_units"] * 1.05) // block_units(plan) + 1) * plan["block_size"]


@pytest.fixture(scope="module")
def plan_of(ask_all):
    """Memory plans of the deployments above."""
    found = ask_all("memory_plan", [H100, GPT, LARGE])

    def plan(stated):
        [row] = found(**stated)
        return row

    return plan


@pytest.fixture(scope="module")
def fault_rows(ask_all, plan_of):
    """Faults of a deployment, of one question about all below."""
    nothing, one_block = (held_share(plan_of(H100), tokens) for tokens in (15, 17))
    stated = [
        *({"model": "qwen3-next-80b-a3b", "tp": 32}, {"model": "glm-4.5", "tp": 3, "ep": 3}),
        *({"model": "glm-4.5", "tp": 7, "ep": 7}, LARGE, {**LARGE, "tp": 4}),
        *({**H100, "gpu_memory_utilization": share} for share in (nothing, one_block)),
        {**H100, "gpu_memory_utilization": nothing, "kv_cache_tokens": 16},
        *({**TOO_LARGE, "kv_cache_tokens": tokens} for tokens in (None, *TOKENS)),
    ]
    for own in (H100, GPT):
        beyond, plan = tokens_beyond(plan_of(own)), plan_of(own)
        tokens = (beyond, beyond - plan["block_size"], fitting_tokens(plan))
        stated += [{**own, "kv_cache_tokens": each} for each in tokens]
    return ask_all("deployment_faults", stated)


@pytest.fixture(scope="module")
def faults(fault_rows):
    """Sentences by fault of a deployment."""
    return lambda **columns: {row["fault"]: row["sentence"] for row in fault_rows(**columns)}


def test_delta_net_key_heads_are_not_copied(faults):
    found = faults(model="qwen3-next-80b-a3b", tp=32)
    assert found["heads"].startswith(
        "qwen3-next-80b-a3b has 16 attention heads, not divisible by tensor-parallel size 32"
    )
    assert found["kv_heads"].startswith(
        "qwen3-next-80b-a3b has 16 key-value heads, not divisible by tensor-parallel size 32"
    )


def test_shared_experts_must_divide(faults, fault_rows):
    # 1536 / 3 is whole; 7 parts leave the shared experts uneven
    assert "width" not in faults(model="glm-4.5", tp=3, ep=3)
    sentences = [row["sentence"] for row in fault_rows("glm-4.5", tp=7, ep=7)]
    assert (
        "glm-4.5 has shared experts of width 1536, not divisible by tensor-parallel size 7; "
        "use other parallel sizes" in sentences
    )


def test_a_model_too_large_says_how_much_is_missing(faults, plan_of):
    sentence = faults(**LARGE)["memory"]
    needed, usable, missing = (
        float(number) for number in re.fullmatch(
            r"llama-3.1-70b does not fit on h100_sxm with tensor-parallel size 1: weights, activations and CUDA "
            r"graphs take ([\d.]+) GiB, ([\d.]+) GiB are usable, so it needs ([\d.]+) GiB more[; ]*", sentence
        ).groups()
    )  # fmt: skip
    plan = plan_of(LARGE)
    gib = 2**30
    # the matrices in 16 bit: all published parameters but 161 norms
    assert plan["weights_bytes"] == 2 * (70_553_706_496 - 161 * 8192)
    assert needed == round((plan["weights_bytes"] + plan["activations_bytes"] + plan["graphs_bytes"]) / gib, 1)
    assert usable == pytest.approx(0.92 * 80, abs=0.05)
    assert missing == pytest.approx(needed - usable, abs=0.11)
    assert faults(**{**LARGE, "tp": 4}) == {}


def test_a_cache_without_a_block(faults, plan_of):
    # one token's cache less than what a block of 16 needs
    found = faults(**H100, gpu_memory_utilization=held_share(plan_of(H100), 15))
    assert found == {
        "kv_cache": "no KV cache block fits for llama-3.1-8b on h100_sxm: 0.00 GiB are left for the cache; use "
        "more GPUs, a smaller max_num_batched_tokens, or another kv_cache_dtype"
    }
    assert faults(**H100, gpu_memory_utilization=held_share(plan_of(H100), 17)) == {}


@pytest.mark.parametrize("tokens", TOKENS, ids=lambda tokens: f"{tokens:.0e}")
def test_tokens_that_are_stated_change_nothing_of_the_weights(faults, tokens):
    found = faults(**TOO_LARGE, kv_cache_tokens=tokens)
    assert found == faults(**TOO_LARGE, kv_cache_tokens=None)
    assert found["memory"].startswith("deepseek-v3 does not fit on h100_sxm with tensor-parallel size 1")


def test_no_block_beside_the_weights_is_a_fault_whatever_is_stated(faults, plan_of):
    share = held_share(plan_of(H100), 15)
    found = faults(**H100, gpu_memory_utilization=share, kv_cache_tokens=16)
    assert found == faults(**H100, gpu_memory_utilization=share) and list(found) == ["kv_cache"]


@pytest.mark.parametrize("stated", [H100, GPT], ids=lambda stated: stated["model"])
def test_more_tokens_than_fit_are_refused_with_what_fits(faults, plan_of, stated):
    plan = plan_of(stated)
    fits, beyond = fitting_tokens(plan), tokens_beyond(plan)
    expected = (
        f"kv_cache_tokens {beyond} is more than the {fits} tokens that fit beside {stated['model']} on "
        "h100_sxm; use at most that"
    )
    assert faults(**stated, kv_cache_tokens=beyond) == {"kv_cache_tokens": expected}
    # a log's own number may be up to 5 % above the plan, and is taken
    assert faults(**stated, kv_cache_tokens=beyond - plan["block_size"]) == {}
    assert faults(**stated, kv_cache_tokens=fits) == {}


def test_tokens_above_the_plan_that_are_taken_are_said(ask_all, plan_of):
    plan = plan_of(H100)
    fits = plan["kv_cache_tokens"]
    assert fits == plan["memory_units"] * 16
    stated = [{**H100, "kv_cache_tokens": tokens} for tokens in (fits, fits + 16)]
    assumptions, plans = ask_all("assumptions", stated), ask_all("memory_plan", stated)
    none, [sentence] = (
        [row["sentence"] for row in assumptions(**row) if row["subject"] == "kv cache tokens"] for row in stated
    )
    assert none == []
    assert f"kv_cache_tokens {fits + 16} " in sentence and f" {fits} " in sentence
    [plan] = plans(**stated[1])
    assert plan["kv_cache_tokens"] == fits + 16


DRAFTED = [
    ("qwen3-0.6b", "deepseek-v3", "h100_sxm"), ("qwen3-32b", "qwen3-32b", "h100_sxm"), ("qwen3-8b", "qwen3-8b", "l4")
]  # fmt: skip


def with_draft(case, tp):
    """A deployment of DRAFTED and its draft model."""
    model, draft, gpu = DRAFTED[case]
    sizes = {"gpu": gpu, "engine": "vllm", "tp": tp, "pp": 1, "dp": 1, "ep": 1}
    own = f"draft {case} {tp}"
    drafts = {"draft_deployment_id": own, "num_speculative_tokens": 2, "draft_acceptance_rate": 0.7}
    target = {"deployment_id": f"target {case} {tp}", "model": model, **drafts, **sizes}
    return [target, {"deployment_id": own, "model": draft, **dict.fromkeys(drafts), **sizes}]


def test_the_size_that_fits_is_one_that_fits_with_the_draft_model():
    refusal = refused(*(row for case in range(len(DRAFTED)) for row in with_draft(case, 1)))
    fits = []
    for model, draft, gpu in DRAFTED:
        start = f"{model} with its draft model {draft} does not fit on {gpu} with tensor-parallel size 1"
        found = re.search(rf"{re.escape(start)}.*?the smallest tensor-parallel size that fits is (\d+)", refusal)
        fits.append(int(found[1]))
    assert min(fits) > 1
    with connect() as session:
        sizes = [(case, tp) for case, most in enumerate(fits) for tp in (most, most // 2)]
        session.give("deployments", [row for case, tp in sizes for row in with_draft(case, tp)])
        faults = session.table("deployment_faults").to_pylist()
    for case, most in enumerate(fits):
        at = {tp: [row["sentence"] for row in faults if row["deployment_id"].endswith(f" {case} {tp}")]
              for tp in (most, most // 2)}  # fmt: skip
        assert at[most] == []
        assert any("does not fit" in sentence for sentence in at[most // 2])


def test_an_engine_that_does_not_exist_for_a_gpu_is_refused_first_and_alone():
    gpus = ("mi300x", "mi100", "gaudi2", "gaudi3", "b60")
    stated = {"model": "deepseek-v3", "engine": "trtllm", "max_num_seqs": 10**8, "tp": 1, "pp": 1, "dp": 1, "ep": 1}
    refusal = refused(*({"deployment_id": gpu, "gpu": gpu, **stated} for gpu in gpus))
    sentences = [f"TensorRT-LLM does not exist for {gpu}; use vllm or sglang" for gpu in gpus]
    assert all(sentence in refusal for sentence in sentences)
    assert len(refusal) == len("; ".join(sentences) + ".")


def test_a_figure_that_cannot_be_simulated_is_reported_alone():
    stated = {"model": "deepseek-v3", "gpu": "h100_sxm", "engine": "vllm", "max_num_seqs": 10**8}
    sentence = "max_num_seqs is 100000000, more than the 16777216 that can be simulated; use at most that."
    assert refused({"deployment_id": "d", "tp": 1, "pp": 1, "dp": 1, "ep": 1, **stated}) == sentence


def test_every_fault_has_its_place_among_the_sentences():
    query = (folder("sql") / "deploy" / "deployment_faults.sql").read_text()
    assert set(re.findall(r"select deployment_id, '(\w+)'", query)) == set(ORDER)


def test_limits_of_long_prompts_that_contradict_each_other_are_refused():
    with connect() as session:
        row = {"model": "llama-3.1-8b", "gpu": "h100_sxm", "request_rate": 1.0, "num_prompts": 1, "input_len": 8}
        limits = {"output_len": 2, "max_num_partial_prefills": 1, "max_long_partial_prefills": 2}
        give_plan(session, [row | limits])
        sentence = "max_long_partial_prefills 2 exceeds max_num_partial_prefills 1; use at most that."
        with pytest.raises(InvalidInput, match=re.escape(sentence)):
            refuse_faults(session)
