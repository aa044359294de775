"""CPU time of commands and calls that users wait for, and its ratio to a reference loop: ``python benches/waits.py``.

    python benches/waits.py [--tree DIR ...] [--repeats N] [-o FILE.json]

Each row is a separate process: its CPU time, or that of the call in it if start-up is not part of the wait. The
yardstick is a loop of five million additions in Python, measured beside each row, because machines differ and are
shared: compare multiples of it, not seconds. With several trees (clones of the repository), their rows are measured in
turn. "again" is a later run, with compiled code and tables cached on disk.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import record

from kernelsight.present.output import as_text

HERE = Path(__file__).resolve().parents[1]
DEPLOYMENT = ("--model", "qwen3-14b", "--gpu", "h100_sxm")
LOAD = ("--request-rate", "20", "--input-len", "256", "--output-len", "256")
COMMANDS = {
    "--version": ("--version",),
    "predict, one step": ("predict", *DEPLOYMENT, "--context-len", "1000"),
    "simulate, 100 requests": ("simulate", *DEPLOYMENT, *LOAD, "--num-prompts", "100"),
    "simulate, 1,000,000 requests": ("simulate", *DEPLOYMENT, *LOAD, "--num-prompts", "1000000"),
}
# each run after the first changes one flag: of the load, then of the deployment
CHANGED = {
    "simulate, 100 requests, another load": (
        *(("--num-prompts", "411"), ("--num-prompts", "31"), ("--input-len", "310"), ("--input-len", "6000")),
        *(("--output-len", "30"), ("--output-len", "1200"), ("--request-rate", "7"), ("--seed", "9")),
        *(("--burstiness", "0.5"), ("--num-turns", "3"), ("--prefix-len", "100"), ("--range-ratio", "0.5")),
    ),
    "simulate, 100 requests, another deployment": (
        *(("--max-num-seqs", "48"), ("--max-num-batched-tokens", "4096"), ("--tensor-parallel-size", "2")),
        *(("--gpu-memory-utilization", "0.8"), ("--kv-cache-dtype", "fp8"), ("--engine", "sglang")),
    ),
}
COMMANDS |= dict.fromkeys(CHANGED, COMMANDS["simulate, 100 requests"])
# a call in a process that made it once before: prints its CPU seconds
TIMED = """
import time
import kernelsight as ks
session = ks.connect()
{before}
def work():
    {work}
work()
started = time.process_time()
work()
print(time.process_time() - started)
"""
GRID = """
models = ["llama-3.1-8b", "qwen3-32b", "mixtral-8x7b-v0.1", "qwen3-14b", "gpt-oss-120b"]
grid = {"model": models, "gpu": ["h100_sxm", "h200_sxm", "b200_sxm", "gb200", "b300_sxm"], "engine": ["vllm", "sglang"]}
grid |= {"tensor_parallel_size": 4, "num_prompts": 100, "input_len": 256, "output_len": 128}
grid["request_rate"] = [1.0 + 19.0 * step / STEPS for step in range(STEPS)]
"""
# of deployments without cached tables, in a process that simulated another one
NEW = (
    GRID.replace("STEPS", "20")
    + """
