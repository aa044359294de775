"""Samples of results about speed, rates and the server: counts of steps, and predicted times, without clocks."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import kernelsight as ks

LLAMA = {"model": "llama-3.1-8b", "gpu": "h100_sxm"}


def work(**load: Any) -> dict[str, float]:
    """Return the numbers of steps and preemptions of a simulation."""
    with ks.connect() as session:
        (totals,) = session.simulate(**LLAMA, **load).table("replica_totals").to_pylist()
    return {name: float(totals[name]) for name in ("steps", "preemptions")}


def speed_serving() -> dict[str, float]:
    """Return the numbers of steps and preemptions of 500 requests."""
    return work(request_rate=20.0, num_prompts=500, input_len=256, output_len=256)


def speed_million() -> dict[str, float]:
    """Return the numbers of steps and preemptions of the first 20,000 requests of the bench."""
    import million

    load = {name: value for name, value in million.LOAD.items() if name not in LLAMA}
    return work(**load, num_prompts=20_000)


def speed_sweep() -> dict[str, float]:
    """Return the output throughput of the first scenarios of the bench's grid."""
    import sweep

    with ks.connect() as session:
        rows = session.sweep(sweep.grid(9, requests=64)).summary.to_pylist()
    return {f"concurrency {row['max_concurrency']}": row["output_throughput"] for row in rows}


def speed_waits() -> dict[str, float]:
    """Return a latency of each of two timed commands."""
    with ks.connect() as session:
        run = session.simulate(
            model="qwen3-14b", gpu="h100_sxm", request_rate=20.0, input_len=256, output_len=256, num_prompts=100
        )
        step = session.predict(model="qwen3-14b", gpu="h100_sxm", context_len=1000)
    return {"ttft p50 ms": run.summary["ttft_ms"]["p50"], "step us": step.total_us}


def speed_kernels() -> dict[str, float]:
    """Return the number of rows and mean latency of the bench's first deployments."""
    import speed

    with ks.connect() as session:
        table = speed.deployments(2)
        session.give("deployments", table)
        kernels = session.table("kernel_latencies")
    return {"rows": float(kernels.num_rows), "mean us": float(np.mean(kernels["latency_us"].to_numpy()))}


def rates() -> dict[str, float]:
    """Return the highest rate of the bench's first deployment, and its range."""
    import rates as bench

    source = random.Random(0)
    with ks.connect() as session:
        row = bench.drawn(source)
        (alone,) = session.sweep([row | {"max_concurrency": 1, "num_prompts": 16}]).summary.to_pylist()
        (answer,) = session.find_rates([row], {"tpot_p90_ms": 2.0 * alone["tpot_p50_ms"]}).to_pylist()
    return {name: answer[name] for name in ("max_request_rate", "rate_low", "rate_high")}


def capacity() -> dict[str, float]:
    """Return the capacities of the recorded deployments with the largest errors."""
    import capacity as bench
    from record import read

    with ks.connect() as session:
        rows = [
            bench.capacity_at(session, row["flags"], row["rate"]) for row in read("capacity")["figures"]["farthest"][:2]
        ]
    return {f"capacity {number}": row["capacity"] for number, row in enumerate(rows)}


def limits() -> dict[str, float]:
    """Return the gain of throughput from each resource for a fixed deployment."""
    import bottlenecks as bench

    with ks.connect() as session:
        session.progress = None
        flags = {**LLAMA, "num_prompts": 150, "input_len": 256, "output_len": 64, "max_concurrency": 64}
        flags |= {"tensor_parallel_size": 1}
        bench.with_faster_gpus(session, {flags["gpu"]})
        run = session.simulate(**flags)
        gain_of = bench.gains(session, bench.quick_host_of(session), flags, run)
    return {resource: gain for resource, gain in gain_of.items() if gain > -1.0}  # -1: invalid change


def predicted_for_clients(streams: int) -> dict[str, float]:
    """Return predicted percentiles for the server bench's requests, all sent at once."""
    import server

    requests = server.drawn(streams, streams)
    lengths = [(each.prompt_tokens, each.output_tokens) for each in requests]
    lines = [
        f'{{"arrival_s": 0.0, "prompt_tokens": {prompt}, "output_tokens": {output}}}\n' for prompt, output in lengths
    ]
    with ks.connect() as session, tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        trace.write_text("".join(lines), encoding="utf-8")
        times = server.predicted(session, trace)
    return {
        f"{metric} p{which}": value for metric, percentiles in times.items() for which, value in percentiles.items()
    }


def design() -> dict[str, float]:
    """Return the loss, and its slopes, of the first GPU that the guide's program starts from."""
    import design as bench

    names: dict[str, Any] = {"print": lambda words: None}
    exec(compile(bench.program().split("for start in")[0], str(bench.GUIDE), "exec"), names)
    with names["s"]:
        loss, slopes = names["loss"](np.log((3.35, 989.0)))
    return {"loss": float(loss)} | dict(zip(names["FACTS"], map(float, slopes), strict=True))


def server_times() -> dict[str, float]:
    """Return predicted times of 256 streams."""
    return predicted_for_clients(256)


def server_kept() -> dict[str, float]:
    """Return predicted times of 16 streams."""
    return predicted_for_clients(16)


def server_steps() -> dict[str, float]:
    """Return step times of decode batches."""
    with ks.connect() as session:
        times = session.step_times(**LLAMA)
    return {f"{count} sequences": float(times([(1, 1000)] * count).latency_us) for count in (1, 8, 64)}


def sizes() -> dict[str, float]:
    """Return price, rate, GPUs and replicas of the answer to a fixed `size` question, without tuning."""
    with ks.connect() as session:
        chosen = session.size(
            **{"model": "qwen3-8b", "gpus": ["l40s", "h100_sxm"], "prices": {"l40s": 0.9, "h100_sxm": 2.4}},
            **{"input_len": 1024, "output_len": 64, "rate": 20.0, "slo": {"ttft_p90_ms": 1000.0, "tpot_mean_ms": 40.0}},
            **{"max_gpus": 1, "tune": False, "confidence": 0.5},
        ).chosen
    return {name: float(chosen[name]) for name in ("rate", "price_per_hour", "gpus", "instances")}


def sizes_limits() -> dict[str, float]:
    """Return the gain of the highest rate from a fifth more of each resource, for a fixed deployment."""
    import sizes as bench

    question = {"model": "qwen3-8b", "input_len": 1024, "output_len": 64, "slo": {"tpot_mean_ms": 40.0}}
    with ks.connect() as session:
        bench.with_faster_gpus(session, ["h100_sxm"])
        row = {"gpu": "h100_sxm", "tensor_parallel_size": 1}
        return bench.rates_with_more(session, bench.quick_host_of(session), question, row)


def sensitivities() -> dict[str, float]:
    """Return elasticities of a fixed scenario with respect to facts of its GPU."""
    load = {"request_rate": 20.0, "num_prompts": 64, "input_len": 256, "output_len": 64}
    facts = ("memory_bandwidth_bytes_per_s", "bf16_flops_per_s")
    with ks.connect() as session:
        derivatives = {fact: session.gradient("tpot_p50_ms", fact, **LLAMA, **load) for fact in facts}
    return {fact: each.elasticity for fact, each in derivatives.items()}
