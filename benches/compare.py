"""Accuracy of `compare` on logs of simulated worlds with planted faults: cause named first, its size, false alarms.

``python benches/compare.py --worlds 200`` draws deployments, loads and one or two faults (changed kernels, host times,
flags or lengths), writes the client's log, compares it with the deployment without the faults, and counts: the planted
fault named first, its size within 20 %, and false alarms in worlds without a fault. With ``--steps`` the log also holds
engine steps, as forward-pass metrics or as vLLM's iteration details (which lack the context of decode), with 2 % noise.
``--noise 0.02`` adds independent noise to each request's TTFT and decode time; ``--kinds clean`` draws one kind alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from record import record

import kernelsight as ks
from kernelsight.comparison.log_replayer import LogReplayer
from kernelsight.comparison.replay import Variant, give_log
from kernelsight.laboratory.runs.run_classes import is_mixture

DEPLOYMENTS = (
    ({"model": "llama-3.1-8b", "gpu": "h100_sxm"}, 12.0),
    ({"model": "qwen3-32b", "gpu": "h100_sxm", "tensor_parallel_size": 2}, 4.0),
    ({"model": "qwen3-30b-a3b", "gpu": "h100_sxm", "tensor_parallel_size": 2}, 14.0),
    ({"model": "llama-3.1-70b", "gpu": "h200_sxm", "tensor_parallel_size": 4, "quantization": "fp8"}, 5.0),
    ({"model": "gpt-oss-120b", "gpu": "b200_sxm", "tensor_parallel_size": 2}, 14.0),
    ({"model": "llama-3.1-8b", "gpu": "a100_sxm", "engine": "sglang"}, 6.0),
)
KERNELS = {
    "gemm": ("prefill_gemm", "decode_gemm"),
    "prefill_attention": ("prefill_attention",),
    "decode_attention": ("decode_attention",),
    "moe": ("moe",),
    "communication": ("communication",),
}
KINDS = ("one", "one", "one", "two", "clean")
BLOCK = 16
NOISE = 0.02
ITERATION = (
    "Engine 000: Iteration({step}): {prompts} context requests, {chunk} context tokens, {decodes} generation requests, "
    "{decodes} generation tokens, iteration elapsed time: {ms:.3f} ms, GPU KV cache usage: 10.0%"
)


def faults_of(deployment: Mapping[str, Any]) -> list[str]:
    """Return the names of the faults that a deployment can have."""
    kernels = [name for name in KERNELS if name != "moe" or is_mixture(deployment["model"])]
    if deployment.get("tensor_parallel_size", 1) == 1:
        kernels.remove("communication")
    return [*kernels, "host", "host", "client", "enable_prefix_caching", "max_num_batched_tokens", "workload"]


def plant(random: np.random.Generator, name: str) -> tuple[str, float]:
    """Return a fault's name and a random size: a factor on kernel time, or ms; 0 if it has none."""
    if name in KERNELS:
        low, high = (0.7, 0.85) if random.random() < 0.4 else (1.2, 1.4)
        return name, float(random.uniform(low, high))
    return name, {"host": float(random.uniform(0.3, 2.0)), "client": 50.0}.get(name, 0.0)


def draw_load(random: np.random.Generator, rate: float, n: int, longer: float, shared: bool) -> pa.Table:
    """Return a log's requests: lognormal lengths (times ``longer``), Poisson arrivals, prefixes if ``shared``."""
    from kernelsight.comparison.replay import LOAD, conformed

    arrival = np.cumsum(random.exponential(1.0 / (rate * random.uniform(0.4, 0.9)), n))
    prompt = np.clip(random.lognormal(6.6, 0.6, n), 64, 8000) * longer
    prompt = np.maximum(prompt.astype(np.int64), 32)
    output = np.clip(random.lognormal(4.9, 0.5, n), 8, 1000).astype(np.int64)
    columns = {"load_id": [LOAD] * n, "request_id": np.arange(n), "arrival_s": arrival - arrival[0]}
    columns |= {"prompt_tokens": prompt, "output_tokens": output}
    if shared:
        prefix = random.integers(0, 4, n)
        blocks = prompt // BLOCK
        last_block = np.cumsum(blocks)
        lists = [
            [1000 * p + b if b < 24 else 10_000 + o - b for b in range(k)]
            for p, k, o in zip(prefix.tolist(), blocks.tolist(), last_block.tolist(), strict=True)
        ]
        columns |= {"hash_ids": pa.array(lists, pa.list_(pa.int64())), "hash_block_tokens": np.full(n, BLOCK)}
    return conformed(columns)


