"""The separate process that runs AIConfigurator: one prediction per run, as JSON lines in and out.

Started by ``kernelsight.evaluation.runs.peer``; the only place where code of that package is
imported. Its newest database of the GPU and engine is used, measured rows first, then with its own transfers.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

MODES = ("SILICON", "HYBRID")
# models whose config it ships under another name
NAMES = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
}


def answers() -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return a function from a run to the TTFT and TPOT in ms that the package predicts, or the reason it cannot."""
    from aiconfigurator_core.sdk import config, perf_database
    from aiconfigurator_core.sdk.backends.factory import get_backend
    from aiconfigurator_core.sdk.config_builders import build_model_config
    from aiconfigurator_core.sdk.models import get_model

    @cache
    def database(gpu: str, engine: str, mode: str) -> Any:
        version = perf_database.get_latest_database_version(gpu, engine)
        return perf_database.get_database_view(gpu, engine, version, database_mode=mode)

    @cache
    def model(
        name: str,
        engine: str,
        tp: int,
        ep: int,
        gemm: str | None,
        moe: str | None,
        attention: str | None,
        kv: str | None,
    ) -> Any:
        return get_model(name, build_model_config(tp, 1, 1, tp // ep, ep, gemm, kv, attention, moe), engine)

    def predict(run: Mapping[str, Any], mode: str, lanes: tuple[str | None, ...]) -> tuple[float, float]:
        load = config.RuntimeConfig(
            batch_size=max(run["max_concurrency"] // run["workers"], 1), isl=run["isl"], osl=run["osl"]
        )
        served = model(NAMES.get(run["model"], run["model"]), run["engine"], run["tp"], run["ep"], *lanes)
        summary = get_backend(run["engine"]).run_agg(
            served, database(run["gpu"], run["engine"], mode), load, ctx_tokens=run["step_tokens"]
        )
        row = summary.get_summary_df().iloc[0]
        return float(row["ttft"]), float(row["tpot"])

    def answer(run: Mapping[str, Any]) -> dict[str, Any]:
        key, reason = {"run_id": run["run_id"], "asked": run["asked"]}, ""
        # formats by the run's labels, then attention in bf16, then by the model's config; KV cache as stated if it can
        labels = (run.get("gemm_label"), run.get("expert_label"))
        lanes = ((*labels, None), (*labels, "bfloat16"), (None, None, None))
        lanes_tried = dict.fromkeys((*each, kv) for kv in (run.get("kv_cache"), None) for each in lanes)
        for mode, lanes in ((mode, lanes) for mode in MODES for lanes in lanes_tried):
            try:
                ttft, tpot = predict(run, mode, lanes)
                return key | {"ttft_ms": ttft, "tpot_ms": tpot, "mode": mode}
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
        return key | {"reason": reason}

    return answer


def main() -> None:
    """Write one JSON line for each JSON line read."""
    logging.disable(logging.CRITICAL)
    answer = answers()
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
