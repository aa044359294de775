"""Accuracy of `compare` on logs of an independent server model with planted faults.

``python benches/foreign.py --seeds 0 2 4`` serves every world on the engine of ``foreign_engine.py``, writes the
client's log, compares it with the deployment without the fault, and counts by world: first cause right, its size right,
and a written correction no worse on later time than none. Methods are chosen on even seeds; odd ones are looked at
once, at the end (``benches/results/looks.csv``).
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from foreign_engine import BLOCK, Engine, Load, Times, serve
from record import record

import kernelsight as ks

STATED = {"model": "llama-3.1-8b", "gpu": "h100_sxm", "max_num_seqs": 256, "max_num_batched_tokens": 8192}
FORMATS = ("vllm", "guidellm", "csv")
# a size within this factor is right
NEAR = 1.3
Truth = Mapping[str, Any]


class World(NamedTuple):
    """A server with its fault, flags and load as given to ``compare``, and the causes that ``compare`` should name."""

    engine: Engine
    truths: list[Truth]
    stated: Mapping[str, Any] = MappingProxyType({})
    described: dict[str, Any] | None = None
    prefixes: int = 0
    tenant: tuple[float, float, float] | None = None


def draw_load(random: np.random.Generator, requests: int, rate: float, prefixes: int = 0) -> Load:
    """Return Poisson arrivals and lognormal lengths; ``prefixes``: number of different system prompts."""
    sent = np.cumsum(random.exponential(1.0 / rate, requests))
    mean, tokens = random.uniform(700, 1300), 512 if prefixes else 0
    prompt = np.clip(random.lognormal(np.log(mean), 0.6, requests), 32, 7000).astype(int) + tokens
    output = np.clip(random.lognormal(np.log(random.uniform(150, 230)), 0.6, requests), 4, 1500).astype(int)
    prefix = random.integers(0, prefixes, requests) if prefixes else np.full(requests, -1)
    return Load(sent - sent[0], prompt, output, prefix, tokens)


def cause(kind: str, name: str, value: Any = None, from_s: float | None = None) -> Truth:
    """Return a cause that ``compare`` should name first."""
    return {"kind": kind, "name": name, "value": value, "from_s": from_s}


def worlds(random: np.random.Generator, span_s: float) -> dict[str, World]:
    """Return every world of one seed; faults range from just visible to threefold."""
    start, factor = span_s * random.uniform(0.3, 0.65), float(np.exp(random.uniform(np.log(1.12), np.log(2.2))))
    burst, hard = random.uniform(5.0, 14.0), float(np.exp(random.uniform(np.log(1.5), np.log(3.0))))
    seats, budget = int(random.integers(9, 16)), int(random.choice([256, 512, 1024]))
    per_token, pause, off_s = random.uniform(0.02, 0.08), random.uniform(0.25, 0.9), random.uniform(15.0, 30.0)
    eager, longer = random.uniform(3.0, 9.0), random.uniform(1.25, 2.0)
    described = {"request_rate": 1.0, "num_prompts": 1, "input_len": 1.0 / longer, "output_len": 1.0}
    change = cause("change", "gpu", factor, start)
    front = cause("front_end", "per_prompt_token_us", 1e3 * (per_token - 0.006))

    def after(now: float) -> float:
        return factor if now >= start else 1.0

    return {
        "nothing": World(Engine(), [cause("none", "")]),
        "slower GPU": World(Engine(speed=after), [change]),
        "neighbour": World(
            Engine(speed=lambda now: hard if start <= now < start + burst else 1.0),
            [cause("incident", "gpu", hard, start)],
        ),
        "seats": World(Engine(seats=seats), [cause("setting", "max_num_seqs", seats)]),
        "budget": World(Engine(budget=budget), [cause("setting", "max_num_batched_tokens", budget)]),
        "eager": World(Engine(small_step_ms=eager), [cause("setting", "enforce_eager")]),
        "tokenizer": World(Engine(prompt_token_ms=per_token), [front]),
        "pauses": World(
            Engine(stops=tuple((at, pause) for at in np.arange(random.uniform(2, 8), span_s, 12.0))),
            [cause("incident", "pause", pause)],
        ),
        "no prefix caching": World(
            Engine(caching=False), [cause("setting", "enable_prefix_caching")], {"enable_prefix_caching": True}, None, 4
        ),
        "other parallel size": World(Engine(), [cause("setting", "tensor_parallel_size")], {"tensor_parallel_size": 2}),
        "FP8": World(Engine(weights_ms=3.2, token_ms=0.015, every_step_ms=0.4), [cause("setting", "quantization")]),
        "longer prompts": World(Engine(), [cause("load", "prompt_tokens", longer)], {}, described),
        "second tenant": World(
            Engine(), [cause(kind, "other_load") for kind in ("change", "incident")], tenant=(start, burst * 3, 1.0)
        ),
        "restart": World(Engine(stops=((start, off_s),), restarts=True), [cause("incident", "restart", None, start)]),
        "two at once": World(Engine(speed=after, prompt_token_ms=per_token), [change, front]),
    }


def log_of(world: World, load: Load, random: np.random.Generator) -> Times:
    """Serve a world's load, with that of another tenant in between where there is one."""
    if world.tenant is None:
        return serve(load, world.engine, random)
    start, length, share = world.tenant
    rate = share * load.sent_s.size / load.sent_s[-1]
    other = draw_load(random, max(int(rate * length), 8), rate)
    merged = Load(
        *(np.concatenate(pair) for pair in zip(load[:4], other._replace(sent_s=other.sent_s + start)[:4], strict=True))
    )
    times = serve(merged, world.engine, random)
    count = load.sent_s.size
    return Times(times.tokens_s[:count], times.cached[:count])


