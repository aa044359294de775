"""Accuracy of the corrections that `compare` fits: on the first part of a simulated log's time, scored on the rest.

``python benches/corrections.py --worlds 16`` draws deployments and loads as `benches/compare.py` does. The log is of
the deployment with a factor on each kernel family, and other host and front-end times, or of another engine; some loads
grow over time. Times of each request have noise (``--noise 0.03``). Prints median absolute percentage errors on later
time: uncorrected, with one factor per metric, and corrected as by `kernelsight compare`.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import pyarrow as pa
from compare import DEPLOYMENTS, draw_load
from record import record

import kernelsight as ks
from kernelsight.comparison.log_replayer import LogReplayer
from kernelsight.comparison.replay import KERNELS, Variant

KINDS = ("factors", "engine", "factors", "growing load")
OTHER = {"vllm": "sglang", "sglang": "vllm"}
METRICS, SCORED = ("ttft", "tpot", "e2e"), ("uncorrected", "one_factor", "corrected")


def world(session: ks.Session, random: np.random.Generator, kind: str, n: int, noise: float, hold_out: float) -> Any:
    """Return a random world's model, the ``fit`` part of `compare`'s summary of its log, and CPU seconds."""
    flags, rate = DEPLOYMENTS[int(random.integers(len(DEPLOYMENTS)))]
    load = draw_load(random, rate, n, 1.0, False)
    if kind == "growing load":
        gaps = np.diff(load["arrival_s"].to_numpy(), prepend=0.0) * np.linspace(1.8, 0.7, n)
        index = load.column_names.index("arrival_s")
        load = load.set_column(index, "arrival_s", pa.array(np.cumsum(gaps)))
    factors = {part: float(np.exp(0.12 * random.standard_normal())) for part in KERNELS}
    step_us, request_us = float(random.uniform(-200, 800)), float(random.uniform(0, 20_000))
    truth = Variant(flags, factors, step_us, request_us)
    if kind == "engine":
        truth = Variant({**flags, "engine": OTHER[flags.get("engine", "vllm")]}, {}, 0.0, request_us)
    (served,) = LogReplayer(session, load).serve([truth])
    blur = np.exp(noise * random.standard_normal((2, n)))
    ttft_ms = served.ttft_ms * blur[0]
    log = {name: load[name] for name in ("arrival_s", "prompt_tokens", "output_tokens")}
    log |= {"ttft_ms": ttft_ms, "e2e_ms": ttft_ms + (served.e2e_ms - served.ttft_ms) * blur[1]}
    started = time.process_time()
    comparison = session.compare(requests=pa.table(log | {"ttft_clock": ["client_send"] * n}), deployment=flags,
                            hold_out=hold_out)  # fmt: skip
    return flags["model"], comparison.summary["fit"], time.process_time() - started


def main() -> None:
    """Print the errors of each random world and their medians; record them with ``--record``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=16)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=float, default=0.03, help="standard deviation of the logarithm of each time")
    parser.add_argument("--hold-out", type=float, default=0.7, help="last share of the time, on which fits are scored")
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    arguments = parser.parse_args()
    errors = []
    print(
        f"{'world':14} {'model':14} " + " ".join(f"{f'{metric} {name}':>16}" for metric in METRICS for name in SCORED)
    )
    with ks.connect() as session:
        for number in range(arguments.worlds):
            random, kind = np.random.default_rng([arguments.seed, number]), KINDS[number % len(KINDS)]
            model, fit, cpu_s = world(session, random, kind, arguments.requests, arguments.noise, arguments.hold_out)
            world_errors = [[fit[name][metric]["median_ape"] for name in SCORED] for metric in METRICS]
            errors.append(world_errors)
            cells = " ".join(f"{error:16.1%}" for row in world_errors for error in row)
            print(f"{kind:14} {model:14} {cells} {cpu_s:6.1f} CPU-s", flush=True)
    all_errors = np.array(errors)
    print(f"{'median':29} " + " ".join(f"{error:16.1%}" for error in np.median(all_errors, axis=0).ravel()))
    ahead = (all_errors[..., 2] < all_errors[..., 1]).mean(axis=0)
    if arguments.record:
        errors_of = dict(zip(SCORED, np.median(all_errors, axis=0).T.tolist(), strict=True))
        figures = {"worlds": arguments.worlds, "seed": arguments.seed, "noise": arguments.noise, "errors": errors_of}
        words = f"--worlds {arguments.worlds} --seed {arguments.seed}"
        record("corrections", figures | {"ahead": ahead.tolist()}, f"python benches/corrections.py {words}")
    print("ahead of one factor: " + ", ".join(f"{m} {share:.0%}" for m, share in zip(METRICS, ahead, strict=True)))


if __name__ == "__main__":
    main()
