"""Judges `size` by brute force: ``python benches/sizes.py [--cases N] [--seed S] [--only N ...]``.

Draws planners' questions (by rate, users and sessions; dense models and mixtures of experts; one to five GPUs with
prices), answers each by `size` with empty caches, and by a search of everything that fits, enumerated here: GPUs,
tensor-parallel sizes 1 to 8, for mixtures data and expert parallelism too, five step budgets, formats of the KV cache
where the question asks for them, 0 to 6 prefill and 0 to 6 decode replicas with two step budgets. The search of
everything begins with what the chosen deployment costs when it is searched and examined alone, and looks for all that
are cheaper. It leaves one out only where the rate from which it is cheaper misses an objective in a simulation (first a
short one from an empty start, whose median decides), or the confidence, or where the throughput of its own closed loops
shows that it is dearer; the others are searched, and the cheapest with the question's confidence is the truth. Prints
the cost of both, CPU seconds, and whether the chosen deployment alone holds with the instances that `size` states.

Bests stay in ``results/sizes_bests.json`` with the digests of the program that found them, and are not searched again;
figures count those of another program. Ctrl-C ends a run with the questions so far.

With --round-trip it writes every deployment that `size` shows for these questions in each form of deployment file, and
counts those that are read again as the same deployment.

With --limits it checks instead whether the limit that `size` names is the resource of which a fifth more raises the
rate most, by searches on hypothetical GPUs and flags.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bottlenecks import RATES, RELIEF, quick_host_of, with_faster_gpus
from record import RESULTS, SIMULATION, digest, record

import kernelsight as ks
from kernelsight.errors import InvalidInput
from kernelsight.scenario.flags import FLAGS, LOAD_FLAGS
from kernelsight.scenario.launch.written import FORMS, deployment_files
from kernelsight.scenario.objectives import objectives_of
from kernelsight.scenario.plan import plan_rows
from kernelsight.scenario.scenario_rows import deployment_rows, model_rows, normalise, resolve_names
from kernelsight.session import Session
from kernelsight.sizing.probability import Chances, chances_of
from kernelsight.sweeps.capacity import missed
from kernelsight.sweeps.find_rate import open_trials
from kernelsight.sweeps.rate_intervals import RATES as SHARES
from kernelsight.sweeps.rate_intervals import Rated, intervals_at
from kernelsight.sweeps.rate_search import FULL, ROUGH, HighestRate, RateSearch
from kernelsight.sweeps.steady import LEAST_REQUESTS
from kernelsight.sweeps.trial_cache import trial_cache

DENSE = ("llama-3.1-8b", "qwen3-8b", "qwen3-14b", "qwen3-32b-fp8", "llama-3.3-70b", "llama-3.1-70b-fp8")
MIXTURES = ("gpt-oss-120b", "gpt-oss-20b", "qwen3-30b-a3b", "qwen3-235b-a22b-fp8")
PRICES = {"a100_sxm": 1.4, "h100_sxm": 2.4, "h200_sxm": 2.9, "b200_sxm": 4.6, "l40s": 0.9, "mi300x": 2.2}
KINDS = ("rate", "users", "sessions")
SIZES = (1, 2, 4, 8)
BUDGETS, BUDGETS_OF_SPLITS = (None, 1024, 2048, 4096, 16384), (None, 16384)
MOST_REPLICAS = 6
# a cost of at most this times the best counts as the best
NEAR = 1.05
# requests of a first short run
SOON = 600
COUNTS = ("replicas", "prefill_replicas", "decode_replicas")
BESTS = RESULTS / "sizes_bests.json"
# factor by which a rough rate may be below the exact one
DOUBT = 1.08
# one question, answered in a process of its own with empty caches: its answer and CPU seconds after the imports
ALONE = """
import json, sys, time
import kernelsight as ks
started = time.process_time()
answer = ks.size(**json.loads(sys.argv[1]))
print(json.dumps({"answer": answer.as_dict(), "cpu_s": time.process_time() - started}, default=str))
"""


def drawn(source: random.Random) -> dict[str, Any]:
    """Return the arguments of a random planner's question for `size`."""
    mixture = source.random() < 0.35
    gpus = source.sample(sorted(PRICES), source.choice((1, 2, 2, 3, 3, 4, 5)))
    ttft, gap = source.choice(("p90", "p95", "p99")), source.choice(("tpot_mean", "tpot_p90", "tpot_p95", "itl_p95"))
    question = {
        "model": source.choice(MIXTURES if mixture else DENSE),
        "gpus": gpus,
        "prices": {gpu: round(PRICES[gpu] * source.uniform(0.7, 1.4), 2) for gpu in gpus},
        "input_len": source.choice((300, 800, 1500, 3000, 4500, 8000)),
        "output_len": source.choice((64, 150, 300, 600)),
        "slo": {
            f"ttft_{ttft}_ms": float(source.choice((500, 1000, 2000))),
            f"{gap}_ms": float(source.choice((25, 40, 60))),
        },
        "max_gpus": source.choice((4, 8, 8)),
    }
    kind = source.choice(("rate", "rate", "rate", "users", "sessions"))
    if kind == "users":
        question |= {"users": round(math.exp(source.uniform(math.log(20), math.log(3000))))}
        question |= source.choice(({}, {"think_time_s": 20.0, "num_turns": 5}, {"think_time_s": 5.0, "num_turns": 3}))
    else:
        question |= {"rate": round(math.exp(source.uniform(math.log(1.0), math.log(150.0))), 1)}
        if kind == "sessions":
            question |= {"num_turns": 4, "think_time_s": 15.0, "rate": round(question["rate"] / 4, 2)}
    if source.random() < 0.2:
        question |= {"search": {"kv_cache_dtype": ["auto", "fp8"]}}
    if source.random() < 0.3:
        question |= {"confidence": source.choice((0.5, 0.8, 0.95))}
    return question


