"""What tensor, pipeline, data and expert parallelism do to work, heads, memory and collectives."""

from __future__ import annotations

import pytest

STEP = {"decodes": 8, "context": 700, "prompts": 2, "new": 160, "cached": 48}
TOKENS = 8 + 2 * 160
SAMPLED = 8 + 2
MODELS = ["llama-3.1-8b", "qwen3-235b-a22b", "gpt-oss-120b", "deepseek-v3", "glm-5", "qwen3-next-80b-a3b", "gemma-2-9b"]
# Matrices that every GPU of a tensor-parallel group holds whole: MLA's compressions, routers, the indexer.
REPLICATED = {"qkv_a_proj", "router", "indexer_q_proj", "indexer_k_proj", "indexer"}
SHARDED_FAMILIES = {"gemm", "batched_gemm", "moe", "prefill_attention", "decode_attention", "mla_prefill", "mla_decode",
                    "sparse_attention", "linear_attention"}  # fmt: skip
COLLECTIVES = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"}


QWEN, DEEPSEEK = "qwen3-235b-a22b", "deepseek-v3"
TRTLLM = {"engine": "trtllm"}
ALL_TO_ALL = {**TRTLLM, "expert_exchange": "all_to_all"}
STATED = [
    *({"model": model, **parallel} for model in MODELS for parallel in ({}, {"tp": 2}, {"tp": 4}, {"pp": 4})),
    *({"model": DEEPSEEK, **parallel} for parallel in ({"dp": 8, "ep": 8}, {"tp": 8}, {"tp": 8, "dp": 1})),
    *({"model": model, "dp": 4} for model in ("llama-3.1-8b", QWEN)),
    {"model": QWEN, "tp": 2, "dp": 2, "ep": 4},
    {"model": QWEN, "dp": 4, **ALL_TO_ALL},
    *({"model": QWEN, **TRTLLM, "dp": ep, "ep": ep} for ep in (2, 8, 16)),
]


@pytest.fixture(scope="module")
def calls(ask_all):
    """Kernel calls of each of STATED."""
    return ask_all("kernel_calls", STATED, **STEP)


def work(calls, replicated):
    """FLOP of all launches by deployment, of what is replicated or of what is sharded."""
    sums = {}
    for call in calls:
        if call["family"] in SHARDED_FAMILIES and (call["name"] in REPLICATED) == replicated:
            sums[call["deployment_id"]] = sums.get(call["deployment_id"], 0) + call["count"] * call["flops"]
    return sums


def named(calls):
    """Calls by deployment and call."""
    return {(call["deployment_id"], call["call"]): call for call in calls}


@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_parallel_gpus_share_the_work(calls, tp):
    models = [model for model in MODELS if not (model == "qwen3-next-80b-a3b" and tp > 2)]
    whole = [call for model in models for call in calls(model)]
    parts = [call for model in models for call in calls(model, tp=tp)]
    share = {model: pytest.approx(flops / tp, rel=1e-12) for model, flops in work(whole, False).items()}
    assert work(parts, replicated=False) == share
    assert work(parts, replicated=True) == work(whole, replicated=True)
    assert work(whole, replicated=True).keys() == {"qwen3-235b-a22b", "gpt-oss-120b", "deepseek-v3", "glm-5"} | (
        {"qwen3-next-80b-a3b"} & set(models)
    )


def test_pipeline_stages_together_do_the_work_once(calls):
    whole = named(call for model in MODELS for call in calls(model))
    stages = named(call for model in MODELS for call in calls(model, pp=4))
    transfers = {key: stages.pop(key) for key in list(stages) if stages[key]["family"] == "p2p"}
    assert stages == whole
    assert {key[0] for key in transfers} == set(MODELS)
    llama = transfers["llama-3.1-8b", "model.stage_transfer"]
    # hidden state and residual, 16 bit each, over three boundaries
    assert (llama["count"], llama["bytes"], llama["shape"]["gpus"]) == (3, 2 * 2 * TOKENS * 4096, 2)


EXPERTS = [{"dp": 4}, {"dp": 4, "ep": 4}, {"tp": 2, "dp": 2, "ep": 4}, {"tp": 4, "ep": 4}]


@pytest.fixture(scope="module")
def expert_calls(ask_all):
    models = [QWEN, DEEPSEEK, "gpt-oss-120b"]
    return ask_all("moe_calls", [{"model": model, **each} for model in models for each in ({}, *EXPERTS)], **STEP)


