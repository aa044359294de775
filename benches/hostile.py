"""Search for wrong results that look plausible: random scenarios against relations that must hold, stress, extremes.

python benches/hostile.py [serve] [memory] [bytes] [extremes] [--cases 300] [--seed 0] [-o FILE.json]

serve: random scenarios and their variants (twice the rate, more KV cache, a faster GPU, longer outputs), sums, order of
percentiles, Little's law. memory: a thousand what_if calls. bytes: equal answers under other hash seeds, numbers of
threads, and from several threads. extremes: an answer or an error of one sentence. Prints one row per relation: numbers
of cases checked and of cases that violate it, and the worst.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kernelsight.errors import KernelSightError
from kernelsight.present.output import as_text
from kernelsight.session import Session, connect

MODELS = ("qwen3-0.6b", "qwen3-8b", "llama-3.1-8b", "gpt-oss-20b", "qwen3-30b-a3b", "gemma-2-9b", "llama-3.1-70b")
GPUS = ("h100_sxm", "h200_sxm", "b200_sxm", "a100_sxm", "l40s", "gb200")
FASTER = 1.5
RATES = ("memory_bandwidth_bytes_per_s", "bf16_flops_per_s", "fp16_flops_per_s", "fp8_flops_per_s", "fp4_flops_per_s")
METRICS = ("ttft", "tpot", "itl", "e2e", "queue")
# any change shifts a schedule by a step: a relation between two simulations holds within this
SHIFT = 0.02
Row = Mapping[str, Any]
Finding = tuple[str, float, str]  # relation, size of its violation (0: holds), case


def drawn(source: random.Random) -> dict[str, Any]:
    """Return the flags of one random scenario with an open load."""
    row: dict[str, Any] = {"model": source.choice(MODELS), "gpu": source.choice(GPUS), "seed": source.randrange(1000)}
    row |= {"tensor_parallel_size": source.choice((1, 1, 2, 4)), "engine": source.choice(("vllm", "sglang", "trtllm"))}
    row |= {"data_parallel_size": source.choice((1, 1, 1, 2)), "pipeline_parallel_size": source.choice((1, 1, 1, 2))}
    row |= {"num_prompts": source.choice((40, 120, 300)), "request_rate": round(10 ** source.uniform(-1, 2), 3)}
    row |= {"input_len": int(10 ** source.uniform(1, 3.9)), "output_len": int(10 ** source.uniform(0.3, 2.8))}
    row |= {"max_num_seqs": source.choice((8, 64, 256)), "max_num_batched_tokens": source.choice((512, 2048, 8192))}
    row |= {"kv_cache_tokens": int((row["input_len"] + row["output_len"] + 64) * source.choice((1, 2, 8, 100)) * 1.2)}
    if source.random() < 0.5:
        row |= {"range_ratio": round(source.uniform(0.1, 1), 2)}
    if source.random() < 0.3:
        row |= {"burstiness": round(source.uniform(0.2, 3), 2)}
    if source.random() < 0.3:
        row |= {"prefix_len": source.randrange(1, 500), "num_prefixes": source.randrange(1, 5)}
    if source.random() < 0.2:
        row |= {"max_concurrency": source.choice((1, 4, 32))}
    return row


def variants(row: Row) -> dict[str, dict[str, Any]]:
    """Return the scenario and variants that differ in one flag each, by name."""
    return {
        "base": dict(row),
        "rate": row | {"request_rate": row["request_rate"] * 2},
        "cache": row | {"kv_cache_tokens": row["kv_cache_tokens"] * 4},
        "gpu": row | {"gpu": row["gpu"] + "_faster"},
        "output": row | {"output_len": row["output_len"] * 2},
    }


def add_faster_gpus(session: Session) -> None:
    """Add a GPU beside each of GPUS with FASTER times its arithmetic and memory bandwidth."""
    row_of = {row["gpu"]: row for row in session.table("gpus").to_pylist()}
    faster = [
        # measured_as: both use the GPU's measurements
        row_of[gpu]
        | {"gpu": f"{gpu}_faster", "measured_as": row_of[gpu]["measured_as"] or gpu}
        | {name: row_of[gpu][name] and row_of[gpu][name] * FASTER for name in RATES}
        for gpu in GPUS
    ]
    session.extend("gpus", faster)


def of_one(row: Row, name: str) -> Iterator[Finding]:
    """Yield the findings of one scenario's summary: orders, sums and bounds."""
    statistics = ("mean", "p50", "p90", "p99")
    for metric in METRICS:
        ordered = [row[f"{metric}_{part}_ms"] for part in statistics]
        if None not in ordered:
            worst = max(a - b for a, b in zip(ordered[1:], ordered[2:], strict=False))
            yield "p50 <= p90 <= p99", max(worst, 0.0), name
            yield "no latency is negative", max(-min(ordered), 0.0), name
    for part in statistics:
        queue, first, whole = (row[f"{metric}_{part}_ms"] for metric in ("queue", "ttft", "e2e"))
        if None not in (queue, first, whole):
            yield "queue <= TTFT <= E2E", max(queue - first, first - whole, 0), name
    shares = [row[f"{part}_share"] for part in ("front_end", "queue", "prefill", "decode")]
    if None not in shares:
        yield "queue, prefill and decode are all of the time", _off(sum(shares), 1.0), name
    yield "requests x duration", _off(row["request_throughput"] * row["duration_s"], row["completed"]), name
    yield "all requests are served or refused", float(row["completed"] > row["requests"]), name
    yield "KV cache is never over-full", max((row["peak_kv_share"] or 0) - 1, 0), name
    for share in ("prefix_cache_hit_rate", "preempted_share", "measured_share"):
        yield f"{share} is a share", max(-(row[share] or 0), (row[share] or 0) - 1, 0), name
    per_gpu = row["output_throughput_per_gpu"]
    yield "throughput of a GPU x GPUs", _off(per_gpu * row["gpus"], row["output_throughput"]), name
    if row["capacity_high"] is not None:
        yield "throughput <= capacity", max(row["request_throughput"] / row["capacity_high"] - 1, 0), name
    for column in ("mean_power_w", "energy_per_output_token_j", "energy_per_request_j", "capacity"):
        value, low, high = (row[f"{column}{end}"] for end in ("", "_low", "_high"))
        if None not in (value, low, high):
            yield "an interval holds its mean", max(low - value, value - high, 0), name
    if row["mean_power_w"] is not None and row["energy_per_request_j"] is not None:
        joules = row["energy_per_request_j"] * row["completed"]
        yield "energy = power x time", _off(joules, row["mean_power_w"] * row["duration_s"]), name
    if row.get("range_ratio") is None and row.get("output_len") is not None:
        tokens = row["completed"] * row["output_len"]
        yield "output tokens x duration", _off(row["output_throughput"] * row["duration_s"], tokens), name