import os
os.environ["KERNELSIGHT_CACHE"] = ""
other = {"model": "qwen3-0.6b", "gpu": "l4", "num_prompts": 4, "input_len": 16, "output_len": 4, "request_rate": 1.0}
grids = iter([other, grid])
"""
)
# the third load on one deployment, after the cache of the first was read
LOADS = """
flags = {"model": "qwen3-14b", "gpu": "h100_sxm", "num_prompts": 100, "input_len": 256, "output_len": 256}
rates = iter([20.0, 20.1, 20.2])
session.simulate(**flags, request_rate=next(rates)).summary
"""
STEP = 'flags = {"model": "qwen3-14b", "gpu": "h100_sxm", "context_len": 1000}'
CALLS = """
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from kernelsight.forward.forward_step import predict_calls
row = dict(tp=4, pp=1, dp=1, ep=1, gpu="h100_sxm", engine="vllm")
names = ["llama-3.1-8b", "qwen3-32b", "mixtral-8x7b-v0.1", "gpt-oss-120b"]
session.give("deployments", [dict(row, deployment_id=name, model=name) for name in names])
calls = session.table("kernel_calls")
calls = calls.take(pa.array(np.random.default_rng(1).integers(0, calls.num_rows, 1_000_000)))
pq.write_table(calls.drop_columns(["call"]).combine_chunks(), "calls.parquet")
"""
# the loop alone: with prepared step costs, without result tables
LOOP = """
from kernelsight.scenario.plan import give_plan, plan_rows
from kernelsight.serving.runs.simulate import serve_replicas
from kernelsight.serving.runs.simulation_inputs import inputs_of_session
row = dict(model="qwen3-14b", gpu="h100_sxm", request_rate=20.0, num_prompts=1_000_000, input_len=256, output_len=256)
plan = plan_rows(session, [row])
give_plan(session, list(plan.deployments.values()), plan.planned)
inputs = inputs_of_session(session.table)
"""
WORK = {
    "the loop alone, 1,000,000 requests": (LOOP, "serve_replicas(inputs, count_uses=False)"),
    "predict, one step, in a session": (STEP, "session.predict(**flags)"),
    "simulate, 100 requests, in a session": (LOADS, "session.simulate(**flags, request_rate=next(rates)).summary"),
    "1,000 what-ifs over 50 new deployments": (NEW, "session.what_if(next(grids))"),
    "1,000 what-ifs over 50 deployments": (GRID.replace("STEPS", "20"), "session.what_if(grid)"),
    "10,000 what-ifs over 50 deployments": (GRID.replace("STEPS", "200"), "session.what_if(grid)"),
    "1,000,000 kernel calls from a file": (CALLS, 'predict_calls(session, "calls.parquet", "h100_sxm", None)'),
}


def yardstick() -> float:
    """Return the CPU seconds that this machine takes now for a Python loop of five million additions."""
    started = time.process_time()
    total = 0
    for number in range(5_000_000):
        total += number
    return time.process_time() - started


def cpu_seconds(tree: Path, name: str, folder: str, run: int = 0) -> float:
    """Return the CPU seconds of row ``name``, run by the program in ``tree``; ``run``: its number."""
    # with cached bytecode, as in an installation
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPATH": str(tree), "KERNELSIGHT_CACHE": f"{folder}/kept"}
    words = ["-m", "kernelsight", *COMMANDS[name]] if name in COMMANDS else ["-c", script(name)]
    words += CHANGED[name][(run - 1) % len(CHANGED[name])] if run and name in CHANGED else ()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *words], env=environment, cwd=folder, check=True, stdout=subprocess.PIPE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if name in WORK:
        return float(done.stdout.splitlines()[-1])
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def script(name: str) -> str:
    """Return the program that times a call within its process."""
    before, work = WORK[name]
    return TIMED.format(before=before, work=work)


def commit(tree: Path) -> str:
    """Return the commit of a tree."""
    words = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def measure(trees: list[Path], names: list[str], repeats: int) -> list[dict[str, Any]]:
    """Return a row per wait and tree: median CPU seconds, and their multiple of the yardstick."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(len(trees)):  # a cache for each
            Path(folder, str(number)).mkdir()
        for name in names:
            spent: dict[Path, list[tuple[float, float]]] = {tree: [] for tree in trees}
            # the first run fills the caches and does not count
            for run in range(1 + len(CHANGED.get(name, range(repeats)))):
                for tree in trees:
                    spent[tree].append((cpu_seconds(tree, name, f"{folder}/{trees.index(tree)}", run), yardstick()))
            for tree in trees:
                seconds, units = zip(*spent[tree][1:], strict=True)
                row = {"wait": name, "commit": commit(tree), "first CPU s": round(spent[tree][0][0], 2)}
                row |= {"again CPU s": round(statistics.median(seconds), 3)}
                rows.append(row | {"yardsticks": round(statistics.median(seconds) / statistics.median(units), 1)})
                print(json.dumps(rows[-1]), file=sys.stderr)
    return rows


def main() -> None:
    """Measure every row and print the table; record it with ``--record``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", nargs="+", type=Path, default=[HERE], help="clones to compare (default: this one)")
    parser.add_argument("--only", nargs="+", help="rows whose name has one of these words")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("-o", "--output", help="also write the rows as JSON")
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    arguments = parser.parse_args()
    names = [name for name in (*COMMANDS, *WORK) if any(word in name for word in arguments.only or [""])]
    rows = measure([tree.resolve() for tree in arguments.tree], names, arguments.repeats)
    print(as_text(rows, list(rows[0])))
    if arguments.record:  # the last tree is the documented one
        record("speed_waits", {"rows": rows, "repeats": arguments.repeats}, "python benches/waits.py --tree FORMER .")
    if arguments.output:
        Path(arguments.output).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