def write_log(path: Path, kind: str, load: Load, times: Times) -> dict[str, Any]:
    """Write a log of one format and return the arguments of ``compare`` that read it."""
    rows = list(zip(load.sent_s.tolist(), load.prompt.tolist(), load.output.tolist(), times.tokens_s, strict=True))
    if kind == "vllm":
        tokens_of = [tokens or [0.0] for *_, tokens in rows]
        result = {
            "tokenizer_id": "t", "model_id": "meta-llama/Llama-3.1-8B-Instruct", "backend": "vllm",
            "num_prompts": len(rows), "request_rate": "inf", "start_times": [1e3 + row[0] for row in rows],
            "input_lens": [row[1] for row in rows], "output_lens": [len(tokens) for tokens in tokens_of],
            "ttfts": [tokens[0] for tokens in tokens_of], "itls": [np.diff(tokens).tolist() for tokens in tokens_of],
            "errors": ["" if tokens else "ClientOSError" for *_, tokens in rows],
        }  # fmt: skip
        path.write_text(json.dumps(result))
    elif kind == "guidellm":
        groups: dict[str, list] = {"successful": [], "errored": [], "incomplete": []}
        for sent, prompt, output, tokens in rows:
            at = 1.79e9 + sent
            timings = {"request_start": at, "request_end": at}
            if tokens:
                timings |= {"first_token_iteration": at + tokens[0], "last_token_iteration": at + tokens[-1]}
                timings |= {"request_end": at + tokens[-1], "token_iterations": output}
            entry = {"prompt_tokens": prompt, "output_tokens": output if tokens else 0, "info": {"timings": timings}}
            groups["successful" if tokens else "errored"].append(entry)
        config = {"strategy": {"type_": "throughput"}, "backend": {"model": "meta-llama/Llama-3.1-8B-Instruct"}}
        benchmark = {"config": config, "scheduler_metrics": {}, "requests": groups}
        path.write_text(json.dumps({"metadata": {"guidellm_version": "0.5.0"}, "benchmarks": [benchmark]}))
    else:
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["arrival_s", "prompt_tokens", "output_tokens", "ttft_ms", "e2e_ms", "status", "ttft_clock"])
            for sent, prompt, output, tokens in rows:
                ms = [1e3 * tokens[0], 1e3 * tokens[-1], "ok"] if tokens else ["", "", "error"]
                table.writerow([sent, prompt, output, *ms, "client_send"])
    return {"log": path}


