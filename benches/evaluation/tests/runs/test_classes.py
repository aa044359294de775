"""What a run is counted as: by its model's config and its GPU's vendor, and the delay of its own campaign alone."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import kernelsight as ks
from kernelsight.evaluation.runs.backtests import planned_runs
from kernelsight.evaluation.runs.run_scores import group_of
from kernelsight.evaluation.runs.simulate_runs import settings_of
from kernelsight.laboratory.runs.constants import constants_of
from kernelsight.laboratory.runs.label_coverage import label_coverage
from kernelsight.laboratory.runs.responses import Response
from kernelsight.laboratory.runs.sources.aiconfigurator import FILTERS

RUN = {
    **{"run_id": "r", "campaign": "given", "model": "qwen3-0.6b", "gpu": "h100_sxm", "tp": 4, "pp": 1, "dp": 1},
    **{"ep": 1, "engine": "sglang", "engine_version": "0.5.9", "quantization": None, "measured_on": None},
    **{"workers": 1, "isl": 200, "osl": 40, "max_concurrency": 4, "request_rate": None, "source": "a test"},
}
# (model, GPU, whether it is a mixture, vendor)
CLASSES = (
    ("qwen3-30b-a3b", "h100_sxm", True, "nvidia"),
    ("Qwen/Qwen3-30B-A3B", "mi300x", True, "amd"),  # a repository, not a name of the catalogue
    ("mistralai/Mixtral-8x7B-v0.1", "h100_sxm", True, "nvidia"),
    ("RedHatAI/Qwen3-30B-A3B-FP8-dynamic", "h100_sxm", True, "nvidia"),  # a variant of a catalogue model
    ("Qwen/Qwen3-8B", "h100_sxm", False, "nvidia"),
    ("nobody/Unknown-1B", "h100_sxm", False, None),  # cannot be planned
)


def planned(*runs: dict[str, Any]) -> tuple[list[dict[str, Any]], list[float | None]]:
    """Return runs as planned, and the host time of each of their requests, us."""
    with ks.connect() as session:
        session.progress = None
        rows, plans = planned_runs(session, [run | {"run_id": str(number)} for number, run in enumerate(runs)])
        return rows, settings_of(session, plans, "host_settings", "request_us")


def test_the_config_decides_the_class_whatever_the_name() -> None:
    rows, _ = planned(*(RUN | {"model": model, "gpu": gpu} for model, gpu, _, _ in CLASSES))
    assert [(row["is_moe"], row["vendor"]) for row in rows] == [(moe, vendor) for _, _, moe, vendor in CLASSES]


def test_a_config_of_ones_own_decides_too(tmp_path: Any) -> None:
    config = {
        **{"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 256, "head_dim": 64},
        **{"intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4},
        **{"vocab_size": 512, "max_position_embeddings": 4096, "num_local_experts": 8, "num_experts_per_tok": 2},
        **{"torch_dtype": "bfloat16", "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "hidden_act": "silu"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    rows, _ = planned(RUN | {"model": str(tmp_path / "config.json")})
    assert rows[0]["is_moe"] is True


def test_a_delay_is_that_of_its_campaign_and_no_other() -> None:
    mixture, dense = RUN | {"model": "deepseek-ai/DeepSeek-V3", "tp": 8, "gpu": "h200_sxm"}, RUN
    rows, request_us = planned(
        *(run | {"campaign": name} for name in ("given", "gap_analysis", "inferencex") for run in (mixture, dense))
    )
    plain = request_us[1]
    # a mixture answers as late as a dense model does, but in the campaign whose runs show more
    assert request_us == [plain] * 4 + [plain + 160_000.0] * 2
    assert [row["flags"].get("request_delay_ms") for row in rows] == [None] * 4 + [160.0] * 2


@pytest.mark.parametrize(("level", "delay_us"), [("none", 0.0), ("transfer", 160.0), ("all", 160.0)])
def test_a_stated_delay_counts_but_where_nothing_is_fitted(level: str, delay_us: float) -> None:
    """Recipes fit it on the campaign: published times alone do not have it."""
    times_ms = np.full((4, 4, 4), 10.0)
    run = RUN | {"ttft_ms": 10.0, "tpot_ms": 10.0}
    pairs = [run | {"gpu": gpu} for gpu in ("l4", "h100_sxm")], [Response(times_ms, times_ms, 1.0, 1.0, 0.0)] * 2
    constants = constants_of(level, [run], *pairs)[group_of(run)]
    row = {"launch_gap_us": 1.0}
    delayed, plain = (constants.host(row | {"request_delay_us": value})["request_us"] for value in (160.0, 0.0))
    assert delayed - plain == pytest.approx(delay_us)


def test_dense_models_have_no_experts_on_other_gpus() -> None:
    import polars as pl

    kept = dict(FILTERS)["experts on other GPUs than attention"]
    models = ["Qwen/Qwen3-32B", "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-235B-A22B-FP8", "nobody/Unknown-1B"]
    # two GPUs for attention, four for experts
    sizes = {"moe_tp_size": 4, "moe_ep_size": 1, "tp_size": 2, "attention_dp_size": 1}
    rows = pl.DataFrame({"model_path": models, **{name: [size] * len(models) for name, size in sizes.items()}})
    assert rows.select(kept.alias("kept"))["kept"].to_list() == [True, True, False, False]


def compared(error: float, factor: float) -> dict[str, Any]:
    """Return a comparison of a metric measured as 10."""
    predicted = 10.0 * (1.0 + error)
    low, high = predicted / factor, predicted * factor
    return {"error": error, "low": low, "high": high, "covered": low <= 10.0 <= high}


def test_coverage_is_counted_by_what_is_known_beforehand() -> None:
    known = {"tier": "gpu-measured", "measured_share": 0.3, "vendor": "nvidia", "engine": "vllm", "campaign": "a"}
    known["host_version"] = "0.11"
    first = known | {"is_moe": True, "compared": {"ttft_mean": compared(0.1, 1.2), "itl_p50": compared(0.5, 1.2)}}
    second = known | {"is_moe": False, "vendor": "amd", "compared": {"ttft_mean": compared(-0.4, 1.5)}}
    # E2E of 10 + 2 x 5 ms follows from the other two, here with an interval of its own
    third = second | {"isl": 8, "osl": 3, "ttft_ms": 10.0, "tpot_ms": 5.0, "ttft_mean_ms": 11.0, "tpot_mean_ms": 5.5}
    third |= {"interval_factors": {"e2e": (0.8, 1.25)}, "compared": {"tpot_mean": compared(0.1, 1.2)}}
    found = {(row["label"], row["value"], row["metric"]): row for row in label_coverage([first, second, third])}
    whole = found["all", "all", "ttft"]
    assert (whole["n"], whole["coverage_90"]) == (2, 0.5)
    assert whole["width_90"] == pytest.approx((1.2**2 + 1.5**2) / 2)
    assert found["measured share", "20 to 50 %", "ttft"] == whole | {"label": "measured share", "value": "20 to 50 %"}
    assert found["class", "mixture of experts", "tpot"]["coverage_90"] == 0.0  # its median gap stands for TPOT
    assert found["vendor", "amd", "e2e"]["n"] == 1 and found["vendor", "amd", "e2e"]["coverage_90"] == 1.0
    assert found["vendor", "amd", "e2e"]["median_ape"] == pytest.approx(0.1)
    assert found["engine age", "vllm from 0.11", "ttft"]["n"] == 2
    assert ("class", "dense", "throughput") not in found
