"""The tests of ``pytest -m fast``: of files that take less than 30 ms a test, and doctests that open no session."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.doctest import DoctestItem

HERE = Path(__file__).resolve().parent
# files by folder
FAST = {
    "catalog": "test_gpus test_models",
    "choices": "test_siblings",
    "cli": "test_cache test_calibrate_evaluate test_serve",
    "comparison": "test_measured test_replay test_residuals test_signature",
    "dataflow": "test_bounded_files test_bounded_values test_conditions test_contract test_durable "
    "test_generated_nodes test_graph test_memory_cache test_parquet_files test_redaction test_rows test_signals "
    "test_sql_nodes test_types",
    "docs": "test_figures test_pages test_reference",
    "evaluation/runs": "test_campaigns test_coverage test_decisions test_parallel_sizes test_peer test_recipes "
    "test_scores",
    "fitting": "test_cells test_experimental_design test_half_widths test_metrics test_splits",
    "fitting/kernel_sweeps": "test_bounds test_import test_names test_neusight test_profiles",
    "kernels": "test_collectives test_cut_rates test_decode test_energy test_features test_few_shot "
    "test_gpu_distance test_hardware test_intervals test_kernel_constants test_linear test_moe test_network test_pack "
    "test_tiers "
    "test_values test_vendors",
    "logs": "test_aiperf test_files test_guidellm test_inference_perf test_kernels test_otlp test_prometheus "
    "test_registry test_send_times test_sglang_bench test_vllm_iterations",
    "measure": "test_cuda_launches test_host test_kernels_to_measure test_power test_suite test_timing",
    "models": "test_config test_newer_architectures test_quantization",
    "safety": "test_hostile_files",
    "scenario": "test_gpu_names test_grid test_keywords test_kv_tiers test_launch_files test_load_rules test_prices",
    "scenario/launch": "test_commands test_lines",
    "searching": "test_cupy_measurer test_scores test_sources test_space_files test_tuner_files test_tuning_parameters",
    "searching/llm": "test_llm",
    "serving/engine": "test_prefix_worlds test_small_fleets test_small_worlds",
    "serving/load": "test_arrivals test_lengths test_reach test_requests test_traces",
    "sizing": "test_candidates test_energy test_probability",
    "sql": "test_work",
    ".": "test_faults test_rooms test_style test_words",
}
FILES = {HERE / folder / f"{name}.py" for folder, names in FAST.items() for name in names.split()}


def is_fast(item: pytest.Item) -> bool:
    """Tell whether a test belongs to the fast tier."""
    if isinstance(item, DoctestItem):
        texts = "".join(example.source for example in item.dtest.examples) if item.dtest else ""
        return "import kernelsight" not in texts and "kernelsight import" not in texts
    return item.path in FILES
