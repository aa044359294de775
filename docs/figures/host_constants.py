"""Table of the host-time constants that ship, from the catalogue."""

from __future__ import annotations

import csv

import record

from figures.text import table


def fitted() -> str:
    """Table of the fitted host-time constants in `host_overheads` for the newest engine versions."""
    with (record.ROOT / "kernelsight" / "catalog" / "host_overheads.csv").open(encoding="utf-8") as file:
        overheads = list(csv.DictReader(file))
    newest = {row["engine"]: row for row in overheads}
    dependent = next(row for row in overheads if row["engine"] == "trtllm" and row["launch_gap_us"])
    vllm, sglang, trtllm = (newest[name] for name in ("vllm", "sglang", "trtllm"))
    with (record.ROOT / "kernelsight" / "catalog" / "gpus.csv").open(encoding="utf-8") as file:
        gaps = {row["gpu"]: row["kernel_gap_us"] for row in csv.DictReader(file)}

    with (record.ROOT / "kernelsight" / "catalog" / "recipes.csv").open(encoding="utf-8") as file:
        delays = {row["recipe"]: row["request_delay_ms"] for row in csv.DictReader(file)}

    def ms(us: str) -> str:
        return f"{float(us) / 1000:g} ms"

    half = sglang["exposed_requests_half"]
    rows = [
        [
            "GPU idle time between two kernels, inside CUDA graphs too",
            f"{gaps['h100_sxm']} µs on Hopper, {gaps['b200_sxm']} µs on Blackwell (`gpus.kernel_gap_us`; published, not fitted). {vllm['launch_gap_us']} µs on vLLM everywhere, seen on B200. {dependent['launch_gap_us']} µs from TensorRT-LLM {dependent['from_version']} on, whose dependent launches are on by default: fitted on B200, for its own groups too",
        ],
        [
            f"each running request, in every step, on SGLang and TensorRT-LLM; *n* requests cost *n* / (1 + *n* / {half}) times that",
            f"{sglang['exposed_per_request_us']} µs",
        ],
        [
            "each running request, in every step, and each step, on vLLM (its sampler is counted as kernels)",
            f"{vllm['per_request_us']} and {vllm['step_base_us']} µs of host time, hidden with asynchronous scheduling; from a published measurement and two campaigns",
        ],
        [
            "the same on SGLang and on TensorRT-LLM's newest PyTorch back end, in addition to the exposed time above",
            f"{sglang['per_request_us']} and {sglang['step_base_us']} µs, {trtllm['per_request_us']} and {trtllm['step_base_us']} µs, hidden; from their sources and published measurements of parts, not fitted",
        ],
        [
            "each launch outside CUDA graphs, those inside experts and attention included (`node_launches`): in every step with prompts on TensorRT-LLM and on SGLang before 0.5.10, above the captured sizes on vLLM",
            f"{vllm['per_eager_launch_us']} µs of host time, parallel to the GPU",
        ],
        [
            "each request: HTTP, queues, first response",
            f"{ms(vllm['request_us'])} on vLLM, {ms(trtllm['request_us'])} on TensorRT-LLM, {ms(sglang['request_us'])} on SGLang",
        ],
        [
            "each prompt token, if prompts are random tokens",
            f"{vllm['per_prompt_token_us']} µs; none for natural text",
        ],
        [
            "each request of InferenceX's runs on SGLang, beside that, by their recipe (`recipes.request_delay_ms`)",
            f"{delays['ix_sglang_delay']} ms, fitted on their own fifth; cause unknown, and not seen in other campaigns",
        ],
    ]
    return table(["cause", "figure"], rows)
