"""Whether closed loops of any size end with an answer or with one sentence: ``python benches/closed_loops.py``.

    python benches/closed_loops.py [--cases N] [--seed S] [--from K]

Draws loads of users (1 to 5,000, pauses of 0 to 60 s, 1 to 10 turns, lengths fixed and drawn), a tenth of them with a
value that is none, and puts each to `size`, `what_if`, `find_rates` or the engines behind `serve`. A process of its own
answers them, so that a signal is counted and not suffered. Prints the cases that ended otherwise, and how all ended.
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import kernelsight as ks
from kernelsight.errors import KernelSightError
from kernelsight.server.live_engines import LiveEngines
from kernelsight.serving.runs.simulation_inputs import inputs_of_session, pool_of
from kernelsight.session import Session

DEPLOYMENT = {"model": "qwen3-0.6b", "max_model_len": 4096, "max_num_batched_tokens": 512}
# what is asked, and how often of 20 times; the first is by far the cheapest
VERBS = {"what_if": 13, "serve": 4, "size": 2, "find_rates": 1}
WRONG = {
    "max_concurrency": (0, -1, 0.4, math.nan),
    "num_prompts": (0, -3),
    "think_time_s": (-1.0, math.nan, 1e300, math.inf),
    "think_time_cv": (-0.5, math.nan),
    "concurrency_ramp_s": (-1.0, math.inf),
    "num_turns": (0, -2),
    "input_len": (0, -5),
    "output_len": (0, -5),
    "max_num_seqs": (0, -1),
    "kv_cache_tokens": (0, 1, 40),
    "seed": (-1,),
}
# seconds after which a search answers with the best so far
SIZE_S = 1.0


def drawn(source: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a verb, and the flags of a random deployment and closed loop."""
    (verb,) = source.choices(list(VERBS), list(VERBS.values()))
    turns = source.choice((1, 1, 2, 3, 5, 10))
    row = {"gpu": source.choice(("l4", "h100_sxm")), "max_num_seqs": source.choice((1, 4, 16, 256))}
    row |= {"max_concurrency": round(math.exp(source.uniform(0.0, math.log(5_000))))}
    row |= {"num_prompts": source.choice((1, 7, 40, 200)), "seed": source.randrange(1_000)}
    row |= {"input_len": source.choice((1, 20, 300, 900)), "output_len": source.choice((1, 2, 12, 60))}
    if turns > 1:
        row |= {"num_turns": turns, "think_time_s": source.choice((0.0, 0.01, 1.0, 20.0, 60.0))}
        row |= source.choice(({}, {"think_time_cv": 0.0}, {"think_time_cv": 3.0}))
    row |= source.choice(({}, {}, {"concurrency_ramp_s": source.choice((0.0, 0.5, 90.0))}))
    row |= source.choice(({}, {"range_ratio": 0.3}, {"input_len_cv": 0.6, "output_len_cv": 0.6}))
    row |= source.choice(({}, {"kv_cache_tokens": source.choice((512, 3_000))}, {"prefix_len": 64}))
    if source.random() < 0.1:
        name = source.choice(sorted(WRONG))
        row[name] = source.choice(WRONG[name])
    return verb, DEPLOYMENT | row


def ended(session: Session, verb: str, row: dict[str, Any]) -> str:
    """Put a case, and return how it ended: ``answer``, ``refused``, or what is wrong with the answer."""
    try:
        return {"what_if": _what_if, "serve": _serve, "size": _size, "find_rates": _find_rates}[verb](session, row)
    except KernelSightError as error:
        return "refused" if 10 < len(str(error)) < 1_200 else f"a refusal of {len(str(error))} letters"


def _what_if(session: Session, row: dict[str, Any]) -> str:
    (served,) = session.what_if([row]).table("scenario_summary").to_pylist()
    if served["status"] != "served":
        return "refused"
    most = served["requests"]
    return "answer" if 0 <= served["completed"] <= most else f"{served['completed']} of {most} requests completed"


