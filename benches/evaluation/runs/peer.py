"""AIConfigurator's predictions of measured runs, from the installed package in a separate process (peer tool)."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.errors import RunFailed, extra_missing

PACKAGE = "aiconfigurator_core"
WORKER = "kernelsight.laboratory.runs.peer_worker"
# columns of a run that the package takes as inputs
INPUTS = ("run_id", "model", "gpu", "engine", "tp", "ep", "isl", "osl", "max_concurrency", "workers")
INPUTS += ("gemm_label", "expert_label")
# kinds of predictions: with nominal lengths; with the launch flags that it supports; and with the tokens of a step, too
NOMINAL, LAUNCHED, STEP_TOKENS = "nominal", "launched", "step_tokens"
Predictions = dict[str, tuple[float, float]]


def predictions(runs: Sequence[Mapping[str, Any]]) -> dict[str, Predictions]:
    """Return (TTFT, TPOT), ms, by kind of prediction and run_id, of the closed loops that the package can predict.

    ``runs``: replayed runs, with ``flags`` and ``step_tokens``. InvalidInput: the package is not installed; RunFailed:
    it cannot be started.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise extra_missing("--against aiconfigurator", "aiconfigurator-core", "silicon")
    closed = [run for run in runs if run["max_concurrency"] and not run.get("prefill_workers")]
    lines = "\n".join(json.dumps(question) for run in closed for question in questions(run))
    process = subprocess.run([sys.executable, "-m", WORKER], input=lines, capture_output=True, text=True, check=False)
    if process.returncode:
        message = (process.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunFailed(f"AIConfigurator failed ({message}); install aiconfigurator-core with its requirements.")
    by_question: dict[str, Predictions] = {NOMINAL: {}, LAUNCHED: {}, STEP_TOKENS: {}}
    for row in map(json.loads, process.stdout.splitlines()):
        if row.get("ttft_ms") and row.get("tpot_ms"):
            by_question[row["asked"]][row["run_id"]] = (row["ttft_ms"], row["tpot_ms"])
    return by_question


def questions(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the package's inputs for a replayed run, one per kind of prediction.

    LAUNCHED has mean lengths (of a range from ``range_ratio`` to 1 times the nominal ones) and the KV cache's format,
    with one prompt a step. STEP_TOKENS is separate: a steady state in which prompts fill each step is not that of a
    run. The package has no inputs for unchunked prompts, waiting batches, CUDA graphs or asynchronous scheduling.

    >>> run = {"run_id": "a", "isl": 1000, "osl": 100, "max_concurrency": 8, "step_tokens": 8192}
    >>> inputs = questions(run | {"flags": {"range_ratio": 0.8, "kv_cache_dtype": "fp8"}})
    >>> [(each["asked"], each["isl"], each["osl"], each["step_tokens"]) for each in inputs]
    [('nominal', 1000, 100, 1000), ('launched', 900, 90, 900), ('step_tokens', 900, 90, 8192)]
    """
    flags = run["flags"]
    nominal = {name: value for name, value in run.items() if name in INPUTS} | {"step_tokens": run["isl"]}
    length_share = (1.0 + flags.get("range_ratio", 1.0)) / 2.0
    launched = nominal | {name: max(round(length_share * run[name]), 1) for name in ("isl", "osl")}
    launched |= {"step_tokens": launched["isl"]}
    launched |= {"kv_cache": "fp8" if str(flags.get("kv_cache_dtype")).startswith("fp8") else None}
    full_steps = launched | {"step_tokens": run["step_tokens"] or launched["isl"]}
    return [
        inputs | {"asked": name}
        for name, inputs in ((NOMINAL, nominal), (LAUNCHED, launched), (STEP_TOKENS, full_steps))
    ]