def flags_of(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of a question's load and model, with a first rate or user."""
    names = ("model", "input_len", "output_len", "num_turns", "think_time_s")
    flags = {name: question[name] for name in names if name in question} | {"num_prompts": LEAST_REQUESTS}
    return flags | ({"max_concurrency": 1} if "users" in question else {"request_rate": 1.0})


def everything(question: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the flags of every deployment, and the GPUs of its instance."""
    mixture, most = question["model"] in MIXTURES, question["max_gpus"]
    formats = question.get("search", {}).get("kv_cache_dtype", [None])
    parallel = [{"tensor_parallel_size": tp} for tp in SIZES if tp <= most]
    if mixture:
        parallel += [
            {"tensor_parallel_size": tp, "data_parallel_size": dp, "expert_parallel_size": tp * dp}
            for tp, dp in itertools.product(SIZES, SIZES)
            if 1 < tp * dp <= most
        ]
    replicas = range(1, MOST_REPLICAS + 1)
    for gpu, sizes, kv in itertools.product(question["gpus"], parallel, formats):
        flags = {"gpu": gpu, **sizes} | ({"kv_cache_dtype": kv} if kv else {})
        gpus = sizes["tensor_parallel_size"] * sizes.get("data_parallel_size", 1)
        for budget in BUDGETS:
            yield flags | ({"max_num_batched_tokens": budget} if budget else {}), gpus
        for prefill, decode, budget in itertools.product(replicas, replicas, BUDGETS_OF_SPLITS):
            if gpus * (prefill + decode) <= most:
                split = {"prefill_replicas": prefill, "decode_replicas": decode}
                budgets = {"max_num_batched_tokens": budget} if budget else {}
                yield flags | split | budgets, gpus * (prefill + decode)


class Everything:
    """All deployments of a question in one session, their bounds, rates and chances, each computed once."""

    def __init__(self, session: Session, question: Mapping[str, Any], rows: Sequence[tuple[dict[str, Any], int]]):
        self.session, self.question = session, question
        self.objectives, self.asked = objectives_of(question["slo"]), question.get("users") or question["rate"]
        self.rows = [flags_of(question) | flags for flags, _ in rows]
        self.prices = [gpus * question["prices"][flags["gpu"]] for flags, gpus in rows]
        self.plan = plan_rows(session, self.rows, on_fault="collect")
        self.trials, cache = open_trials(session, self.plan), trial_cache(session)
        self.searches: dict[int, RateSearch] = {}
        seen = set()
        for index, scenario in enumerate(self.plan.scenarios):
            name = scenario and scenario["scenario_id"]
            if name in self.trials.able and name not in seen:
                self.searches[index] = RateSearch(self.trials, name, self.objectives, cache)
                seen.add(name)

    def cost(self, index: int, rate: float) -> float:
        """Return the cost per hour of the instances that serve the question, each up to ``rate``."""
        return max(math.ceil(self.asked / rate * (1.0 - 1e-9)), 1) * self.prices[index] if rate > 0.0 else math.inf

    def chances(self, rated: Rated, shares: Sequence[float], low: float | None = None) -> Chances:
        """Return the chances of the objectives at shares of a rate."""
        ((at_rates),) = intervals_at(self.session, self.plan, [rated], [shares])
        return chances_of(at_rates, self.objectives, rated.rate, low)

    def at_confidence(self, index: int, highest: HighestRate) -> float:
        """Return the cost with the question's confidence; infinite where no load has it."""
        chances = self.chances(Rated.of(self.rows[index], highest), SHARES, highest.low)
        return self.cost(index, highest.rate * chances.share_for(self.question.get("confidence", 0.9)))

    def may_cost_less(self, index: int, most: float) -> bool:
        """Return whether simulations at the rate from which a deployment costs less than ``most`` keep objectives."""
        if math.isinf(most):
            return True
        rate = self.asked / max(math.ceil(most / self.prices[index] * (1.0 - 1e-9)) - 1, 1) / DOUBT
        if self.fails_soon(index, rate) or not self.searches[index].may_keep(rate):
            return False
        at_rate = self.chances(Rated(self.rows[index], rate), [1.0])
        return at_rate.at(1.0) >= self.question.get("confidence", 0.9) - 1e-6

    def fails_soon(self, index: int, rate: float) -> bool:
        """Return whether the median of a short run from an empty start, which flatters a rate, misses an objective."""
        closed = "users" in self.question
        load = {"max_concurrency": max(round(rate), 1)} if closed else {"request_rate": rate}
        requests = max(SOON, 3 * round(rate) if closed else 0)
        (trial,) = self.trials.serve(self.plan.scenarios[index]["scenario_id"], requests, [0], **load)
        return trial.lost or missed(trial, [one for one in self.objectives if one.metric != "itl"]) is not None

    def cheapest(self, known: float) -> tuple[float, dict[str, Any] | None]:
        """Return the lowest cost with the confidence, and its flags; None where nothing costs less than ``known``."""
        best, at = known, None
        for index in sorted(self.searches, key=self.prices.__getitem__):
            if self.prices[index] >= best:
                break
            if not self.may_cost_less(index, best) or self.cost(index, self.searches[index].capacity.most) >= best:
                continue
            found = self.searches[index].run(ROUGH)
            if found.rate is None or self.cost(index, found.rate * DOUBT) >= best:
                continue
            cost = self.at_confidence(index, found)
            # a rough answer is only a reason to search in full what may be the best
            if cost <= best * NEAR:
                exact = self.searches[index].run(FULL, found.rate)
                cost = self.at_confidence(index, exact) if exact.rate else math.inf
                if cost < best:
                    best, at = cost, index
        load = flags_of(self.question)
        return best, None if at is None else {name: v for name, v in self.rows[at].items() if name not in load}


def truth_of(question: Mapping[str, Any], cost: float, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cheapest of everything, as kept or found now; ``cost``: of a deployment that holds, with ``flags``."""
    kept = json.loads(BESTS.read_text()) if BESTS.exists() else {}
    name, program = json.dumps(question, sort_keys=True), {part: digest(part) for part in SIMULATION}
    if name not in kept:
        started = time.process_time()
        with ks.connect() as session:
            everyone = Everything(session, question, list(everything(question)))
            best, found = everyone.cheapest(cost)
        chosen = flags if found is None else found
        spent = round(time.process_time() - started)
        best = None if math.isinf(best) else best
        kept[name] = {"cost": best, "flags": chosen, "count": len(everyone.searches), "cpu_s": spent, "of": program}
        BESTS.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
    truth = kept[name]
    return truth | {"cost": math.inf if truth["cost"] is None else truth["cost"], "older": truth["of"] != program}


def flags_chosen(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of the deployment in a row of `size`."""
    names = ("gpu", "tensor_parallel_size", "data_parallel_size", "expert_parallel_size", "kv_cache_dtype")
    names += ("prefill_replicas", "decode_replicas", "max_num_batched_tokens", "cuda_graph_sizes", "max_num_seqs")
    names += ("max_cudagraph_capture_size", "cudagraph_capture_sizes")
    return {name: chosen[name] for name in names if chosen.get(name) is not None}


def checked(question: Mapping[str, Any], chosen: Mapping[str, Any]) -> float:
    """Return the cost with the confidence of a chosen deployment that is searched and examined alone."""
    with ks.connect() as session:
        alone = Everything(session, question, [(flags_chosen(chosen), chosen["gpus"] // chosen["instances"])])
        if not alone.searches:
            return math.inf
        found = alone.searches[0].run(FULL, chosen.get("users") or chosen["rate"])
        return alone.at_confidence(0, found) if found.rate else math.inf


def sized(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of `size` in a process of its own with empty caches, and its CPU seconds."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", ALONE, json.dumps(question)],
            capture_output=True,
            text=True,
            env=os.environ | {"KERNELSIGHT_CACHE": folder},
        )
    if done.returncode:
        return {"crash": done.stderr.strip().splitlines()[-1:] or done.returncode}
    return json.loads(done.stdout.splitlines()[-1])


def case_of(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return one question's row: cost of `size` over the best, whether it holds, and CPU seconds."""
    result = sized(question)
    if "crash" in result:
        return {"crash": str(result["crash"]), "near": False, "holds": True, "cpu_s": None}
    answer = result["answer"]
    chosen = answer["chosen"]
    confidence = question.get("confidence", 0.9)
    sure = chosen is not None and (chosen["probability"] or 0.0) >= confidence - 1e-6
    cost = chosen["price_per_hour"] if sure else math.inf
    alone = checked(question, chosen) if sure else math.inf
    truth = truth_of(question, alone, flags_chosen(chosen) if sure else {})
    best = truth["cost"]
    return {
        "cost": cost,
        "best": best,
        "near": cost <= best * NEAR or (math.isinf(cost) and math.isinf(best)),
        # the same deployment, examined alone, may need a tenth more instances of many by the noise of runs
        "holds": not sure or alone <= max(cost * 1.1, cost + chosen["price_per_hour"] / chosen["instances"]),
        "alone": alone,
        "complete": answer["complete"],
        "cpu_s": round(result["cpu_s"], 1),
        "best_flags": truth["flags"],
        "best_cpu_s": truth["cpu_s"],
        "older": truth["older"],
        "count": truth["count"],
    }


def kind_of(question: Mapping[str, Any]) -> str:
    """Return what a question is asked by: rate, users or sessions."""
    return "users" if "users" in question else "sessions" if "num_turns" in question else "rate"


def judged(cases: int, seed: int, kinds: Sequence[str] = KINDS, only: Sequence[int] = ()) -> dict[str, Any]:
    """Print each case of the questions drawn that are of ``kinds``, and return the figures that are recorded.

    ``only``: numbers of questions, in this order; empty: all.
    """
    source, rows = random.Random(seed), []
    drawn_here = [drawn(source) for _ in range(cases)]
    asked = [number for number in (only or range(cases)) if kind_of(drawn_here[number]) in kinds]
    with contextlib.suppress(KeyboardInterrupt):
        for number in asked:
            row = case_of(drawn_here[number])
            rows.append(row)
            print(number, json.dumps(drawn_here[number]), flush=True)
            print("   ", json.dumps(row, default=str), flush=True)
    figures = {"drawn": cases, "seed": seed, "kinds": list(kinds), "asked": asked[: len(rows)], **figures_of(rows)}
    print(json.dumps(figures))
    return figures


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of cases."""
    spent = sorted(row["cpu_s"] for row in rows if row["cpu_s"] is not None)
    return {
        "cases": len(rows),
        "near": sum(row["near"] for row in rows),
        "cheaper_than_holds": sum(not row["holds"] for row in rows),
        "crashes": sum("crash" in row for row in rows),
        "complete": sum(bool(row.get("complete")) for row in rows),
        "size_cpu_s": spent[len(spent) // 2] if spent else None,
        "size_cpu_s_most": spent[-1] if spent else None,
        "deployments": sum(row.get("count", 0) for row in rows),
        "bests_of_another_program": sum(row.get("older", False) for row in rows),
    }


def read_again(session: Session, form: str, flags: Mapping[str, Any]) -> str:
    """Return what became of a deployment written in a form: same, other, unsaid (a flag no field states) or refused."""
    resolved = resolve_names(session, normalise(flags))
    try:
        model = model_rows(session, resolved["model"])[0]
        text, unsaid = deployment_files(form, resolved, model, str(flags["model"]))
    except InvalidInput:
        return "refused"
    again = resolve_names(session, normalise(ks.read_launch_line(text).flags))
    rows = [[{**row, "deployment_id": ""} for row in deployment_rows(one)] for one in (resolved, again)]
    counts = [[one.get(name, 1) for name in COUNTS] for one in (resolved, again)]
    return "unsaid" if unsaid else "same" if rows[0] == rows[1] and counts[0] == counts[1] else "other"


def main_round_trip(cases: int, seed: int, first: int = 0) -> dict[str, Any]:
    """Print the deployments that are not read again as they were, and return the counts by form."""
    source, found, seen = random.Random(seed), Counter[str](), 0
    for number, question in list(enumerate(drawn(source) for _ in range(cases)))[first:]:
        rows = ks.size(**question).as_dict()["rows"]
        with ks.connect() as session:
            for row in rows:
                flags = {
                    name: value for name, value in row.items() if name in FLAGS and name not in (*LOAD_FLAGS, "tier")
                }
                flags = {"model": question["model"], **{name: v for name, v in flags.items() if v is not None}}
                for name in [name for name in COUNTS[1:] if name in flags] or COUNTS[:1]:
                    flags[name] = row["instances"] * flags.get(name, 1)
                seen += 1
                for form in FORMS:
                    outcome = read_again(session, form, flags)
                    found[f"{form} {outcome}"] += 1
                    if outcome != "same":
                        print(number, form, outcome, json.dumps(flags), flush=True)
        print(json.dumps({"question": number, "deployments": seen, **dict(sorted(found.items()))}), flush=True)
    return {"cases": cases, "first": first, "seed": seed, "deployments": seen, **found}


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


def main_limits(cases: int, seed: int) -> dict[str, int]:
    """Print and return the number of cases whose named limit raises the rate most, or within 2 % of the most."""
    right = near = done = 0
    source = random.Random(seed)
    with ks.connect() as session:
        with_faster_gpus(session, sorted(PRICES))
        quick_host = quick_host_of(session)
        while done < cases:
            question = drawn(source)
            if "users" in question or "num_turns" in question or question["model"] in MIXTURES:
                continue
            row = session.size(tune=False, **question | {"max_gpus": 4, "confidence": 0.5, "search": {}}).chosen
            if row is None:
                continue
            gain_of = rates_with_more(session, quick_host, question, row)
            best = max(gain_of, key=gain_of.get)
            done += 1
            right += best == row["limit"]
            # each of two rates is found to 1 %
            near += gain_of[row["limit"]] >= gain_of[best] - 0.02
            gains = {name: f"{gain:+.1%}" for name, gain in gain_of.items()}
            print(question["model"], row["gpu"], row["limit"], gains, flush=True)
    print(f"{done} questions: the limit is the best of all in {right}, within 2 % of the rate in {near}")
    return {"cases": done, "right": right, "near": near, "seed": seed}


def main() -> None:
    """Compare `size` with the search of everything, print the cases, and record the figures with ``--record``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=30, metavar="N", help="questions (default: 30)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="with --round-trip: skip N questions")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed; while developing, even ones only")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS, help="of the questions drawn, only these")
    parser.add_argument("--only", nargs="+", type=int, default=(), metavar="N", help="only these of the questions")
    parser.add_argument("--limits", action="store_true", help="check the named limits instead")
    parser.add_argument("--round-trip", action="store_true", help="write and read deployment files instead")
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    arguments = parser.parse_args()
    words = f"--cases {arguments.cases} --seed {arguments.seed}"
    if arguments.round_trip:
        figures = main_round_trip(arguments.cases, arguments.seed, arguments.first)
        words += f" --first {arguments.first}"
    elif arguments.limits:
        figures = main_limits(arguments.cases, arguments.seed)
    else:
        words += f" --kinds {' '.join(arguments.kinds)}"
        figures = judged(arguments.cases, arguments.seed, arguments.kinds, arguments.only)
        words += f" --only {' '.join(map(str, figures['asked']))}"
    if arguments.record:
        flag = "--limits" if arguments.limits else "--round-trip" if arguments.round_trip else ""
        name = f"sizes_{flag[2:].replace('-', '_')}" if flag else "sizes"
        record(name, figures, " ".join(["python benches/sizes.py", *filter(None, [flag]), words]))


if __name__ == "__main__":
    main()
