"""Files of deployments: what is written is read again as the same deployments, in every form that can state them."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.catalog.gpu_names import find_gpu
from kernelsight.catalog.tables import facts
from kernelsight.errors import InvalidInput
from kernelsight.scenario.flags import LOAD_FLAGS
from kernelsight.scenario.launch.deployments import read_launch_line
from kernelsight.scenario.launch.written import FORMS, deployment_files, product_of
from kernelsight.scenario.scenario_rows import deployment_rows, normalise
from tests.conftest import random_worlds
from tests.invariants.test_stated_numbers import LENGTHS, SCENARIOS
from tests.scenario.launch.test_deployments import CASES
from tests.scenario.launch.test_lines import LINES


def engine_of(line: str) -> str:
    return next(name for name in ("trtllm", "sglang", "vllm") if name in line.lower())


MOE = {"huggingface_id": "deepseek-ai/DeepSeek-V3", "experts": 256}
FLAGS = st.fixed_dictionaries(
    {
        "engine": st.sampled_from(("vllm", "sglang", "trtllm")),
        "gpu": st.sampled_from(("h200_sxm", "h100_sxm", "l40s", "mi300x", "a100_sxm_40gb", "gb200")),
        "tensor_parallel_size": st.sampled_from((1, 2, 8, 16)),
    },
    optional={
        "pipeline_parallel_size": st.sampled_from((1, 2)),
        "engine_version": st.sampled_from(("0.11.0", "1.0.0", "0.5.5.post1")),
        "dtype": st.just("fp16"),
        "kv_cache_dtype": st.just("fp8"),
        "max_model_len": st.integers(1000, 9000),
        "max_num_seqs": st.integers(1, 500).map(lambda seats: 2 * seats),
        "max_num_batched_tokens": st.integers(5000, 8000),
        "gpu_memory_utilization": st.sampled_from((0.5, 0.75)),
        "enforce_eager": st.just(True),
        "enable_prefix_caching": st.just(False),
        "expert_parallel_size": st.just("all"),
        "pools": st.fixed_dictionaries(
            {"prefill_replicas": st.integers(1, 4), "decode_replicas": st.integers(1, 4)},
            optional={
                "prefill_tensor_parallel_size": st.sampled_from((1, 4)),
                "prefill_max_num_seqs": st.sampled_from((8, 32)),
            },
        ),
        "replicas": st.integers(2, 9),
    },
)


def stated_of(drawn: dict) -> dict:
    """Return consistent flags from drawn ones; expert parallelism spans all GPUs, in both pools."""
    pools = drawn.pop("pools", {})
    if pools:
        drawn.pop("replicas", None)
    flags = {"model": "deepseek-v3", **drawn, **pools}
    if flags.pop("expert_parallel_size", None):
        flags["expert_parallel_size"] = flags["tensor_parallel_size"]
    if pools:
        # what a pool does not state is a default of its engine, which is read as that of the other pool
        for name in ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization"):
            if name in flags:
                flags.setdefault(f"prefill_{name}", flags[name])
            else:
                flags.pop(f"prefill_{name}", None)
    return normalise(flags)


def rows_of(flags: dict) -> list[dict]:
    return [
        {name: value for name, value in row.items() if name != "deployment_id"}
        for row in deployment_rows(normalise(flags))
    ]


@pytest.mark.parametrize("form", FORMS)
@random_worlds(60)
@given(drawn=FLAGS)
def test_what_is_written_is_read_again(form, drawn):
    flags = stated_of(dict(drawn))
    try:
        text, unsaid = deployment_files(form, flags, MOE)
    except InvalidInput as problem:
        sizes = [flags.get(f"{pool}tensor_parallel_size", 1) for pool in ("", "prefill_")]
        assert max(sizes) * flags.get("pipeline_parallel_size", 1) > 4 and "nodes" in str(problem)
        return
    assert unsaid == {}
    again = read_launch_line(text).flags
    assert rows_of(again) == rows_of(flags | {"model": "deepseek-ai/DeepSeek-V3"})
    for name in ("replicas", "prefill_replicas", "decode_replicas"):
        assert again.get(name, 1) == flags.get(name, 1)


PINNED = [
    *(case["flags"] for case in CASES if "flags" in case),
    *({"engine": engine_of(case["line"])} | case["flags"] for case in LINES if "flags" in case),
    *({name: value for name, value in flags.items() if name not in LENGTHS} for flags in SCENARIOS.values()),
]


@pytest.mark.parametrize("form", FORMS)
def test_deployments_of_the_pinned_calls_are_read_again_exactly(form):
    """Deployments of all cases of launch texts and of the pinned scenarios; what no option says is listed."""
    same = 0
    for stated in PINNED:
        flags = normalise({"engine": "vllm", "gpu": "h200_sxm", **stated})
        flags = {
            name: value for name, value in flags.items() if name not in LOAD_FLAGS and name != "draft_acceptance_rate"
        }
        try:
            text, unsaid = deployment_files(form, flags, MOE if "eep" in flags.get("model", "") else None)
        except InvalidInput as problem:
            assert "nodes" in str(problem) or "model" not in flags, stated
            continue
        kept = {name: value for name, value in flags.items() if name not in unsaid}
        again = read_launch_line(text).flags
        assert rows_of(again) == rows_of(kept | {"model": again["model"]}), stated
        assert all(again.get(name, 1) == flags.get(name, 1) for name in ("replicas", "prefill_replicas"))
        same += 1
    assert same > len(PINNED) * 0.9


def test_a_replica_over_two_nodes_is_a_leader_with_workers():
    flags = {"model": "deepseek-v3", "gpu": "h200_sxm", "data_parallel_size": 16, "enable_expert_parallel": True}
    documents = list(yaml.safe_load_all(deployment_files("kubernetes", flags, MOE)[0]))
    template = documents[0]["spec"]["leaderWorkerTemplate"]
    assert (documents[0]["kind"], template["size"]) == ("LeaderWorkerSet", 2)
    worker = template["workerTemplate"]["spec"]["containers"][0]["command"][-1]
    assert "--headless" in worker and worker.endswith("--data-parallel-start-rank $((LWS_WORKER_INDEX * 8))")
    graph = yaml.safe_load(deployment_files("dynamo", flags, MOE)[0])
    assert graph["spec"]["services"]["deepseek-v3"]["multinode"] == {"nodeCount": 2}
    for form in ("compose", "llm-d"):
        with pytest.raises(InvalidInput, match="a replica of 16 GPUs spans 2 nodes"):
            deployment_files(form, flags, MOE)
    with pytest.raises(InvalidInput, match="starts over 2 nodes by MPI"):
        deployment_files("kubernetes", {**flags, "engine": "trtllm", "data_parallel_size": 1, "tp": 16}, MOE)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_prefill_and_decode_have_a_router_and_services(engine):
    flags = {"model": "qwen3-8b", "engine": engine, "gpu": "l40s", "prefill_replicas": 2, "decode_replicas": 1}
    documents = list(yaml.safe_load_all(deployment_files("kubernetes", flags)[0]))
    kinds = [(document["kind"], document["metadata"]["name"]) for document in documents]
    names = ["qwen3-8b-prefill", "qwen3-8b-decode", "qwen3-8b-router"]
    assert kinds == [("Deployment", name) for name in names] + [("Service", name) for name in names]
    router = " ".join(documents[2]["spec"]["template"]["spec"]["containers"][0]["command"])
    assert "qwen3-8b-prefill:8000" in router and "qwen3-8b-decode:8000" in router


def test_labels_of_gpus_name_them_alone():
    for row in facts("gpus").to_pylist():
        found = find_gpu(product_of(row["gpu"]))
        assert found is not None and (found.gpu, found.assumed) == (row["gpu"], None)


def test_an_unknown_form_is_refused():
    with pytest.raises(InvalidInput, match="write_launch is 'helm'; give one of compose, kubernetes"):
        deployment_files("helm", {"model": "m", "gpu": "l4"})
