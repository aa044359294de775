"""Public measured runs of new models, beside what is predicted: every row of `public_runs.csv`, whatever it says.

    python benches/public_runs.py

A row is a run that its source states with its load: flags of `kernelsight simulate`, measured figures, and what the
source leaves open and is assumed. Nothing is fitted to them.
"""

from __future__ import annotations

import csv
import json
import shlex
import subprocess
import sys
from pathlib import Path

from record import record

from kernelsight.present.output import table_lines

RUNS = Path(__file__).with_name("public_runs.csv")
# column of a row, where `simulate --format json` has it, and its interval
FIGURES = {
    "ttft_ms": (("ttft_ms", "mean"), "ttft_mean_ms", "TTFT, ms"),
    "tpot_ms": (("tpot_ms", "mean"), "tpot_mean_ms", "TPOT, ms"),
    "tokens_s": (("output_throughput",), "output_throughput", "tokens/s"),
}
COLUMNS = ("run", "figure", "measured", "predicted", "error", "interval", "inside", "assumed", "source")


def predicted(flags: str) -> dict:
    """Return what `kernelsight simulate` prints for the flags of a run; its sentence where it refuses."""
    words = [sys.executable, "-m", "kernelsight", "simulate", *shlex.split(flags), "--format", "json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {"refused": done.stderr.strip().splitlines()[-1]}


def rows_of(run: dict[str, str]) -> list[list[str]]:
    """Return a row of the table for each measured figure of a run."""
    answer, rows = predicted(run["flags"]), []
    for name, (path, interval, title) in FIGURES.items():
        if not run[name]:
            continue
        measured = float(run[name])
        if "refused" in answer:
            rows.append([run["run"], title, f"{measured:,.1f}", answer["refused"], *["–"] * 3])
            break
        value = answer
        for word in path:
            value = value[word]
        low, high = answer["interval_90"][interval]
        inside = "yes" if low <= measured <= high else "no"
        error, width = f"{100 * (value / measured - 1):+.0f} %", f"{low:,.1f} to {high:,.1f}"
        rows.append([run["run"], title, f"{measured:,.1f}", f"{value:,.1f}", error, width, inside])
    return [[*row, run["assumed"], run["source"]] for row in rows]


def main() -> None:
    """Predict every run, print and record the table."""
    rows = [row for run in csv.DictReader(RUNS.read_text().splitlines()) for row in rows_of(run)]
    print(*table_lines([dict(zip(COLUMNS, row, strict=True)) for row in rows], list(COLUMNS[:7])), sep="\n")
    print(record("public_runs", {"runs": {"columns": list(COLUMNS), "rows": rows}}, "python benches/public_runs.py"))


if __name__ == "__main__":
    main()
