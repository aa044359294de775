"""Reader of the folder of one inference-perf run: a manifest of the server, and a report per load stage."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import read_text
from kernelsight.files.budget import ROWS
from kernelsight.scenario.launch.deployments import read_launch_line

CAMPAIGN = "inference_perf"
STAGES = "stage_*_lifecycle_metrics.json"
MANIFEST, CLIENT = "manifests.yaml", "config.yaml"
GPUS = {"nvidia-h100-80gb": "h100_sxm"}
# share of the requested rate below which a stage is saturated: the server or the client could not follow
FOLLOWED = 0.95


def read(folder: Path) -> tuple[list[dict[str, Any]], list[tuple[str, int]]]:
    """Return one row of ``measured_runs`` per stage, and no exclusions.

    InvalidInput: a manifest that names no known server or GPU.
    """
    manifest = _text(folder / MANIFEST)
    client = _text(folder / CLIENT)
    line = read_launch_line(manifest)
    accelerator = re.search(r"gke-accelerator:\s*(\S+)", manifest)
    if accelerator is None or accelerator[1] not in GPUS:
        raise InvalidInput(f"{folder / MANIFEST} names no GPU that is known; known: {', '.join(GPUS)}.")
    flags = dict(line.flags)
    server = {name: flags.pop(name, None) for name in ("model", "engine", "engine_version", "gpu")}
    workers = {
        name: int(match[1]) if (match := re.search(rf"{name}:\s*(\d+)", client)) else 1
        for name in ("num_workers", "worker_max_concurrency", "output_len")
    }
    rows = []
    for number, path in enumerate(sorted(folder.glob(STAGES))):
        rows.append(_run(json.loads(_text(path)), number, server, flags, workers, GPUS[accelerator[1]]))
    return rows, []


def _text(path: Path) -> str:
    return read_text(
        path, lambda problem: InvalidInput(f"file {path} {problem}; give the whole folder of the run."), ROWS
    )


def _run(
    report: dict[str, Any],
    number: int,
    server: dict[str, Any],
    line_flags: dict[str, Any],
    workers: dict[str, int],
    gpu: str,
) -> dict[str, Any]:
    load, successes = report["load_summary"], report["successes"]
    e2e, ttft = (successes["latency"][name] for name in ("request_latency", "time_to_first_token"))
    osl = workers["output_len"]
    # arrivals at equal intervals; no temperature: vLLM uses top_p 0.9 of Llama's generation_config.json
    flags = {"sampling": "top_p", **line_flags, "burstiness": 1e4, "input_len": round(successes["prompt_len"]["mean"])}
    limit = workers["num_workers"] * workers["worker_max_concurrency"]
    saturated = load["achieved_rate"] < FOLLOWED * load["requested_rate"]
    return {
        "run_id": f"{CAMPAIGN}/{number}",
        "campaign": CAMPAIGN,
        "model": server["model"],
        "gpu": gpu,
        "tp": line_flags.get("tensor_parallel_size") or 1,
        "pp": 1,
        "dp": 1,
        "ep": 1,
        "engine": server["engine"],
        "engine_version": server["engine_version"],
        "isl": round(successes["prompt_len"]["mean"]),
        "osl": osl,
        "num_prompts": successes["count"],
        "max_concurrency": limit,
        "workers": 1,
        "request_rate": load["requested_rate"],
        "stated_flags": json.dumps(flags | {"request_rate": load["requested_rate"]}),
        "ttft_ms": 1e3 * ttft["mean"],
        "ttft_p90_ms": 1e3 * ttft["p90"],
        "ttft_p99_ms": 1e3 * ttft["p99"],
        # the client counts two entries per token, so its own time per token is half of this
        "tpot_ms": 1e3 * (e2e["mean"] - ttft["mean"]) / (osl - 1),
        "e2e_mean_ms": 1e3 * e2e["mean"],
        "e2e_p90_ms": 1e3 * e2e["p90"],
        "e2e_p99_ms": 1e3 * e2e["p99"],
        # unless saturated, the throughput is the load
        "output_throughput": successes["throughput"]["requests_per_sec"] * osl if saturated else None,
        "source": "kubernetes-sigs/inference-perf, example of a run",
    }
