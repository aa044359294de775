"""AIConfigurator's predictions for measured runs, from the installed package in a separate process."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.errors import InvalidInput, RunFailed

PACKAGE = "aiconfigurator_core"
WORKER = "kernelsight.backtest.peer_worker"


def predictions(runs: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Return TTFT and TPOT in ms by run, for the closed loops that the package can predict.

    InvalidInput: it is not installed; RunFailed: it cannot be started.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise InvalidInput("--against aiconfigurator needs aiconfigurator-core; pip install 'kernelsight[silicon]'.")
    closed = [run for run in runs if run["max_concurrency"] and not run.get("prefill_workers")]
    asked = "\n".join(json.dumps(dict(run)) for run in closed)
    done = subprocess.run([sys.executable, "-m", WORKER], input=asked, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunFailed(f"AIConfigurator failed ({last}); install aiconfigurator-core with its requirements.")
    found = (json.loads(line) for line in done.stdout.splitlines())
    return {
        row["run_id"]: (row["ttft_ms"], row["tpot_ms"]) for row in found if row.get("ttft_ms") and row.get("tpot_ms")
    }
