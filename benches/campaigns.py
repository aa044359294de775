"""Errors of replayed runs by measurement campaign: ``python benches/campaigns.py``.

Runs `kernelsight backtest` over every available campaign (about 6 CPU-minutes; all runs instead of a sample: 20) and
records the table campaign x metric in ``benches/results/campaigns.json``: with the shipped constants, and with
constants fitted on the other campaigns; and prints the coverage of 90 % intervals by label. ``--report FILE`` takes an
existing report instead; ``--no-record`` prints the coverage alone (half the time: no campaign is left out).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
from pathlib import Path

from record import RESULTS, ROOT, SERVERS, read, record

from kernelsight.cli.main import main as kernelsight
from kernelsight.laboratory.cli.backtest_tables import coverage_table
from kernelsight.present.show import table_of

SAMPLE = 60
WORDS = ["backtest", *(word for source in ("aiconfigurator", *SERVERS) for word in ("--runs", source))]
WORDS += ["--sample", str(SAMPLE)]
LEFT_OUT = ["--leave-out", "campaign"]


def main() -> None:
    """Run the backtest and record the table; the first recorded errors (``before``) are kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report", type=Path, help="an existing report of the command (.json), instead of running it")
    parser.add_argument("--no-record", action="store_true", help="print the coverage by label alone")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.report or Path(folder) / "report.json"
        if not arguments.report:
            with contextlib.chdir(ROOT), contextlib.redirect_stdout(io.StringIO()):
                status = kernelsight([*WORDS, *([] if arguments.no_record else LEFT_OUT), "-o", str(path)])
            if status:
                raise SystemExit(status)
        report = json.loads(path.read_text(encoding="utf-8"))
    print("\n".join(table_of(coverage_table(report))))
    if arguments.no_record:
        return
    figures = {name: report[name] for name in ("read", "excluded", "runs", "left_out_constants", "coverage")}
    figures |= {"sample": SAMPLE, "shipped": report["campaigns_shipped"], "left_out": report["campaigns"]}
    before = read("campaigns")["figures"]["before"] if (RESULTS / "campaigns.json").is_file() else figures["shipped"]
    print(record("campaigns", figures | {"before": before}, f"kernelsight {' '.join([*WORDS, *LEFT_OUT])}"))


if __name__ == "__main__":
    main()
