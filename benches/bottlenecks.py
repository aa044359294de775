"""Accuracy of the limit that `simulate` names: is it the resource whose increase by a fifth raises throughput most?

Each world is a random deployment, scheduler limits and load. The reference does not use the rule's own inputs: it
simulates hypothetical GPUs with a fifth more arithmetic, bandwidth or link, priced kernel by kernel, shorter host
times, and larger flags. `python benches/bottlenecks.py [--worlds 40] [--seed 1000]`.
"""

from __future__ import annotations

import argparse
import collections
import math
from collections.abc import Collection
from typing import Any

import numpy as np
from record import record

import kernelsight as ks

RELIEF = 1.2
DEPLOYMENTS = (
    ("llama-3.1-8b", "h100_sxm", 1, "vllm"),
    ("qwen3-32b", "h200_sxm", 2, "vllm"),
    ("qwen3-30b-a3b", "h100_sxm", 1, "sglang"),
    ("llama-3.1-70b", "h200_sxm", 4, "trtllm"),
    ("gpt-oss-120b", "b200_sxm", 1, "vllm"),
    ("qwen3-0.6b", "l4", 1, "vllm"),
    ("llama-3.1-8b", "a100_sxm", 2, "sglang"),
    ("qwen3-14b", "l40s", 2, "vllm"),
)
# a resource of the GPU: the columns of its row that grow
RATES = {
    "prefill compute": ("_flops_per_s",),
    "decode bandwidth": ("memory_bandwidth_bytes_per_s",),
    "link": ("link_bytes_per_s", "pcie_bytes_per_s"),
}


