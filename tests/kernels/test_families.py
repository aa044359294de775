"""The registry of kernel families against what the queries launch, what is read elsewhere, and what tests know."""

from __future__ import annotations

import pytest

from kernelsight.fitting.kernel_sweeps.aiconfigurator_tables import TABLES
from kernelsight.kernels.families import COMMUNICATION, FAMILIES, LOWERED, launched
from kernelsight.measure.suite import FAMILIES as MEASURABLE
from kernelsight.session import connect
from tests.asked import give_plan
from tests.kernels.calls import LINKED, STREAMING

LOAD = {"num_prompts": 8, "input_len": 512, "output_len": 32, "max_concurrency": 2}
DEPLOYMENTS = [
    {"model": "llama-3.1-8b", "gpu": "h100_sxm"},
    {"model": "llama-3.1-8b", "gpu": "l40s", "tp": 2, "quantization": "fp8", "engine": "trtllm"},
    {"model": "gpt-oss-20b", "gpu": "b200_sxm", "pp": 2, "engine": "sglang"},
    {"model": "deepseek-v3", "gpu": "b200_sxm", "tp": 8, "dp": 2, "enable_expert_parallel": True},
    {"model": "deepseek-v3.2", "gpu": "b200_sxm", "tp": 8},
    {"model": "deepseek-v4-flash", "gpu": "b200_sxm", "tp": 8},
    {"model": "qwen3-next-80b-a3b", "gpu": "h100_sxm", "tp": 4},
    {"model": "mixtral-8x7b-v0.1", "gpu": "h200_sxm", "dp": 2, "tp": 2, "engine": "trtllm"},
]


def traits(session) -> set[str]:
    """Return what the one deployment of a session has, in the words of ``Family.launched_by``."""
    [settings] = session.table("deployment_settings").to_pylist()
    layers = session.table("sharded_layers").to_pylist()
    found = {layer[name] for layer in layers for name in ("attention", "ffn")}
    found |= {name for name in ("tp", "pp", "dp") if settings[name] > 1}
    quantized = any(session.table("layer_weights")["quantizes_activations"].to_pylist())
    streams = any(name.endswith("_stream_proj") for name in session.table("layer_weights")["name"].to_pylist())
    return found | ({"quantizes_activations"} if quantized else set()) | ({"residual_streams"} if streams else set())


@pytest.mark.parametrize("row", DEPLOYMENTS, ids=lambda row: row["model"])
def test_a_deployment_launches_no_family_that_its_traits_rule_out(row: dict):
    with connect() as session:
        give_plan(session, [{**row, **LOAD}])
        found = {family for family in LOWERED if session.table(f"{family}_calls").num_rows}
        assert found <= set(launched(traits(session)))
        # a trait that rules out nothing would pass, so each has to leave out what is known not to run
        kinds = {layer["attention"] for layer in session.table("sharded_layers").to_pylist()}
    if not kinds & {"mla", "sparse", "compressed"}:
        assert not {"batched_gemm", "mla_prefill", "mla_decode", "sparse_attention"} & set(launched(kinds))


def test_every_lowered_family_has_a_query_and_every_query_a_family():
    with connect() as session:
        queries = {
            name.removesuffix("_calls")
            for name, node in session.graph.nodes().items()
            if node and name.endswith("_calls")
        } - {"kernel"}
    assert queries == set(LOWERED)


def test_what_runs_on_vector_units_and_over_links():
    assert {name for name, family in FAMILIES.items() if family.vector_work} == set(STREAMING)
    assert COMMUNICATION == LINKED


def test_what_can_be_imported_or_measured_is_a_family():
    """Softmax, copies and launches are measured to know the GPU, and no model launches them as calls."""
    imported = {table.family for tables in TABLES.values() for table in tables.values()}
    assert imported <= set(FAMILIES)
    assert set(MEASURABLE) - {"softmax", "copy", "launch"} <= set(FAMILIES)
