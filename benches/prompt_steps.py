"""Prompt steps of gpt-oss-120b under TensorRT-LLM without CUDA graphs: ``python benches/prompt_steps.py``.

Predicts the 400 measured steps of ``../shared/data/servers/trtllm_prefill_steps.csv`` and prints errors by number of
new tokens, with those of AIConfigurator beside, in a minute.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence

from record import ROOT

import kernelsight as ks
from kernelsight.forward.forward_step import whole_step
from kernelsight.present.page import Table
from kernelsight.present.show import table_of
from kernelsight.scenario.scenario_rows import deployment_row, resolve_names

MEASURED = ROOT / "../shared/data/servers/trtllm_prefill_steps.csv"
FLAGS = {"model": "gpt-oss-120b", "gpu": "b200_sxm", "engine": "trtllm", "engine_version": "1.3.0rc18"}
TOKENS = ((1, 300), (301, 2500), (2501, 6000), (6001, 10**9))


def main() -> None:
    """Print the errors of all steps, and of steps by new tokens."""
    with MEASURED.open(encoding="utf-8", newline="") as file:
        steps = list(csv.DictReader(file))
    sizes = [[int(step[name]) for name in ("prompts", "new_tokens", "cached_tokens")] for step in steps]
    with ks.connect() as session:
        deployment = deployment_row(resolve_names(session, FLAGS))
        session.give("deployments", [deployment])
        # prompts of a step are taken to be of equal length
        shapes = [
            whole_step(number, 0, 0, prompts, max(round(new / prompts), 1), round(cached / prompts))
            for number, (prompts, new, cached) in enumerate(sizes)
        ]
        own = {"deployment_id": deployment["deployment_id"], "decode_window_context": None}
        session.give("step_shapes", [shape | own for shape in shapes])
        totals = {row["step_shape_id"]: row for row in session.table("step_totals").to_pylist()}
    measured = [float(step["step_ms"]) for step in steps]
    ours = [totals[number]["total_us"] / 1e3 / ms - 1 for number, ms in enumerate(measured)]
    peer = [float(step["aiconfigurator_ms"]) / ms - 1 for step, ms in zip(steps, measured, strict=True)]
    rows = []
    for least, most in ((1, TOKENS[-1][1]), *TOKENS):
        chosen = [number for number, (_, new, _) in enumerate(sizes) if least <= new <= most]
        inside = [totals[i]["p05_us"] <= 1e3 * measured[i] <= totals[i]["p95_us"] for i in chosen]
        words = {"new tokens": f"{least:,} to {most:,}", "n": len(chosen)}
        words |= {"error": score([ours[i] for i in chosen]), "in 90 % interval": f"{sum(inside) / len(inside):.0%}"}
        rows.append(words | {"AIConfigurator": score([peer[i] for i in chosen])})
    print("\n".join(table_of(Table(rows=rows))))


def score(errors: Sequence[float]) -> str:
    """Return the median / mean error, 90th percentile and median signed error, in %."""
    sizes = sorted(abs(error) for error in errors)
    median, mean = statistics.median(sizes), statistics.mean(sizes)
    p90, signed = sizes[int(0.9 * len(sizes))], statistics.median(errors)
    return f"{100 * median:.1f} / {100 * mean:.1f}, p90 {100 * p90:.0f}, {100 * signed:+.0f}"


if __name__ == "__main__":
    main()