def world(random: np.random.Generator) -> dict[str, Any]:
    """Return the flags of a random deployment and of the lengths of its load."""
    model, gpu, tp, engine = DEPLOYMENTS[random.integers(len(DEPLOYMENTS))]
    prompt_tokens, output_tokens = int(2 ** random.uniform(5, 12.5)), int(2 ** random.uniform(3, 9.5))
    flags = {"model": model, "gpu": gpu, "tensor_parallel_size": tp, "engine": engine}
    flags |= {
        "input_len": prompt_tokens,
        "output_len": output_tokens,
        "range_ratio": float(random.choice([0.2, 0.8, 1.0])),
    }
    flags |= {"num_prompts": int(np.clip(200_000 // output_tokens, 150, 800)), "seed": int(random.integers(1000))}
    if random.random() < 0.5:
        flags["max_num_seqs"] = int(2 ** random.uniform(2, 9))
    if random.random() < 0.4:
        flags["max_num_batched_tokens"] = int(max(2 ** random.uniform(9, 14), flags.get("max_num_seqs", 1024) + 16))
    if random.random() < 0.4:
        flags["kv_cache_tokens"] = int((prompt_tokens + output_tokens) * 2 ** random.uniform(1.5, 7))
    return flags


def loaded(session: ks.Session, flags: dict[str, Any], random: np.random.Generator) -> dict[str, Any] | None:
    """Return flags with a random closed loop, or a rate near a closed loop's throughput; None: nothing is served."""
    if random.random() < 0.35:
        return flags | {"max_concurrency": int(2 ** random.uniform(0, 8.5))}
    closed_loop = session.what_if([flags | {"num_prompts": 120, "max_concurrency": 64}]).table("scenario_summary")
    capacity = closed_loop["request_throughput"][0].as_py()
    return flags | {"request_rate": float(capacity * 2 ** random.uniform(-1, 2.5))} if capacity else None


def with_faster_gpus(session: ks.Session, gpus: Collection[str]) -> None:
    """Add to the catalogue, for each of ``gpus`` and each resource of RATES, a GPU with a fifth more of it."""
    rows = []
    for row in session.table("gpus").to_pylist():
        if row["gpu"] in gpus:
            for resource, endings in RATES.items():
                more = {name: value * RELIEF for name, value in row.items() if value and name.endswith(endings)}
                rows.append({**row, **more, "gpu": f"{row['gpu']}+{resource}", "measured_as": row["gpu"]})
    session.extend("gpus", rows)


def quick_host_of(session: ks.Session) -> ks.Session:
    """Return a fork of the session whose host times are shorter by a factor of RELIEF."""
    quick_host = session.fork()
    quick_host.give(
        "host_overheads",
        [
            {name: value / RELIEF if name.endswith("_us") and value else value for name, value in row.items()}
            for row in session.table("host_overheads").to_pylist()
        ],
    )
    return quick_host


def throughput(session: ks.Session, flags: dict[str, Any]) -> float:
    """Return output tokens per second; 0 if nothing is served or the changed flags are invalid."""
    try:
        return session.what_if([flags]).table("scenario_summary")["output_throughput"][0].as_py() or 0.0
    except ks.KernelSightError:
        return 0.0


def gains(session: ks.Session, quick_host: ks.Session, flags: dict[str, Any], run: ks.Run) -> dict[str, float]:
    """Return the relative gain of throughput from a fifth more of each resource."""
    settings = run.table("deployment_settings").to_pylist()[0]
    summary = run.table("scenario_summary").to_pylist()[0]
    relieved = {resource: {"gpu": f"{flags['gpu']}+{resource}"} for resource in RATES}
    if flags["tensor_parallel_size"] == 1:
        del relieved["link"]
    if "request_rate" in flags:
        relieved["arrivals"] = {"request_rate": flags["request_rate"] * RELIEF}
    relieved["KV cache"] = {"kv_cache_tokens": int(summary["kv_cache_tokens"] * RELIEF)}
    relieved["seats"] = {"max_num_seqs": math.ceil(settings["max_num_seqs"] * RELIEF)}
    relieved["token budget"] = {"max_num_batched_tokens": math.ceil(settings["max_num_batched_tokens"] * RELIEF)}
    before = summary["output_throughput"]
    gain_of = {resource: throughput(session, flags | change) / before - 1.0 for resource, change in relieved.items()}
    return gain_of | {"host": throughput(quick_host, flags) / before - 1.0}


def main() -> None:
    """Print each world whose limit is not the best resource, and counts of worlds by result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    arguments = parser.parse_args()
    session = ks.connect()
    session.progress = None
    with_faster_gpus(session, {gpu for _, gpu, *_ in DEPLOYMENTS})
    quick_host = quick_host_of(session)
    counts: collections.Counter[str] = collections.Counter()
    seed = arguments.seed
    while counts["worlds"] < arguments.worlds:
        random = np.random.default_rng(seed)
        seed += 1
        try:
            flags = loaded(session, world(random), random)
            run = session.simulate(**flags) if flags else None
        except ks.KernelSightError:
            continue  # a deployment that cannot run has no limit
        if run is None or not run.summary["completed"]:
            continue
        gain_of, named_limit = gains(session, quick_host, flags, run), run.summary["limit"]
        best = max(gain_of, key=gain_of.get)
        counts["worlds"] += 1
        counts["best"] += best == named_limit
        # within 0.01 of the largest gain, or a tenth of it
        is_close = named_limit is not None and gain_of[named_limit] >= gain_of[best] - max(0.01, 0.1 * gain_of[best])
        counts["best or close"] += is_close or (named_limit is None and gain_of[best] < 0.01)
        counts[f"truth: {best}"] += 1
        if best != named_limit:
            largest = sorted(gain_of.items(), key=lambda item: -item[1])[:3]
            print(
                seed - 1, flags["model"], flags["gpu"], f"limit {named_limit};", *(f"{k} {v:+.1%}" for k, v in largest)
            )
    for name, count in counts.items():
        print(f"{name:<28}{count}")
    if arguments.record:
        figures = {"worlds": counts["worlds"], "right": counts["best"], "seed": arguments.seed}
        record("limits", figures, f"python benches/bottlenecks.py --worlds {arguments.worlds} --seed {arguments.seed}")


if __name__ == "__main__":
    main()