def steps_of(session: ks.Session, load: pa.Table, truth: Variant) -> dict[str, np.ndarray]:
    """Return the engine steps of a world by column: counts of requests and tokens, context, and duration in us."""
    with session.fork() as fork:
        give_log(fork, load, [truth])
        fork.compute("request_events", "steps")
        steps, events = fork.table("steps"), fork.table("request_events")
    start, end = (steps[name].to_numpy() for name in ("start_ns", "end_ns"))
    done = events["finish_ns"].is_valid().to_numpy(zero_copy_only=False)
    tokens_of = {name: events[name].to_numpy(zero_copy_only=False)[done] for name in ("prompt_tokens", "cached_tokens")}
    moments = {name: events[f"{name}_ns"].to_numpy(zero_copy_only=False)[done].astype(np.int64)
               for name in ("scheduled", "first_token", "finish")}  # fmt: skip
    begin, (first, last) = (
        np.searchsorted(start, moments["scheduled"]),
        (np.searchsorted(end, moments[name]) for name in ("first_token", "finish")),
    )
    prompts, read, decodes, context = (np.zeros(start.size) for _ in range(4))
    for b, f, z, prompt, cached in zip(
        begin, first, last, tokens_of["prompt_tokens"], tokens_of["cached_tokens"], strict=True
    ):
        prompts[b : f + 1] += 1
        read[b : f + 1] += cached + (prompt - cached) * np.arange(f + 1 - b) / max(f + 1 - b, 1)
        decodes[f + 1 : z + 1] += 1
        context[f + 1 : z + 1] += prompt + 1 + np.arange(max(z - f, 0))
    chunk = steps["prefill_tokens"].to_numpy()
    return {"prompts": np.where(chunk > 0, np.maximum(prompts, 1), 0), "chunk": chunk, "read": np.where(chunk, read, 0),
            "decodes": steps["decode_tokens"].to_numpy(), "context": context, "us": (end - start) / 1e3}  # fmt: skip


def write_steps(path: Path, kind: str, steps: Mapping[str, np.ndarray], random: np.random.Generator) -> Path:
    """Write engine steps as forward-pass metrics, or as the log of vLLM."""
    lines = []
    us = steps["us"] * np.exp(NOISE * random.standard_normal(steps["us"].size))
    for step in range(us.size):
        prompts, chunk, read, decodes, context = (
            int(steps[name][step]) for name in ("prompts", "chunk", "read", "decodes", "context")
        )
        if kind == "fpm":
            scheduled = {"num_prefill_requests": prompts, "sum_prefill_tokens": chunk, "sum_prefill_kv_tokens": read}
            scheduled |= {"num_decode_requests": decodes, "sum_decode_kv_tokens": context}
            row = {"version": 1, "worker_id": "a", "dp_rank": 0, "counter_id": step + 1, "wall_time": us[step] / 1e6}
            lines.append(json.dumps(row | {"scheduled_requests": scheduled}))
        else:
            sizes = {"step": step, "prompts": prompts, "chunk": chunk, "decodes": decodes, "ms": us[step] / 1e3}
            at = 1_790_000_000 + float(us[: step + 1].sum()) / 1e6
            stamp = f"{np.datetime64(int(at * 1e6), 'us')}Z "
            lines.append(stamp + ITERATION.format(**sizes))
    path.write_text("\n".join(lines) + "\n")
    return path


