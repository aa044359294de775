"""What AIConfigurator predicts for measured runs: asked of the installed package, in a process of its own."""

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
    """Return TTFT and TPOT in ms by run, of the closed loops that the package can predict.

    InvalidInput where it is not installed; RunFailed where it cannot be started.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        raise InvalidInput("--against aiconfigurator needs that tool; pip install 'kernelsight[silicon]'.")
    closed = [run for run in runs if run["max_concurrency"] and not run.get("prefill_workers")]
    asked = "\n".join(json.dumps(dict(run)) for run in closed)
    done = subprocess.run([sys.executable, "-m", WORKER], input=asked, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RunFailed(f"AIConfigurator could not be run ({last}); install aiconfigurator-core with what it requires.")
    found = (json.loads(line) for line in done.stdout.splitlines())
    return {
        row["run_id"]: (row["ttft_ms"], row["tpot_ms"]) for row in found if row.get("ttft_ms") and row.get("tpot_ms")
    }