def between(rows: Mapping[str, Row], name: str) -> Iterator[Finding]:
    """Yield the findings between a scenario and its variants that complete the same requests."""
    base = rows["base"]

    def less(relation: str, small: Row, large: Row, column: str, slack: float = SHIFT) -> Iterator[Finding]:
        if small["completed"] == large["completed"]:
            a, b = small[column], large[column]
            yield relation, max(a / max(b, 1e-9) - 1 - slack, 0.0), name

    # preemption breaks this order in engines too: what is admitted at once has its first token before it is preempted
    if base.get("max_concurrency") is None and not base["preemptions"] + rows["rate"]["preemptions"]:
        yield from less("twice the rate: TTFT is not lower", base, rows["rate"], "ttft_mean_ms")
        yield from less("twice the rate: the run is not longer", rows["rate"], base, "duration_s")
    yield from less("more KV cache: the run is not longer", rows["cache"], base, "duration_s")
    yield from less("more KV cache: TTFT is not higher", rows["cache"], base, "ttft_mean_ms")
    yield from less("a faster GPU: the run is not longer", rows["gpu"], base, "duration_s")
    yield from less("a faster GPU: E2E is not higher", rows["gpu"], base, "e2e_mean_ms")
    if not base["preemptions"] + rows["gpu"]["preemptions"]:
        yield from less("a faster GPU: TPOT is not higher", rows["gpu"], base, "tpot_mean_ms")
    yield from less("longer outputs: the run is not shorter", base, rows["output"], "duration_s")
    yield from less("longer outputs: E2E is not lower", base, rows["output"], "e2e_mean_ms")