@pytest.mark.parametrize("parallel", EXPERTS)
def test_experts_of_all_gpus_do_the_work_of_all_ranks(expert_calls, parallel):
    models = [QWEN, DEEPSEEK, "gpt-oss-120b"]
    gpus = parallel.get("tp", 1) * parallel.get("dp", 1)
    whole = named(call for model in models for call in expert_calls(model))
    parts = named(call for model in models for call in expert_calls(model, **parallel))
    assert len(whole) >= len(models) and parts.keys() == whole.keys()
    for key, call in parts.items():
        assert call["tokens"] == parallel.get("dp", 1) * TOKENS
        assert gpus * call["flops"] == pytest.approx(parallel.get("dp", 1) * whole[key]["flops"], rel=1e-12)
        assert call["moe_tp"] * call["moe_ep"] == gpus
        assert call["local_experts"] * call["moe_ep"] == whole[key]["experts"]
        assert call["intermediate"] * call["moe_tp"] == whole[key]["intermediate"]


def test_data_parallel_ranks_run_what_is_dense_alike(calls):
    whole = named(calls(DEEPSEEK))
    rank = named(calls(DEEPSEEK, dp=8, ep=8))
    changed = {key for key in whole if rank[key] != whole[key]}
    assert changed == {("deepseek-v3", "mla_moe.experts")}
    assert {call for _, call in rank.keys() - whole.keys()} == {"mla_moe.moe_dispatch", "mla_moe.moe_combine"}


WEIGHTS = [{"tp": 2}, {"tp": 2, "dp": 2}, {"tp": 2, "ep": 2}, {"tp": 2, "dp": 2, "ep": 4}]


@pytest.fixture(scope="module")
def weights(ask_all):
    models = [QWEN, DEEPSEEK, "llama-3.1-8b"]
    return ask_all("layer_weights", [{"model": model, **each} for model in models for each in ({}, *WEIGHTS)])


@pytest.mark.parametrize("parallel", WEIGHTS)
def test_weights_of_all_gpus_are_the_model(weights, parallel):
    def sums(models, **parallel):
        found = {}
        for row in (row for model in models for row in weights(model, **parallel)):
            key = row["deployment_id"], row["layer_kind"] + "." + row["name"]
            found[key] = row["weight_bytes"]
        return found

    models = [QWEN, DEEPSEEK] if "ep" in parallel else [QWEN, DEEPSEEK, "llama-3.1-8b"]
    whole, parts = sums(models), sums(models, **parallel)
    assert {model for model, _ in parts} == set(models)
    for (model, name), held in parts.items():
        matrix = name.split(".")[1]
        copies = 1 if matrix in REPLICATED else parallel["tp"]
        if matrix == "experts":
            copies = parallel["tp"] * parallel.get("dp", 1)
        assert held * copies == pytest.approx(whole[model, name]), name


@pytest.fixture(scope="module")
def layouts(ask_all):
    """Layouts of caches."""
    stated = [
        *({"model": "llama-3.1-8b", "tp": tp} for tp in (1, 2, 8, 16, 32)),
        *({"model": DEEPSEEK, "tp": tp} for tp in (1, 16)),
        *({"model": DEEPSEEK, "kv_cache_dtype": "fp8", name: 8, "ep": 8} for name in ("tp", "dp")),
        *({"model": QWEN, **parallel} for parallel in ({"tp": 4}, {"dp": 4, "ep": 4})),
    ]
    found = ask_all("kv_layout", stated)

    def token_bytes(model, **columns):
        [layout] = found(model, **columns)
        return layout["full_token_bytes"]

    return token_bytes


def test_key_value_heads_are_split_and_then_copied(layouts):
    # 8 heads of 128, keys and values, 2 bytes, 32 layers: 16 and 32 GPUs keep copies of one head each
    head = 2 * 128 * 2 * 32
    found = {tp: layouts("llama-3.1-8b", tp=tp) / head for tp in (1, 2, 8, 16, 32)}
    assert found == {1: 8, 2: 4, 8: 1, 16: 1, 32: 1}
    assert {layouts(DEEPSEEK, tp=tp) for tp in (1, 16)} == {61 * 576 * 2}


def test_copied_heads_are_projected_by_every_gpu_that_holds_them(ask):
    [call] = [
        call for call in ask("gemm_calls", {"model": "qwen3-235b-a22b", "tp": 8}, **STEP) if call["name"] == "qkv_proj"
    ]
    # 64 query heads on 8 GPUs, and one of 4 key-value heads on each
    assert call["n"] == (8 + 1 + 1) * 128