def _size(session: Session, row: dict[str, Any]) -> str:
    flags = {name: value for name, value in row.items() if name not in ("gpu", "max_concurrency", "num_prompts")}
    slo = {"ttft_p95_ms": 400.0} if row["seed"] % 2 else {"tpot_p95_ms": 30.0}
    question = {"gpus": [row["gpu"]], "users": row["max_concurrency"], "slo": slo, "max_gpus": 2}
    found = session.size(**question, **flags, tune=row["seed"] % 3 == 0, time_limit=SIZE_S)
    wrong = [
        one for one in found.rows if one["users"] < 1 or one["instances"] < 1 or one["instances"] > question["users"]
    ]
    return f"rows {wrong[:1]}" if wrong or not found.answer.endswith(".") else "answer"


def _find_rates(session: Session, row: dict[str, Any]) -> str:
    flags = {name: row[name] for name in row if name not in ("max_concurrency", "concurrency_ramp_s", "num_prompts")}
    (found,) = session.find_rates([flags], {"ttft_p95_ms": 400.0}, tolerance=0.2).to_pylist()
    rate = found["max_request_rate"]
    return "answer" if rate is None or rate > 0.0 else f"a rate of {rate}"


def _serve(session: Session, row: dict[str, Any]) -> str:
    """Send the users' requests to live engines, each user's next one when the earlier has all its tokens."""
    flags = {name: row[name] for name in row if name not in ("max_concurrency", "concurrency_ramp_s")}
    run = session.what_if([flags | {"request_rate": 1.0}])
    inputs = inputs_of_session(run.table)
    if not inputs.scenarios:
        return "refused"
    users = int(min(row["max_concurrency"], 24))
    engines = LiveEngines(pool_of(inputs, inputs.scenarios[0]["deployment_id"]), max(users, 1))
    waiting, now_us = {}, 0.0
    for _ in range(max(users, 1)):
        now_us += 100.0
        slot, tokens = engines.add(now_us, row["input_len"], row["output_len"])
        if slot >= 0:
            waiting[slot] = row["output_len"]
        _count(waiting, tokens)
    for _ in range(50_000):
        if not waiting:
            return "answer"
        now_us = max(now_us + 1.0, engines.next_us)
        if math.isinf(now_us):
            return f"{len(waiting)} requests are never served"
        _count(waiting, engines.advance(now_us))
    return f"{len(waiting)} requests are not served in 50,000 steps"


def _count(waiting: dict[int, int], tokens: Any) -> None:
    for _, slot, count in tokens:
        waiting[slot] -= count
        if waiting[slot] <= 0:
            del waiting[slot]


def answer(cases: int, seed: int, first: int) -> None:
    """Answer cases from number ``first`` on; print each before it is put, and how it ended."""
    with ks.connect() as session:
        for number in range(first, cases):
            verb, row = drawn(random.Random(f"{seed} {number}"))
            print(f"{number} {verb} {row}", flush=True)
            print(ended(session, verb, row), flush=True)


def main() -> int:
    """Run all cases in processes of their own, a new one after each signal; return 1 where a case ended otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer:
        answer(arguments.cases, arguments.seed, arguments.first)
        return 0
    first, counts, began_s = arguments.first, Counter(), time.monotonic()
    while first < arguments.cases:
        words = ["--answer", "--cases", arguments.cases, "--seed", arguments.seed, "--from", first]
        with subprocess.Popen([sys.executable, __file__, *map(str, words)], stdout=subprocess.PIPE, text=True) as child:
            for line in child.stdout:
                case, how = line.strip(), next(child.stdout, "").strip()
                verb, first = case.split()[1], int(case.split()[0]) + 1
                counts[verb, how if how in ("answer", "refused") else "WRONG"] += 1
                if how not in ("answer", "refused"):
                    print(f"{case}\n  {how or 'a signal or an exception'}", flush=True)
        if child.returncode == 0:
            break
    for (verb, how), count in sorted(counts.items()):
        print(f"{verb:10} {how:8} {count:6,}")
    print(f"{sum(counts.values()):,} cases in {time.monotonic() - began_s:,.0f} s")
    return int(any(how == "WRONG" for _, how in counts))


if __name__ == "__main__":
    sys.exit(main())
