"""Published runs with drafts and with adapters beside their predictions: ``python benches/drafts_and_adapters.py``.

Reads ``benches/evaluation/runs/drafts_and_adapters.csv``: one row a run, with its settings, what is assumed of them,
and its source. A stated acceptance length L of d passes becomes the constant rate p of 1 + p + … + p^d = L; nothing is
fitted to these runs. Prints the table as Markdown, and what drafts gain by batch; which runs are no blind test is said
in ``benches/evaluation/lab/drafts_and_adapters.md``.
"""

from __future__ import annotations

import csv
import json
import shlex
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from record import ROOT

import kernelsight as ks

RUNS = ROOT / "benches/evaluation/runs/drafts_and_adapters.csv"
# column of scenario_intervals by metric of a run; all tokens are in proportion to those that are answered
COLUMNS = {
    **{"tpot_ms": "tpot_mean_ms", "itl_ms": "tpot_mean_ms", "request_throughput": "request_throughput"},
    **{"output_throughput": "output_throughput", "total_throughput": "output_throughput"},
}


def rate_of(length: float, passes: int) -> float:
    """Return the acceptance rate at which ``passes`` drafts give ``length`` tokens a step, by bisection.

    >>> round(rate_of(1.75, 2), 3)
    0.5
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**i for i in range(passes + 1)) < length else (low, middle)
    return low


def passes_of(launch: str) -> int:
    """Return the drafts of a chain, or the steps of a tree, that a launch line states."""
    words = shlex.split(launch)
    if "--speculative-num-steps" in words:
        return int(words[words.index("--speculative-num-steps") + 1])
    return json.loads(words[words.index("--speculative-config") + 1])["num_speculative_tokens"]


def flags_of(run: Mapping[str, str]) -> dict[str, Any]:
    """Return the flags of a run: its launch line, version, GPU and load, and the rate of its acceptance length."""
    stated = dict(word.split("=") for word in run["load"].split())
    flags: dict[str, Any] = {name: run[name] for name in ("launch", "engine_version", "gpu")}
    flags |= {name: True if value == "true" else value for name, value in stated.items()}
    if run["acceptance_length"]:
        flags["draft_acceptance_rate"] = rate_of(float(run["acceptance_length"]), passes_of(run["launch"]))
    return flags


def predicted(session: ks.Session, run: Mapping[str, str]) -> tuple[float, float, float]:
    """Return (predicted value, low, high) of a run's metric."""
    simulated = session.simulate(**flags_of(run))
    summary, column = simulated.summary, COLUMNS[run["metric"]]
    (row,) = (row for row in simulated.table("scenario_intervals").to_pylist() if row["metric"] == column)
    scale = summary["total_throughput"] / summary["output_throughput"] if run["metric"] == "total_throughput" else 1.0
    return row["predicted"] * scale, row["low"] * scale, row["high"] * scale


def lines(runs: list[dict[str, str]]) -> Iterator[str]:
    """Yield the lines of the report."""
    with ks.connect() as session:
        found = {run["run"]: predicted(session, run) for run in runs}
    yield "| run | metric | measured | predicted | 90 % interval | error |"
    yield "|---|---|---|---|---|---|"
    errors: dict[str, list[float]] = {}
    for run in runs:
        measured, (value, low, high) = float(run["measured"]), found[run["run"]]
        error = value / measured - 1
        errors.setdefault(run["kind"], []).append(abs(error))
        interval = f"{low:,.4g} to {high:,.4g}{'' if low <= measured <= high else ' (outside)'}"
        yield f"| {run['run']} | {run['metric']} | {measured:,.4g} | {value:,.4g} | {interval} | {100 * error:+.0f} % |"
    for kind, values in errors.items():
        yield f"\n{kind}: median error {100 * statistics.median(values):.0f} % of {len(values)} runs"
    yield "\n| drafts against none | batch | measured | predicted |\n|---|---|---|---|"
    for run in runs:
        if run["kind"] != "draft" or not run["acceptance_length"]:
            continue
        (none,) = (
            other
            for other in runs
            if (other["series"], other["batch"]) == (run["series"], run["batch"]) and not other["acceptance_length"]
        )
        gains = float(run["measured"]) / float(none["measured"]), found[run["run"]][0] / found[none["run"]][0]
        if run["metric"] == "tpot_ms":
            gains = 1 / gains[0], 1 / gains[1]
        yield f"| {run['run']} | {run['batch']} | {gains[0]:.2f} | {gains[1]:.2f} |"


def main() -> None:
    """Print the report."""
    with RUNS.open(encoding="utf-8", newline="") as file:
        runs = list(csv.DictReader(file))
    print("\n".join(lines(runs)))


if __name__ == "__main__":
    main()
