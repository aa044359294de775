"""Accuracy and CPU time of `size`, against a full search over all deployments: ``python benches/sizes.py``.

    python benches/sizes.py [--cases N] [--seed S] [--limits] [-o FILE.json]

Each case is a random model, two or three GPUs with prices, lengths, objectives and a rate. It runs `size`, then
searches the highest rate of every GPU, tensor-parallel size and step size. Prints the share of cases whose chosen
deployment is the same, or costs at most 2 % more than the cheapest, and CPU seconds of both. With --limits it checks
instead whether the limit that `size` names is the resource of which a fifth more raises the rate most, by searches on
hypothetical GPUs and flags.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import time
from pathlib import Path
from typing import Any

from bottlenecks import RATES, RELIEF, quick_host_of, with_faster_gpus
from record import record

import kernelsight as ks
from kernelsight.present.output import as_text
from kernelsight.session import Session
from kernelsight.sizing.tuning import STEP_TOKENS

MODELS = ("qwen3-8b", "qwen3-32b", "qwen3-32b-fp8", "llama-3.1-8b", "qwen3-14b")
PRICES = {"a100_sxm": 1.4, "h100_sxm": 2.4, "h200_sxm": 2.9, "b200_sxm": 4.6, "l40s": 0.9}
SIZES = (1, 2, 4)
# an answer of at most this times the lowest price counts as the same
SAME = 1.02


def drawn(source: random.Random) -> dict[str, Any]:
    """Return the arguments of a random `size` question."""
    gpus = source.sample(sorted(PRICES), source.choice((2, 3)))
    ttft, tpot = source.choice(("p90", "p95", "p99")), source.choice(("mean", "p90"))
    return {
        "model": source.choice(MODELS),
        "gpus": gpus,
        "prices": {gpu: round(PRICES[gpu] * source.uniform(0.7, 1.4), 2) for gpu in gpus},
        "input_len": source.choice((256, 1024, 2048, 4096)),
        "output_len": source.choice((64, 256, 500)),
        "slo": {
            f"ttft_{ttft}_ms": float(source.choice((500, 1000, 2000))),
            f"tpot_{tpot}_ms": float(source.choice((25, 40, 60))),
        },
        "rate": round(math.exp(source.uniform(math.log(1.0), math.log(100.0))), 1),
    }


def everything(session: Session, question: dict[str, Any]) -> tuple[float, str]:
    """Return the price per hour and the name of the cheapest of all deployments; inf and '' without one."""
    flags = {name: question[name] for name in ("model", "input_len", "output_len")}
    grid = [
        flags | {"gpu": gpu, "tensor_parallel_size": tp} | ({"max_num_batched_tokens": tokens} if tokens else {})
        for gpu, tp, tokens in itertools.product(question["gpus"], SIZES, (None, *STEP_TOKENS))
    ]
    cheapest = (math.inf, "")
    for row, answer in zip(grid, session.find_rates(grid, question["slo"]).to_pylist(), strict=True):
        if answer["max_request_rate"]:
            instances = math.ceil(question["rate"] / answer["max_request_rate"])
            price = instances * row["tensor_parallel_size"] * question["prices"][row["gpu"]]
            name = f"{row['gpu']} TP {row['tensor_parallel_size']} {row.get('max_num_batched_tokens', '')}".strip()
            cheapest = min(cheapest, (price, name))
    return cheapest


def rates_with_more(
    session: Session, quick_host: Session, question: dict[str, Any], row: dict[str, Any]
) -> dict[str, float]:
    """Return a deployment's relative gain of the highest rate from a fifth more of each resource."""
    flags = {name: question[name] for name in ("model", "input_len", "output_len")}
    flags |= {name: row[name] for name in ("gpu", "tensor_parallel_size", "max_num_batched_tokens") if name in row}
    probe = session.what_if([{**flags, "request_rate": 1.0, "num_prompts": 1}])
    (settings,), (plan,) = (probe.table(name).to_pylist() for name in ("deployment_settings", "memory_plan"))
    more = {resource: {"gpu": f"{row['gpu']}+{resource}"} for resource in RATES}
    more["KV cache"] = {"kv_cache_tokens": int(plan["kv_cache_tokens"] * RELIEF)}
    for resource, name in (("seats", "max_num_seqs"), ("token budget", "max_num_batched_tokens")):
        more[resource] = {name: math.ceil(settings[name] * RELIEF)}
    grid = [flags, *(flags | change for change in more.values())]
    rate_now, *rates = session.find_rates(grid, question["slo"])["max_request_rate"].to_pylist()
    gain_of = {resource: (rate or 0.0) / rate_now - 1.0 for resource, rate in zip(more, rates, strict=True)}
    host = quick_host.find_rates([flags], question["slo"])["max_request_rate"][0].as_py()
    return gain_of | {"host": host / rate_now - 1.0}