def table_of(load: Load, times: Times) -> dict[str, Any]:
    """Return ``compare``'s argument for a log in memory, with prefix hashes and cached tokens of each request."""
    hashes = []
    for number, (prefix, prompt) in enumerate(zip(load.prefix.tolist(), load.prompt.tolist(), strict=True)):
        shared = load.prefix_tokens // BLOCK
        hashes.append([prefix * 1000 + b if b < shared else 10**6 + number * 1000 + b for b in range(prompt // BLOCK)])
    ms = np.array([[1e3 * tokens[0], 1e3 * tokens[-1]] for tokens in times.tokens_s])
    columns = {"arrival_s": load.sent_s, "prompt_tokens": load.prompt, "output_tokens": load.output}
    columns |= {"ttft_ms": ms[:, 0], "e2e_ms": ms[:, 1], "ttft_clock": ["client_send"] * len(ms)}
    columns |= {"cached_tokens": times.cached}
    columns |= {"hash_ids": pa.array(hashes, pa.list_(pa.int64())), "hash_block_tokens": [BLOCK] * len(ms)}
    return {"requests": pa.table(columns)}


def compared(session: ks.Session, seed: int, name: str, requests: int, fit: str) -> dict[str, Any]:
    """Return the planted causes of one world and what `compare` answers about its log."""
    random = np.random.default_rng([31, seed])
    rate = random.uniform(6.0, 9.5)
    world = worlds(random, requests / rate)[name]
    random = np.random.default_rng([32, seed, *name.encode()])
    load = draw_load(random, requests, rate, world.prefixes)
    times = log_of(world, load, random)
    described = world.described and {
        "request_rate": rate, "num_prompts": requests,
        "input_len": int(load.prompt.mean() * world.described["input_len"]), "output_len": int(load.output.mean()),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        kind = FORMATS[seed % len(FORMATS)]
        log_arguments = (
            table_of(load, times)
            if world.prefixes
            else write_log(Path(folder) / f"log.{'csv' if kind == 'csv' else 'json'}", kind, load, times)
        )
        started = time.process_time()
        comparison = session.compare(deployment={**STATED, **world.stated}, stated=described, fit=fit, **log_arguments)
        answer = comparison.summary
        written = comparison.table("fitted_corrections").num_rows > 0
    return {
        "world": name,
        "seed": seed,
        "truths": world.truths,
        "cause": answer["cause"],
        "causes": answer["causes"],
        "verdict": answer["verdict"],
        "fit": answer["fit"],
        "written": written,
        "cpu_s": time.process_time() - started,
    }


def is_named(row: Mapping[str, Any]) -> bool:
    """Return whether the first cause is a planted one."""
    first_cause = row["cause"] or {}
    return any(
        first_cause.get("kind") == truth["kind"] and (not truth["name"] or first_cause.get("name") == truth["name"])
        for truth in row["truths"]
    )


def is_sized(row: Mapping[str, Any]) -> bool | None:
    """Return whether the size of the first cause is right; None if it is not a planted one or has no size."""
    first_cause = row["cause"] or {}
    for truth in row["truths"]:
        if (first_cause.get("kind"), first_cause.get("name")) == (truth["kind"], truth["name"]) and truth[
            "value"
        ] is not None:
            value = first_cause.get("value")
            return isinstance(value, int | float) and value > 0 and 1 / NEAR <= value / truth["value"] <= NEAR
    return None


def holds(row: Mapping[str, Any]) -> bool | None:
    """Return whether the written correction is no worse on later time than none; None if none is written."""
    if not row["written"]:
        return None
    errors = [
        [row["fit"][name][metric]["median_ape"] or 0.0 for metric in ("ttft", "tpot", "e2e")]
        for name in ("corrected", "uncorrected")
    ]
    return sum(errors[0]) <= sum(errors[1]) + 0.005


def main() -> None:
    """Compare the worlds of some seeds and print the table by world; record it with ``--record``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--worlds", nargs="+", default=None, metavar="NAME")
    parser.add_argument(
        "--fit", choices=("none", "parts"), default="parts", help="none: causes only, 16 CPU-s less per log"
    )
    parser.add_argument("--requests", type=int, default=900)
    parser.add_argument("-o", "--output", type=Path, help="write every world as a line of JSON")
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    arguments = parser.parse_args()
    rows = defaultdict(list)
    with ks.connect() as session:
        for name in arguments.worlds or worlds(np.random.default_rng(0), 100.0):
            for seed in arguments.seeds:
                row = compared(session, seed, name, arguments.requests, arguments.fit)
                rows[name].append(row)
                if not is_named(row):
                    print(f"missed: {name} {seed}: {row['cause']} {row['verdict']}", flush=True)
                if arguments.output:
                    with arguments.output.open("a") as file:
                        file.write(json.dumps(row, default=float) + "\n")
    print(f"{'world':22} {'logs':>5} {'named first':>12} {'size':>6} {'corrections hold':>17} {'CPU-s':>6}")
    figures = {}
    for name, world_rows in [*rows.items(), ("all", [row for each in rows.values() for row in each])]:
        shares = {}
        for key, judge in (("named", is_named), ("sized", is_sized), ("holds", holds)):
            values = [value for row in world_rows if (value := judge(row)) is not None]
            shares[key] = float(np.mean(values)) if values else None
        named_share, sized_share, held_share = ("-" if value is None else f"{value:.0%}" for value in shares.values())
        seconds = np.mean([row["cpu_s"] for row in world_rows])
        print(f"{name:22} {len(world_rows):5} {named_share:>12} {sized_share:>6} {held_share:>17} {seconds:6.1f}")
        figures[name] = {"logs": len(world_rows), **shares}
    if arguments.record:
        figures = {"worlds": figures, "seeds": arguments.seeds, "requests": arguments.requests}
        record("compare_foreign", figures, f"python benches/foreign.py --seeds {' '.join(map(str, arguments.seeds))}")


if __name__ == "__main__":
    main()