def test_one_gpu_needs_no_collective(calls):
    for model in MODELS:
        assert calls(model) and not {call["family"] for call in calls(model)} & COLLECTIVES


def test_tensor_parallel_sums_and_gathers(calls):
    found = {
        key: (call["family"], call["count"], call["bytes"], call["shape"]["gpus"])
        for key, call in named(calls("llama-3.1-8b", tp=4) + calls(DEEPSEEK, tp=4)).items()
        if call["family"] in COLLECTIVES
    }
    assert found == {
        ("llama-3.1-8b", "full_dense.attention_all_reduce"): ("all_reduce", 32, 2 * TOKENS * 4096, 4),
        ("llama-3.1-8b", "full_dense.ffn_all_reduce"): ("all_reduce", 32, 2 * TOKENS * 4096, 4),
        ("llama-3.1-8b", "model.embedding_all_reduce"): ("all_reduce", 1, 2 * TOKENS * 4096, 4),
        ("llama-3.1-8b", "model.logits_all_gather"): ("all_gather", 1, 2 * SAMPLED * 128256, 4),
        ("deepseek-v3", "mla_dense.attention_all_reduce"): ("all_reduce", 3, 2 * TOKENS * 7168, 4),
        ("deepseek-v3", "mla_dense.ffn_all_reduce"): ("all_reduce", 3, 2 * TOKENS * 7168, 4),
        ("deepseek-v3", "mla_moe.attention_all_reduce"): ("all_reduce", 58, 2 * TOKENS * 7168, 4),
        ("deepseek-v3", "mla_moe.ffn_all_reduce"): ("all_reduce", 58, 2 * TOKENS * 7168, 4),
        ("deepseek-v3", "model.embedding_all_reduce"): ("all_reduce", 1, 2 * TOKENS * 7168, 4),
        ("deepseek-v3", "model.logits_all_gather"): ("all_gather", 1, 2 * SAMPLED * 129280, 4),
    }


def exchanges(calls):
    return [call for call in calls if call["family"] in COLLECTIVES]


def test_data_parallel_ranks_exchange_tokens_of_experts_only(calls):
    both = exchanges(calls("llama-3.1-8b", dp=4) + calls(QWEN, dp=4))
    found = {(call["deployment_id"], call["family"]): call for call in both}
    assert found.keys() == {("qwen3-235b-a22b", "all_gather"), ("qwen3-235b-a22b", "reduce_scatter")}
    for call in found.values():
        assert (call["count"], call["bytes"], call["shape"]["gpus"]) == (94, 2 * 4 * TOKENS * 4096, 4)


def test_reduce_scattered_experts_are_summed_over_tensor_parallel_ranks(calls):
    gathered = {call["call"] for call in exchanges(calls(QWEN, tp=2, dp=2, ep=4))}
    assert gathered == {
        "full_moe.attention_all_reduce", "full_moe.ffn_all_reduce", "full_moe.moe_dispatch", "full_moe.moe_combine",
        "model.embedding_all_reduce", "model.logits_all_gather",
    }  # fmt: skip


SUMMED = [
    # the experts of a token lie on several GPUs
    ("qwen3-235b-a22b", "trtllm", {"tp": 4, "ep": 4, "expert_exchange": "all_to_all"}, True),
    # every GPU has a part of the width of each expert
    ("qwen3-235b-a22b", "trtllm", {"tp": 2, "dp": 2, "expert_exchange": "all_to_all"}, True),
    ("qwen3-235b-a22b", "trtllm", {"tp": 2, "dp": 8, "ep": 16}, False),  # the all-to-all brings whole sums back
    ("deepseek-v3", "trtllm", {"tp": 2, "dp": 8, "ep": 16}, True),  # but those of the shared expert
    ("qwen3-235b-a22b", "trtllm", {"tp": 2, "dp": 2, "ep": 4}, True),  # fewer ranks than experts of a token gather
    ("qwen3-235b-a22b", "vllm", {"tp": 2, "dp": 2, "ep": 4}, True),  # a reduce-scatter leaves a part on each GPU
    ("qwen3-235b-a22b", "vllm", {"dp": 4, "ep": 4}, False),  # one GPU has all of a token's hidden state
]


@pytest.fixture(scope="module")
def sums(ask_all):
    stated = [{"model": model, "engine": engine, **parallel} for model, engine, parallel, _ in SUMMED]
    return ask_all("all_reduce_calls", stated, **STEP)


