"""Reader of Prometheus metrics of servers and GPUs: range queries of the HTTP API, or two scrapes of ``/metrics``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from kernelsight.files.row_faults import Faults
from kernelsight.logs.files import LogFile, documents, unusable
from kernelsight.logs.log_run import LogFormat, LogRun
from kernelsight.logs.windows import is_used, load_of_windows, of_gpus, sources, windows_of

NAME = "prometheus"
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+(-?\d+(?:\.\d+)?))?\s*$")
_LABEL = re.compile(r'(?<!\w)(\w++)="((?:[^"\\]|\\.)*)"')
_SERVER = ("instance", "pod", "engine", "engine_index", "dp_rank", "worker_id")
# metric, replica, all labels as text, time in seconds (None: a snapshot without one), value
Sample = tuple[str, str, str, float | None, float]


def _recognises(file: LogFile) -> bool:
    if file.kind == "json":
        return "data.resultType" in file.fields or {"status", "errorType"} <= file.fields
    return file.kind == "text" and "\n# TYPE " in "\n" + file.text


def read_prometheus(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run of all files, with windows between consecutive scrapes: differences of counters, sums / counts.

    Answers of the API have times. Exactly two texts without times are one window, in the given order, or reversed if
    all counters fall otherwise. Windows in which a counter fell are dropped. One text
    alone states totals since the start of its server. InvalidInput: a failed query, or no metric of a server.
    """
    run = LogRun(files[0], NAME)
    samples: list[Sample] = []
    snapshots = 0
    for file in files:
        if file.kind == "json":
            samples += _from_api(file, run.faults)
        else:
            snapshots += 1
            samples += _from_text(file, run.faults, snapshots)
    if not samples:
        raise unusable(
            files[0].path,
            "has no metric of vLLM, SGLang or DCGM",
            "Query vllm:*, sglang:* or DCGM_FI_DEV_POWER_USAGE by name.",
        )
    times = {sample[3] for sample in samples}
    has_times = any(time is not None and time > 1e6 for time in times)
    frame = pl.DataFrame(samples, schema=_TYPES, orient="row", strict=False)
    if not has_times and snapshots == 1:
        run.summaries = _since_the_start(frame, run.faults)
        return [run]
    if not has_times and (snapshots != 2 or len(times) != 2):
        raise unusable(
            files[0].path,
            f"is one of {snapshots} snapshots without times",
            "Give the two from the start and the end of the load, or a range query of the HTTP API.",
        )
    run.clock = "unix" if has_times else "none"
    if not has_times:
        frame = _earlier_first(frame)
    run.windows = windows_of(frame, run.faults, has_times)
    if not run.windows.height:
        advice = (
            "Query a range with several steps." if has_times else "Give two texts of one server, without a restart."
        )
        raise unusable(files[0].path, "has no interval between two scrapes", advice)
    run.summaries = load_of_windows(run.windows, "between scrapes")
    return [run]


def _since_the_start(frame: pl.DataFrame, faults: Faults) -> list[dict[str, Any]]:
    """Return the totals of one scrape as summaries: counters begin at 0; gauges, of one moment, are left out."""
    counters = [name for name, (_, grows) in sources().items() if grows]
    later = frame.filter(pl.col("metric").is_in(counters))
    faults.add("one_scrape", later.height)
    began = later.with_columns(pl.lit(0.0).alias("value"), (pl.col("time") - 1.0).alias("time"))
    return load_of_windows(windows_of(pl.concat([began, later]), faults, False), "since the start")


def _earlier_first(frame: pl.DataFrame) -> pl.DataFrame:
    """Return two snapshots in the order in which counters grow: a folder lists ``after`` before ``before``."""
    counters = [name for name, (_, grows) in sources().items() if grows]
    series = frame.filter(pl.col("metric").is_in(counters)).group_by("metric", "replica", "labels")
    change = series.agg(pl.col("value").sort_by("time").diff().last())["value"].drop_nulls()
    is_reversed = (change < 0).any() and not (change > 0).any()
    return frame.with_columns((1.0 - pl.col("time")).alias("time")) if is_reversed else frame


_TYPES = {
    **dict.fromkeys(("metric", "replica", "labels"), pl.String),
    **dict.fromkeys(("time", "value"), pl.Float64),
}


def _from_api(file: LogFile, faults: Faults) -> Iterator[Sample]:
    """Yield the samples in answers of the HTTP API; InvalidInput: a failed query, or not a range or instant query."""
    for _, response in documents(file):
        data = response.get("data") if isinstance(response, Mapping) else None
        if not isinstance(data, Mapping) or response.get("status") != "success":
            raise unusable(file.path, "is not a successful answer of Prometheus", "Repeat the query.")
        if data.get("resultType") not in ("matrix", "vector"):
            raise unusable(file.path, f"is a {data.get('resultType')} of Prometheus", "Use /api/v1/query_range.")
        for series in data.get("result") or []:
            labels = dict(series["metric"])
            metric = labels.pop("__name__", "")
            if not is_used(metric):
                faults.add("unused_series" if metric else "unnamed_series", 1, metric or str(labels or "{}"))
                continue
            for time, text in series.get("values") or [series["value"]]:
                value = _number(text)
                if value is None:
                    faults.add("unreadable_value", 1, metric)
                else:
                    yield metric, _replica(metric, labels), str(sorted(labels.items())), float(time), value


def _from_text(file: LogFile, faults: Faults, snapshot: int) -> Iterator[Sample]:
    """Yield the samples of a text of ``/metrics``; ``snapshot``: its number from 1."""
    for line in file.lines():
        if line.startswith("#") or not line.strip():
            continue
        match = _SAMPLE.match(line)
        if match is None:
            faults.add("unreadable_value", 1)
            continue
        metric, labels, text, stamp = match.groups()
        value = _number(text)
        if not is_used(metric):
            continue
        if value is None:
            faults.add("unreadable_value", 1, metric)
            continue
        by_label = dict(_LABEL.findall(labels or ""))
        # times in a text are in milliseconds; without them the snapshot's number from 0 is the time
        time = float(snapshot - 1) if stamp is None else float(stamp) / 1e3
        yield metric, _replica(metric, by_label), str(sorted(by_label.items())), time, value


def used_lines(text: str) -> list[str]:
    """Return the lines of a scrape whose metrics are used for windows.

    >>> used_lines("# HELP a\\nvllm:prompt_tokens_total 5\\nother 3")
    ['vllm:prompt_tokens_total 5']
    """
    parsed = ((line, _SAMPLE.match(line)) for line in text.splitlines() if not line.startswith("#"))
    return [line for line, match in parsed if match is not None and is_used(match.group(1))]


def _number(text: Any) -> float | None:
    """Return a finite number in a text, else None."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _replica(metric: str, labels: Mapping[str, str]) -> str:
    """Return the name of the replica that a series belongs to; GPUs are grouped by host."""
    if of_gpus(metric):
        return f"GPUs of {labels.get('Hostname') or labels.get('instance') or 'the server'}"
    return "/".join(str(labels[name]) for name in _SERVER if labels.get(name)) or "0"


FORMAT = LogFormat(
    NAME, "metrics", "an answer of Prometheus's query_range, or texts of /metrics", _recognises, read_prometheus
)