def world(
    session: ks.Session, random: np.random.Generator, names: list[str], n: int, kind: str, noise: float
) -> dict[str, Any]:
    """Return the planted faults of one random world and what `compare` answers about its log."""
    number = int(random.integers(len(DEPLOYMENTS)))
    flags, rate = DEPLOYMENTS[number]
    possible = faults_of(flags)
    count = {"clean": 0, "one": 1, "two": 2}[names[0]]
    chosen = [str(name) for name in random.choice(sorted(set(possible)), count, replace=False)] if count else []
    planted = dict(plant(random, name) for name in chosen)
    longer = 1.2 if "workload" in planted else 1.0
    load = draw_load(random, rate, n, longer, "enable_prefix_caching" in planted)
    factors = {part: size for name, size in planted.items() for part in KERNELS.get(name, ())}
    other = {"enable_prefix_caching": False} if "enable_prefix_caching" in planted else {}
    if "max_num_batched_tokens" in planted:
        other["max_num_batched_tokens"] = 2048
        flags = {**flags, "max_num_batched_tokens": 8192}
    variant = Variant({**flags, **other}, factors, planted.get("host", 0.0) * 1e3)
    truth = LogReplayer(session, load).serve([variant])[0]
    delay = planted.get("client", 0.0)
    # from a separate generator, so that a world is the same without noise
    blur = np.exp(noise * np.random.default_rng(random.bit_generator.seed_seq.spawn(1)[0]).standard_normal((2, n)))
    ttft_ms = truth.ttft_ms * blur[0]
    e2e_ms = ttft_ms + (truth.e2e_ms - truth.ttft_ms) * blur[1] if noise else truth.e2e_ms
    log = pa.table(
        {
            "arrival_s": load["arrival_s"], "prompt_tokens": load["prompt_tokens"],
            "output_tokens": load["output_tokens"], "ttft_ms": ttft_ms + delay,
            "e2e_ms": e2e_ms + delay, "ttft_clock": ["client_send"] * n,
            **({"hash_ids": load["hash_ids"], "hash_block_tokens": load["hash_block_tokens"]}
               if load["hash_ids"].null_count < n else {}),
        }
    )  # fmt: skip
    described = None
    if "workload" in planted:
        mean = {"input_len": load["prompt_tokens"], "output_len": load["output_tokens"]}
        described = {"request_rate": n / load["arrival_s"][-1].as_py(), "num_prompts": n}
        described |= {key: int(np.mean(values.to_numpy())) for key, values in mean.items()}
        described["input_len"] = int(described["input_len"] / longer)
    with tempfile.TemporaryDirectory() as folder:
        steps: list[Path] = []
        if kind != "none":
            steps.append(write_steps(Path(folder) / "steps", kind, steps_of(session, load, variant), random))
        started = time.process_time()
        comparison = session.compare(requests=log, deployment={**flags}, stated=described, steps=steps)
        answer = comparison.summary
    return {
        "deployment": number, "planted": planted, "causes": answer["causes"], "verdict": answer["verdict"],
        "first": answer["parts"][0]["part"], "suspects": answer["suspects"][:2],
        "miss_ms": answer["e2e_ms"]["measured"] - answer["e2e_ms"]["predicted"],
        "cpu_s": time.process_time() - started,
    }  # fmt: skip


# names of causes by planted fault
NAMES = {"client": "client", "front_end": "client", "prompt_tokens": "workload", "output_tokens": "workload"}


def ranked_causes(row: Mapping[str, Any]) -> list[str]:
    """Return the causes in order of importance: causes, then settings that are likely, then the first part."""
    causes = ["workload" if one["kind"] == "load" else NAMES.get(one["name"], one["name"]) for one in row["causes"]]
    settings = [each["setting"] for each in row["suspects"] if each["evidence"] in ("likely", "impossible")]
    order = [*causes, *settings, row["first"]]
    return ["workload", *order] if row["first"] == "workload" else order