@pytest.mark.parametrize(("model", "engine", "parallel", "summed"), SUMMED)
def test_expert_outputs_are_summed_where_no_exchange_has_done_it(sums, model, engine, parallel, summed):
    calls = {call["call"]: call for call in sums(model, engine=engine, **parallel)}
    kind = "full_moe" if model.startswith("qwen3") else "mla_moe"
    assert (f"{kind}.ffn_all_reduce" in calls) == summed
    if summed:
        call = calls[f"{kind}.ffn_all_reduce"]
        width, layers = (4096, 94) if model.startswith("qwen3") else (7168, 58)
        assert (call["count"], call["bytes"], call["group_size"]) == (layers, 2 * TOKENS * width, parallel["tp"])


def test_experts_that_are_sharded_by_width_gather_tokens_whatever_the_engine(calls):
    assert {(call["family"], call["name"]) for call in exchanges(calls(QWEN, dp=4, **ALL_TO_ALL))} == {
        ("all_gather", "moe_dispatch"), ("reduce_scatter", "moe_combine"),
    }  # fmt: skip


def test_all_to_all_sends_a_token_once_to_each_rank_of_its_experts(calls):
    sent = exchanges(calls(QWEN, dp=16, ep=16, **TRTLLM))
    # a rank is missed by all 8 experts with probability (15/16)^8
    expected = pytest.approx(2 * TOKENS * 4096 * 16 * (1 - (15 / 16) ** 8), rel=1e-12)
    assert {call["name"] for call in sent} == {"moe_dispatch", "moe_combine"}
    for call in sent:
        assert (call["family"], call["count"], call["bytes"], call["shape"]["gpus"]) == ("all_to_all", 94, expected, 16)


@pytest.fixture(scope="module")
def sent_over_nvlink(ask_all):
    stated = {"model": "llama-4-maverick-17b-128e", "dp": 4, "ep": 4, "quantization": "nvfp4", **TRTLLM}
    on = [("1.2", "b200_sxm"), ("1.1", "b200_sxm"), ("1.2", "l40s")]
    found = ask_all(
        "all_to_all_calls", [{**stated, "gpu": gpu, "engine_version": version} for version, gpu in on], **STEP
    )
    return lambda version, gpu: found(**stated, gpu=gpu, engine_version=version)


@pytest.mark.parametrize(
    ("version", "gpu", "kernel", "share"),
    [("1.2", "b200_sxm", "nvlink_one_sided", 4.5 / 16), ("1.1", "b200_sxm", None, 1), ("1.2", "l40s", None, 1)],
)
def test_tensorrt_llm_writes_tokens_to_other_ranks_over_nvlink_from_a_version_on(
    sent_over_nvlink, version, gpu, kernel, share
):
    calls = sent_over_nvlink(version, gpu)
    assert {call["name"]: call["implementation"] for call in calls} == {
        name: kernel and name.replace("moe", kernel) for name in ("moe_dispatch", "moe_combine")
    }
    # one expert a token, two kinds of layers; NVFP4 goes out, and what comes back is counted as its sweep does
    assert [call["bytes"] for call in calls] == pytest.approx([2 * TOKENS * 5120 * share] * 4, rel=1e-12)


@pytest.mark.parametrize("ep", [2, 8])
def test_up_to_as_many_ranks_as_a_token_has_experts_tensorrt_llm_gathers_tokens(calls, ep):
    families = {call["family"] for call in calls(QWEN, dp=ep, ep=ep, **TRTLLM) if call["name"].startswith("moe_")}
    assert families == {"all_gather", "reduce_scatter"}


def test_one_data_parallel_rank_is_a_plain_engine(calls):
    plain, one = calls(DEEPSEEK, tp=8), calls(DEEPSEEK, tp=8, dp=1)
    assert plain and sorted(plain, key=str) == sorted(one, key=str)


def test_a_data_parallel_rank_holds_the_cache_of_its_own_requests(layouts):
    # latent vectors are not split: a rank of eight holds as many bytes a token as a GPU of eight does
    for stated in ({"tp": 8, "ep": 8}, {"dp": 8, "ep": 8}):
        assert layouts(DEEPSEEK, kv_cache_dtype="fp8", **stated) == 61 * (512 + 64)
    assert layouts(QWEN, dp=4, ep=4) == 4 * layouts(QWEN, tp=4)