def in_steps(run: Any, name: str) -> Iterator[Finding]:
    """Yield the findings of a run's steps: Little's law, and kernel times against GPU time."""
    summary = run.table("scenario_summary").to_pylist()[0]
    kernels = run.table("kernel_breakdown").to_pylist()
    yield "shares of kernels add up to 1", _off(sum(row["share"] for row in kernels), 1.0), name
    events = run.table("request_metrics").to_pylist()
    spent_s = sum(row["e2e_ms"] for row in events if row["e2e_ms"] is not None) / 1e3
    yield "mean E2E is that of the requests", _off(spent_s / len(events) * 1e3, summary["e2e_mean_ms"]), name
    steps = run.table("steps").to_pylist()
    held_s = sum((row["running"] + row["waiting"]) * (row["end_ns"] - row["start_ns"]) for row in steps) / 1e9
    # requests that come or leave within a step are counted for all of it, or for none
    slack_s = max(row["end_ns"] - row["start_ns"] for row in steps) / 1e9 * len(events)
    # before its first step a request is at the front end, which no step counts
    host = run.table("host_settings").to_pylist()[0]
    prompts = sum(row["prompt_tokens"] for row in events)
    front_s = (host["request_us"] * len(events) + host["per_prompt_token_us"] * prompts) / 1e6
    beyond_s = max(held_s - spent_s - slack_s, spent_s - held_s - front_s - slack_s, 0.0)
    yield "Little's law", beyond_s / spent_s, name
    busy_s = summary["gpu_s"] + summary["host_exposed_s"]
    yield (
        "GPU and host time are the time of the steps",
        _off(busy_s, sum(row["end_ns"] - row["start_ns"] for row in steps) / 1e9),
        name,
    )


def _off(value: float, expected: float) -> float:
    """Return the relative difference of a value from what it must be; 0 below 1e-6."""
    gap = abs(value - expected) / max(abs(expected), 1e-9)
    return gap if gap > 1e-6 else 0.0


