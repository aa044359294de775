"""Whether `size` finds what a search of everything finds, and how long both take: ``python benches/sizes.py``.

    python benches/sizes.py [--cases N] [--seed S] [--limits] [-o FILE.json]

Draws a model, two or three GPUs with prices, lengths, objectives and a rate; asks `size`, and then searches the highest
rate of every GPU, tensor-parallel size and size of a step in full. Prints in what share of cases the winner is the
same, or costs at most 2 % more than the cheapest of all, and CPU seconds of both. With --limits it asks instead whether
the limit that is named is the resource of which a fifth more raises the rate most: rates are searched on hypothetical
GPUs and flags.
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
# enough that no answer is worse than this is called the same
SAME = 1.02


def drawn(source: random.Random) -> dict[str, Any]:
    """Return a question of size."""
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


def everything(session: Session, asked: dict[str, Any]) -> tuple[float, str]:
    """Return the price per hour of the cheapest deployment of all, and which it is."""
    flags = {name: asked[name] for name in ("model", "input_len", "output_len")}
    grid = [
        flags | {"gpu": gpu, "tensor_parallel_size": tp} | ({"max_num_batched_tokens": tokens} if tokens else {})
        for gpu, tp, tokens in itertools.product(asked["gpus"], SIZES, (None, *STEP_TOKENS))
    ]
    best = (math.inf, "")
    for row, found in zip(grid, session.find_rates(grid, asked["slo"]).to_pylist(), strict=True):
        if found["max_request_rate"]:
            instances = math.ceil(asked["rate"] / found["max_request_rate"])
            price = instances * row["tensor_parallel_size"] * asked["prices"][row["gpu"]]
            name = f"{row['gpu']} TP {row['tensor_parallel_size']} {row.get('max_num_batched_tokens', '')}".strip()
            best = min(best, (price, name))
    return best


def rates_with_more(
    session: Session, quick_host: Session, asked: dict[str, Any], row: dict[str, Any]
) -> dict[str, float]:
    """Return by resource the highest rate of a chosen deployment with a fifth more of it, over its own, less 1."""
    flags = {name: asked[name] for name in ("model", "input_len", "output_len")}
    flags |= {name: row[name] for name in ("gpu", "tensor_parallel_size", "max_num_batched_tokens") if name in row}
    probe = session.what_if([{**flags, "request_rate": 1.0, "num_prompts": 1}])
    (settings,), (plan,) = (probe.table(name).to_pylist() for name in ("deployment_settings", "memory_plan"))
    more = {resource: {"gpu": f"{row['gpu']}+{resource}"} for resource in RATES}
    more["KV cache"] = {"kv_cache_tokens": int(plan["kv_cache_tokens"] * RELIEF)}
    for resource, name in (("seats", "max_num_seqs"), ("token budget", "max_num_batched_tokens")):
        more[resource] = {name: math.ceil(settings[name] * RELIEF)}
    grid = [flags, *(flags | change for change in more.values())]
    own, *rates = session.find_rates(grid, asked["slo"])["max_request_rate"].to_pylist()
    found = {resource: (rate or 0.0) / own - 1.0 for resource, rate in zip(more, rates, strict=True)}
    host = quick_host.find_rates([flags], asked["slo"])["max_request_rate"][0].as_py()
    return found | {"host": host / own - 1.0}


def main_limits(cases: int, source: random.Random) -> dict[str, int]:
    """Print and return in how many cases the named limit is the one of which a fifth more raises the rate most."""
    right = near = done = 0
    with ks.connect() as session:
        with_faster_gpus(session, sorted(PRICES))
        quick_host = quick_host_of(session)
        while done < cases:
            asked = drawn(source)
            row = session.size(max_gpus=SIZES[-1], tune=False, confidence=0.5, **asked).chosen
            if row is None:
                continue
            truth = rates_with_more(session, quick_host, asked, row)
            best = max(truth, key=truth.get)
            done += 1
            right += best == row["limit"]
            # rates are found to 1 %, twice
            near += truth[row["limit"]] >= truth[best] - 0.02
            print(
                asked["model"],
                row["gpu"],
                row["limit"],
                {name: f"{gain:+.1%}" for name, gain in truth.items()},
                flush=True,
            )
    print(f"{done} questions: the limit is the best of all in {right}, within 2 % of the rate in {near}")
    return {"cases": done, "right": right, "near": near}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=20, metavar="N", help="questions (default: 20)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of what is drawn (default: 0)")
    parser.add_argument("--limits", action="store_true", help="ask whether the named limits are right")
    parser.add_argument("-o", "--output", metavar="FILE", help="write figures as JSON")
    parser.add_argument("--record", action="store_true", help="keep the figures in benches/results/")
    arguments = parser.parse_args()
    source, found = random.Random(arguments.seed), []
    if arguments.limits:
        limits = main_limits(arguments.cases, source) | {"seed": arguments.seed}
        if arguments.record:
            words = f"--limits --cases {arguments.cases} --seed {arguments.seed}"
            record("sizes_limits", limits, f"python benches/sizes.py {words}")
        return
    with ks.connect() as session:
        while len(found) < arguments.cases:
            asked = drawn(source)
            started = time.process_time()
            answer = session.size(max_gpus=SIZES[-1], confidence=0.5, **asked)
            size_s = time.process_time() - started
            started = time.process_time()
            price, name = everything(session, asked)
            all_s = time.process_time() - started
            if answer.chosen is None and math.isinf(price):
                continue
            own = answer.chosen["price_per_hour"] if answer.chosen else math.inf
            chosen = answer.chosen or {"gpu": "none", "tensor_parallel_size": 0}
            tokens = chosen.get("max_num_batched_tokens", "")
            label = f"{chosen['gpu']} TP {chosen['tensor_parallel_size']} {tokens}".strip()
            found.append(
                {
                    "model": asked["model"],
                    "gpus": ",".join(asked["gpus"]),
                    "rate": asked["rate"],
                    "chosen": label,
                    "price": own,
                    "cheapest": name,
                    "its_price": price,
                    **{"same": own <= SAME * price or label == name, "size_cpu_s": size_s, "all_cpu_s": all_s},
                }
            )
            print(as_text(found[-1:], list(found[-1])).splitlines()[-1], flush=True)
    same = sum(row["same"] for row in found) / len(found)
    size_s, all_s = (sum(row[name] for row in found) / len(found) for name in ("size_cpu_s", "all_cpu_s"))
    print(f"{len(found)} questions: the same, or within 2 % of the cheapest of all, in {same:.1%}; ", end="")
    print(f"CPU seconds, mean: size {size_s:.1f}, everything {all_s:.1f}")
    if arguments.record:
        figures = {"cases": len(found), "seed": arguments.seed, "same": same}
        figures |= {"size_cpu_s": round(size_s, 1), "all_cpu_s": round(all_s, 1)}
        record("sizes", figures, f"python benches/sizes.py --cases {len(found)} --seed {arguments.seed}")
    if arguments.output:
        Path(arguments.output).write_text(json.dumps({"same": same, "rows": found}, indent=1))


if __name__ == "__main__":
    main()