def main_limits(cases: int, source: random.Random) -> dict[str, int]:
    """Print and return the number of cases whose named limit raises the rate most, or within 2 % of the most."""
    right = near = done = 0
    with ks.connect() as session:
        with_faster_gpus(session, sorted(PRICES))
        quick_host = quick_host_of(session)
        while done < cases:
            question = drawn(source)
            row = session.size(max_gpus=SIZES[-1], tune=False, confidence=0.5, **question).chosen
            if row is None:
                continue
            gain_of = rates_with_more(session, quick_host, question, row)
            best = max(gain_of, key=gain_of.get)
            done += 1
            right += best == row["limit"]
            # each of two rates is found to 1 %
            near += gain_of[row["limit"]] >= gain_of[best] - 0.02
            print(
                question["model"],
                row["gpu"],
                row["limit"],
                {name: f"{gain:+.1%}" for name, gain in gain_of.items()},
                flush=True,
            )
    print(f"{done} questions: the limit is the best of all in {right}, within 2 % of the rate in {near}")
    return {"cases": done, "right": right, "near": near}


def main() -> None:
    """Compare `size` with the full search, print the cases, and record the shares with ``--record``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=20, metavar="N", help="questions (default: 20)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the random cases (default: 0)")
    parser.add_argument("--limits", action="store_true", help="check the named limits instead")
    parser.add_argument("-o", "--output", metavar="FILE", help="write figures as JSON")
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    arguments = parser.parse_args()
    source, rows = random.Random(arguments.seed), []
    if arguments.limits:
        limits = main_limits(arguments.cases, source) | {"seed": arguments.seed}
        if arguments.record:
            words = f"--limits --cases {arguments.cases} --seed {arguments.seed}"
            record("sizes_limits", limits, f"python benches/sizes.py {words}")
        return
    with ks.connect() as session:
        while len(rows) < arguments.cases:
            question = drawn(source)
            started = time.process_time()
            answer = session.size(max_gpus=SIZES[-1], confidence=0.5, **question)
            size_s = time.process_time() - started
            started = time.process_time()
            price, name = everything(session, question)
            all_s = time.process_time() - started
            if answer.chosen is None and math.isinf(price):
                continue
            chosen_price = answer.chosen["price_per_hour"] if answer.chosen else math.inf
            chosen = answer.chosen or {"gpu": "none", "tensor_parallel_size": 0}
            tokens = chosen.get("max_num_batched_tokens", "")
            label = f"{chosen['gpu']} TP {chosen['tensor_parallel_size']} {tokens}".strip()
            rows.append(
                {
                    "model": question["model"],
                    "gpus": ",".join(question["gpus"]),
                    "rate": question["rate"],
                    "chosen": label,
                    "price": chosen_price,
                    "cheapest": name,
                    "its_price": price,
                    **{"same": chosen_price <= SAME * price or label == name, "size_cpu_s": size_s, "all_cpu_s": all_s},
                }
            )
            print(as_text(rows[-1:], list(rows[-1])).splitlines()[-1], flush=True)
    same = sum(row["same"] for row in rows) / len(rows)
    size_s, all_s = (sum(row[name] for row in rows) / len(rows) for name in ("size_cpu_s", "all_cpu_s"))
    print(f"{len(rows)} questions: the same, or within 2 % of the cheapest of all, in {same:.1%}; ", end="")
    print(f"CPU seconds, mean: size {size_s:.1f}, everything {all_s:.1f}")
    if arguments.record:
        figures = {"cases": len(rows), "seed": arguments.seed, "same": same}
        figures |= {"size_cpu_s": round(size_s, 1), "all_cpu_s": round(all_s, 1)}
        record("sizes", figures, f"python benches/sizes.py --cases {len(rows)} --seed {arguments.seed}")
    if arguments.output:
        Path(arguments.output).write_text(json.dumps({"same": same, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
