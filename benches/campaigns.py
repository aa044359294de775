"""Errors by campaign of measured servers: ``python benches/campaigns.py``.

Runs `kernelsight backtest` over every campaign that is here (about 8 CPU-minutes) and keeps the table campaign x metric
in ``benches/results/campaigns.json``. ``--report FILE`` keeps one that is there.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from pathlib import Path

from record import ROOT, record

from kernelsight.cli.main import main as kernelsight

SHARED = ("../shared/data/servers", "../shared/data/inference-perf-example")
WORDS = ["backtest", *(word for source in ("aiconfigurator", *SHARED) for word in ("--runs", source))]
KEPT = ("campaigns", "read", "excluded", "runs", "constants")


def main() -> None:
    """Run, and keep the table."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--report", type=Path, help="a report that the command wrote (.json), instead of running it")
    asked = words.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = asked.report or Path(folder) / "report.json"
        if not asked.report:
            with contextlib.chdir(ROOT), contextlib.redirect_stdout(io.StringIO()):
                status = kernelsight([*WORDS, "-o", str(path)])
            if status:
                raise SystemExit(status)
        report = json.loads(path.read_text(encoding="utf-8"))
    print(record("campaigns", {name: report[name] for name in KEPT}, f"kernelsight {' '.join(WORDS)}"))


if __name__ == "__main__":
    main()