def is_right(row: Mapping[str, Any]) -> bool:
    """Return whether the first causes, as many as were planted, contain every planted fault."""
    first = list(dict.fromkeys("gemm" if name.endswith("_gemm") else name for name in ranked_causes(row)))
    return set(row["planted"]) <= set(first[: len(row["planted"])])


def is_sized(row: Mapping[str, Any]) -> bool | None:
    """Return whether sizes of planted factors and times are within 20 %; None if no fault has a size."""
    verdicts = []
    for name, size in row["planted"].items():
        cause = next((one for one in row["causes"] if one["name"] in (name, f"decode_{name}", f"prefill_{name}")), None)
        value = None if cause is None else cause["value"]
        if name in KERNELS:
            verdicts.append(value is not None and abs(np.log(value) / np.log(size) - 1.0) <= 0.2)
        elif name in ("host", "client"):
            verdicts.append(value is not None and abs(value / size - 1.0) <= 0.2)
    return all(verdicts) if verdicts else None


def main() -> None:
    """Compare random worlds and print the table by fault; record it with ``--record``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", choices=("none", "fpm", "iterations"), default="none")
    parser.add_argument("--noise", type=float, default=0.0, help="standard deviation of the logarithm of each time")
    parser.add_argument("--kinds", nargs="+", choices=sorted(set(KINDS)), default=KINDS)
    parser.add_argument("-o", "--output", type=Path, help="write every world as a line of JSON")
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    options = parser.parse_args()
    rows = []
    with ks.connect() as session:
        for number in range(options.worlds):
            random = np.random.default_rng([options.seed, number])
            kind = options.kinds[number % len(options.kinds)]
            row = {"kind": kind} | world(session, random, [kind], options.requests, options.steps, options.noise)
            rows.append(row)
            if options.output:
                with options.output.open("a") as file:
                    file.write(json.dumps(row, default=float) + "\n")
    by_fault: dict[str, list[dict]] = defaultdict(list)
    for row in rows:
        by_fault[row["kind"] if row["kind"] != "one" else next(iter(row["planted"]))].append(row)
        if row["kind"] == "one":
            by_fault["one fault"].append(row)
    print(f"{'fault':24} {'worlds':>6} {'named first':>12} {'size in 20 %':>12} {'CPU-s':>6}")
    for name in sorted(by_fault):
        members = by_fault[name]
        right, sized = shares_of(name, members)
        size = "-" if sized is None else f"{sized:.0%}"
        label = f"{name} (no cause named)" if name == "clean" else name
        print(f"{label:24} {len(members):6} {right:12.0%} {size:>12} {np.mean([row['cpu_s'] for row in members]):6.1f}")
    if options.record:
        rows_by_kind = {"one": by_fault["one fault"], "two": by_fault["two"], "clean": by_fault["clean"]}
        shares = {name: shares_of(name, members) for name, members in rows_by_kind.items()}
        figures = {
            "worlds": {name: len(members) for name, members in rows_by_kind.items()},
            "named": {name: right for name, (right, _) in shares.items()},
            "sized": {name: sized for name, (_, sized) in shares.items()},
        }
        log = "steps" if options.steps != "none" else "noise" if options.noise else "plain"
        words = f"--worlds {options.worlds} --seed {options.seed} --noise {options.noise:g} --steps {options.steps}"
        record(f"compare_{log}", figures, f"python benches/compare.py {words}")


def shares_of(name: str, rows: list[dict[str, Any]]) -> tuple[float, float | None]:
    """Return the shares of worlds whose faults are all named first (clean worlds: without a cause) and sized."""
    right = [not row["causes"] for row in rows] if name == "clean" else [is_right(row) for row in rows]
    sized = [value for row in rows if row["planted"] and (value := is_sized(row)) is not None]
    return float(np.mean(right)), float(np.mean(sized)) if sized else None


if __name__ == "__main__":
    main()
