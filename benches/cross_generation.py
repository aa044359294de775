"""End-to-end errors of published runs with all kernels predicted across generations: benches/cross_generation.py.

Runs `kernelsight backtest --tier cross-generation` over a sample of the published runs (about 2 CPU-minutes), and
records the scores in ``benches/results/end_to_end_across.json``. ``--report FILE`` records an existing report instead.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from pathlib import Path

from record import record

from kernelsight.cli.main import main as kernelsight

WORDS = "backtest --runs aiconfigurator --constants group,none --tier cross-generation --sample 300"
KINDS = ("all", "dense", "moe")
METRICS = ("ttft", "tpot", "throughput")


def main() -> None:
    """Run the backtest and record its scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", type=Path, help="an existing report of the command (.json), instead of running it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.report or Path(folder) / "report.json"
        if not arguments.report:
            with contextlib.redirect_stdout(io.StringIO()):
                status = kernelsight([*WORDS.split(), "-o", str(path)])
            if status:
                raise SystemExit(status)
        report = json.loads(path.read_text(encoding="utf-8"))
    levels = {
        name: {kind: {metric: scores[kind][metric] for metric in METRICS} for kind in KINDS}
        for name, scores in report["levels"].items()
    }
    figures = {"tier": report["tier"], "runs": report["runs"], "fitted_on": report["fitted_on"], "levels": levels}
    print(record("end_to_end_across", figures, f"kernelsight {WORDS}"))


if __name__ == "__main__":
    main()
