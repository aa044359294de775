"""Windows between two scrapes of a server's counters: the load, measured means, and the means predicted for it."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kernelsight.comparison.errors import METRICS, predicted_of
from kernelsight.comparison.log_replayer import LogReplayer
from kernelsight.comparison.replay import LOAD, Variant, conformed
from kernelsight.dataflow.session import Session
from kernelsight.errors import InvalidInput
from kernelsight.logs.prometheus import used_lines
from kernelsight.logs.read_logs import read_logs

# metric, the column of its mean, and the column that weighs it; the first that a server exposes is used
MEANS = (
    ("ttft", "ttft_mean_ms", "first_tokens"),
    ("tpot", "tpot_mean_ms", "finished"),
    ("tpot", "itl_mean_ms", "output_tokens"),
    ("e2e", "e2e_mean_ms", "finished"),
)
# fewer requests between two polls are not compared; bounds of the requests that are drawn to predict their means
LEAST_REQUESTS, LEAST_DRAWN, MOST_DRAWN = 5, 200, 2000


def scraped(text: str) -> str:
    """Return the lines of a scrape that windows are computed from, which are kept until the next poll."""
    return "\n".join(["# TYPE kept untyped", *used_lines(text)]) + "\n"


def counters_between(before: str, later: str) -> dict[str, float] | None:
    """Return the increase of a server's counters between two scrapes, summed over engines, and mean times, ms.

    None: counters fell or are missing, as after a restart.
    """
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{name}.txt" for name in ("before", "now")]
        for file, text in zip(files, (before, later), strict=True):
            file.write_text(text, encoding="utf-8")
        try:
            windows = read_logs(metrics=files)["production_windows"].to_pylist()
        except InvalidInput:
            return None
    counts = ("prompt_tokens", "output_tokens", "cached_tokens", "first_tokens", "finished", "running", "waiting")
    counters = {name: float(sum(row[name] or 0.0 for row in windows)) for name in counts}
    for metric, mean, count in MEANS:
        measured_windows = [row for row in windows if row[mean] is not None and row[count]]
        weight = sum(row[count] for row in measured_windows)
        if weight and metric not in counters:
            counters[metric] = sum(row[mean] * row[count] for row in measured_windows) / weight
    return counters


def window_between(
    counters: Mapping[str, float], seconds: float, flags: Mapping[str, Any], session: Session
) -> dict[str, dict[str, float]]:
    """Return measured and expected means by metric, ms; empty if too few requests were served.

    The expected load is drawn: requests at the measured rate, with mean lengths and exponential gaps.
    """
    started, ended = counters["first_tokens"], counters["finished"]
    if min(started, ended) < LEAST_REQUESTS or seconds <= 0.0:
        return {}
    count = int(min(max(started, LEAST_DRAWN), MOST_DRAWN))
    sent_s = np.cumsum(np.random.default_rng(0).exponential(seconds / started, count))
    prompt = max(round((counters["prompt_tokens"] - counters["cached_tokens"]) / started), 1)
    output = max(round(counters["output_tokens"] / ended), 1)
    columns = {"load_id": [LOAD] * count, "request_id": np.arange(count), "arrival_s": sent_s - sent_s[0]}
    load = conformed({**columns, "prompt_tokens": [prompt] * count, "output_tokens": [output] * count})
    (served,) = LogReplayer(session, load).serve([Variant(flags)], with_parts=False)
    expected = predicted_of(served, np.full(count, float(output)))
    figures = {}
    for metric in METRICS:
        finite_ms = expected[metric][np.isfinite(expected[metric])]
        if metric in counters and counters[metric] > 0.0 and finite_ms.size:
            expected_mean = float(finite_ms.mean())
            figures[metric] = {
                "n": started if metric == "ttft" else ended,
                "measured_mean": counters[metric],
                "expected_mean": expected_mean,
                "log_factor": math.log(counters[metric] / expected_mean),
            }
    return figures