def serve(cases: int, seed: int) -> list[Finding]:
    """Return the findings of random cases and their variants, in one grid, and of some runs with their steps."""
    source, findings = random.Random(seed), []
    with connect() as session:
        add_faster_gpus(session)
        rows = [drawn(source) for _ in range(cases * 5 // 4)]
        # the price changes nothing: it carries the number of the case and variant
        cases_of_grid = [
            (number, kind, flags) for number, row in enumerate(rows) for kind, flags in variants(row).items()
        ]
        grid = [flags | {"price_per_gpu_hour": float(place)} for place, (_, _, flags) in enumerate(cases_of_grid)]
        summaries = session.what_if(grid).summary.to_pylist()
        by_case: dict[int, dict[str, Row]] = {}
        for row in summaries:
            number, kind, _ = cases_of_grid[int(row["price_per_gpu_hour"])]
            by_case.setdefault(number, {})[kind] = row
        served = [
            number
            for number, by_variant in by_case.items()
            if all(row["status"] == "served" and row["completed"] for row in by_variant.values())
        ]
        print(
            f"{len(rows)} cases drawn, {len(served)} accepted with all variants, {len(summaries)} scenarios",
            file=sys.stderr,
        )
        for number in served:
            name = json.dumps(rows[number])
            for row in by_case[number].values():
                findings += of_one(row, name)
            findings += between(by_case[number], name)
        for number in served[: max(len(served) // 4, 1)]:
            row = rows[number]
            if row["pipeline_parallel_size"] == row["data_parallel_size"] == 1:
                findings += in_steps(session.simulate(**row), json.dumps(row))
    return findings


# --- the program under load -------------------------------------------------------------------------------------------

SMALL = {"model": "qwen3-0.6b", "gpu": "l4", "num_prompts": 8, "input_len": 64, "output_len": 8}


def memory() -> list[Finding]:
    """Return the growth of memory over a thousand what_if calls in one session, each with another grid."""

    def held() -> float:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20

    with connect() as session:
        marks = []
        for number in range(1000):
            grid = SMALL | {"max_concurrency": [1 + number % 50, 100 + number], "max_num_seqs": 8 + number % 100}
            assert session.what_if(grid).summary.num_rows == 2
            if number % 100 == 99:
                marks.append(held())
                print(f"{marks[-1]:.0f} MiB resident after {number + 1:,} calls", file=sys.stderr, flush=True)
    grown = (marks[-1] - marks[1]) / (len(marks) - 2)  # MiB a hundred calls, after the first ones filled the caches
    return [("what_if: MiB more for a hundred calls, above 1", max(grown - 1.0, 0.0), f"{grown:.2f} MiB")]


ANSWER = """
import hashlib, sys
import kernelsight as ks
with ks.connect() as s:
    load = {"num_prompts": 40, "input_len": 300, "output_len": 30, "range_ratio": 0.4}
    rows = [load | {"model": m, "gpu": g, "max_concurrency": c}
            for m in ("qwen3-0.6b", "gpt-oss-20b") for g in ("h100_sxm", "l40s") for c in (1, 7, 32)]
    found = s.what_if(rows)
    text = str(found.summary.to_pylist()) + str(found.table("kernel_breakdown").to_pylist())
print(hashlib.sha256(text.encode()).hexdigest())
"""


def same_bytes() -> list[Finding]:
    """Return whether answers are equal under other hash seeds and numbers of threads, and in threads."""
    answers = {}
    for seed, threads in (("0", "1"), ("1", "1"), ("77", "2"), ("random", "4")):
        counts = dict.fromkeys(
            ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"), threads
        )
        environment = os.environ | counts | {"PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, "-c", ANSWER], env=environment, capture_output=True, text=True, check=True
        )
        answers[f"hash seed {seed}, {threads} threads"] = run.stdout
    usual = next(iter(answers.values()))
    findings = [("the same bytes", float(answer != usual), name) for name, answer in answers.items()]

    def digest_of_answer(number: int) -> str:
        with connect() as session:
            return hashlib.sha256(
                str(session.what_if(SMALL | {"max_concurrency": [1, 4]}).summary.to_pylist()).encode()
            ).hexdigest()

    with ThreadPoolExecutor(8) as pool:
        digests = set(pool.map(digest_of_answer, range(24)))
    return [*findings, ("the same bytes in 8 threads", float(len(digests) != 1), "24 sessions")]


def extremes() -> list[Finding]:
    """Return a finding per extreme question: anything but an answer or an error of one sentence is wrong."""
    load = {"num_prompts": 4, "input_len": 64, "output_len": 8, "request_rate": 1.0}
    cases: dict[str, Callable[[Session], Any]] = {
        "2 M tokens of context": lambda s: s.predict(
            model="llama-3.1-8b", gpu="b200_sxm", phase="decode", batch_size=1, context_len=2_000_000
        ),
        "10^6 tokens of context, 64 stages": lambda s: s.predict(
            model="llama-3.1-405b",
            gpu="b200_sxm",
            pipeline_parallel_size=64,
            phase="prefill",
            input_len=1,
            context_len=100_000,
        ),
        "64 stages": lambda s: (
            s.simulate(model="llama-3.1-405b", gpu="h100_sxm", pipeline_parallel_size=64, **load).summary
        ),
        "10^4 GPUs, experts spread": lambda s: (
            s.simulate(
                model="deepseek-v3", gpu="h200_sxm", tensor_parallel_size=8, data_parallel_size=1000, **load
            ).summary
        ),
        "1,024 replicas of 8": lambda s: (
            s.simulate(
                model="qwen3-8b", gpu="h100_sxm", tensor_parallel_size=8, data_parallel_size=1024, **load
            ).summary
        ),
        "a step of 10^9 tokens": lambda s: s.predict(
            model="qwen3-8b", gpu="h100_sxm", phase="decode", batch_size=10**9, context_len=1
        ),
        "10^5 scenarios": lambda s: (
            s.what_if([SMALL | {"request_rate": 1 + number / 1000} for number in range(100_000)]).summary.num_rows
        ),
        "a rate of 10^9": lambda s: s.simulate(**SMALL, request_rate=1e9).summary,
        "a rate of 10^-6": lambda s: s.simulate(**SMALL, request_rate=1e-6).summary,
        "prompts of 10^6 tokens": lambda s: s.simulate(**SMALL | {"input_len": 10**6}, request_rate=1.0).summary,
    }
    findings = []
    for name, call in cases.items():
        started = time.monotonic()
        try:
            with connect() as session:
                outcome = f"answered: {str(call(session))[:60]}"
        except KernelSightError as error:
            outcome = f"refused: {error}"
        except Exception as error:
            outcome = f"traceback: {error!r}"
        print(f"{name}: {outcome:.160} ({time.monotonic() - started:.1f} s)", file=sys.stderr)
        findings.append(
            (
                "an answer or one sentence",
                float(outcome.startswith("traceback") or "\n" in outcome),
                f"{name}: {outcome}",
            )
        )
    return findings


def main() -> None:
    """Run the named parts, or all, and print one row per relation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=("serve", "memory", "bytes", "extremes", []), metavar="PART")
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    parts = {
        "serve": lambda: serve(arguments.cases, arguments.seed),
        "memory": memory,
        "bytes": same_bytes,
        "extremes": extremes,
    }
    findings = [finding for name in arguments.parts or parts for finding in parts[name]()]
    table: dict[str, dict[str, Any]] = {}
    for relation, violation, case in findings:
        row = table.setdefault(relation, {"relation": relation, "checked": 0, "broken": 0, "worst": 0.0, "case": ""})
        row["checked"] += 1
        row["broken"] += violation > 0
        if violation > row["worst"]:
            row |= {"worst": violation, "case": case}
    print(as_text(list(table.values()), ["relation", "checked", "broken", "worst"]))
    for row in table.values():
        if row["broken"]:
            print(f"{row['relation']}: {row['case']}")
    if arguments.output:
        arguments.output.write_text(json.dumps(list(table.values()), indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
