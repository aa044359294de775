"""Worker process that runs AIConfigurator: one JSON line in and one out per prediction.

Started by ``kernelsight.laboratory.runs.peer``; the only place where that package is imported. Its newest database of
the GPU and engine is used: measured rows if there are any, else its own transfers.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

MODES = ("SILICON", "HYBRID")
# models whose config the package ships under another name
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

    def predict(run: Mapping[str, Any], mode: str, formats: tuple[str | None, ...]) -> tuple[float, float]:
        load = config.RuntimeConfig(
            batch_size=max(run["max_concurrency"] // run["workers"], 1), isl=run["isl"], osl=run["osl"]
        )
        model_object = model(NAMES.get(run["model"], run["model"]), run["engine"], run["tp"], run["ep"], *formats)
        summary = get_backend(run["engine"]).run_agg(
            model_object, database(run["gpu"], run["engine"], mode), load, ctx_tokens=run["step_tokens"]
        )
        row = summary.get_summary_df().iloc[0]
        return float(row["ttft"]), float(row["tpot"])

    def answer(run: Mapping[str, Any]) -> dict[str, Any]:
        key, reason = {"run_id": run["run_id"], "asked": run["asked"]}, ""
        # formats by the run's labels, then with attention in bf16, then by the model's config; KV cache as stated first
        labels = (run.get("gemm_label"), run.get("expert_label"))
        formats = ((*labels, None), (*labels, "bfloat16"), (None, None, None))
        candidates = dict.fromkeys((*each, kv) for kv in (run.get("kv_cache"), None) for each in formats)
        for mode, formats in ((mode, formats) for mode in MODES for formats in candidates):
            try:
                ttft, tpot = predict(run, mode, formats)
                return key | {"ttft_ms": ttft, "tpot_ms": tpot, "mode": mode}
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
        return key | {"reason": reason}

    return answer


def main() -> None:
    """Read runs as JSON lines from standard input, and write one JSON line with the prediction of each."""
    logging.disable(logging.CRITICAL)
    answer = answers()
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
