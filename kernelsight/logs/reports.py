"""Reader of statistics without requests: printed blocks and tables of benchmarks, and JSON summaries, by log_forms."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kernelsight.files.row_files import cells_of
from kernelsight.logs.files import LogFile, documents, unusable
from kernelsight.logs.labels import IGNORED, label_of, unit_of, value_in
from kernelsight.logs.log_run import LogRun
from kernelsight.logs.summaries import statistic
from kernelsight.scenario.proposed_columns import columns_flag

# statistics by (metric, statistic)
Statistics = dict[tuple[str, str], float]
_NUMBER = r"\d[\d,]{0,20}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,3})?"
# the end of a line with a label: separator, value and unit; a line that is longer has none
_VALUE = re.compile(
    rf"(?:[:=,]|\s)\s{{0,48}}({_NUMBER}|inf(?:inity)?|none|not set)(?:/\d{{1,12}})?"
    r"\s{0,4}([A-Za-zµ/%]{0,16})\s{0,4}[|,;]?$",
    re.IGNORECASE,
)
LONGEST = 400
# what terminals, log systems, quotes and lists write before a line
_BEFORE = re.compile(
    r"^(?:\x1b\[[\d;]*m|[\s>#*•+│┃|`'\"-]|\d{4}-\d\d-\d\d[T ]?|\d\d[-/]\d\d\b|\d\d:\d\d:\d\d[\d.,Z]*"
    r"|\([A-Za-z ]+pid=[^)]*\)|(?:INFO|DEBUG|WARNING|NOTICE|std(?:out|err)(?: [FP])?)\b:?"
    r"|\[[^\]]*(?:\d|INFO|BENCHMARK|TRT-LLM|I)\](?:<\w+>:?)?|[\w.-]+\.py:\d+\]?:?)+"
)
_RULE = re.compile(r"[=]{12,}|^\s*[+├└┌┏┗╞][-─━=┳┬]{6}")
_CELLS = re.compile(r"[|│┃]")
_CODES = re.compile(r"\x1b\[[\d;]*m")
LOADS = ("requests", "achieved_rate", "output_tokens_per_s", "duration_s")
LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
SETTINGS = ("max_concurrency", "requested_rate", "unlimited_rate")
RANKS = {"min": -1.0, "max": 101.0}
TOTALS = ("requests", "failed", "duration_s", "prompt_tokens", "output_tokens", "unlimited_rate")
COUNTS = ("requests", "failed", "duration_s")
UNLIMITED = 1e9  # requests per second: all at once; TensorRT-LLM prints 5e14
# text without one of these words has no statistics of latencies
_WORDS = re.compile(r"ttft|tpot|itl|latency|first.token|throughput", re.IGNORECASE)


def add_value(found: Statistics, text: str, value: str, form: str, usual_unit: str | None = None) -> None:
    """Add the value of a label to statistics by (metric, statistic); labels without meaning are passed over."""
    label = label_of(text, form)
    number = value.replace(",", "").strip().lower()[:30]
    if label.metric in (None, IGNORED) or label.statistic == "std":
        return
    try:
        amount = value_in(label.metric, float(number), label.unit or usual_unit)
    except ValueError:
        return
    if label.metric == "requested_rate" and amount is not None and amount >= UNLIMITED:
        found["unlimited_rate", "total"] = 1.0
        return
    if amount is not None and math.isfinite(amount) and amount >= 0:
        usual = "total" if label.metric in TOTALS else "mean"
        counted = label.metric in COUNTS and label.statistic == "mean"
        found[label.metric, usual if counted else label.statistic or usual] = amount


def fragments_of(text: str) -> Iterator[tuple[str, Statistics]]:
    """Yield (name, statistics) of the parts of a text: between rules of "=", rows of a table, and repeated labels.

    A rule or a repeated label with another value begins a new part.
    """
    found: Statistics = {}
    heading, header = "", []
    for line in text.splitlines():
        line = line[:LONGEST].rstrip()
        if _RULE.search(line) and found and not _CELLS.search(line):
            yield "", found
            found, heading = {}, ""
        plain = _CODES.sub("", line)
        cells = _cells(plain)
        if len(cells) > 2:
            kind = _header(cells)
            if kind:
                header = [kind, *cells]
            elif header and len(cells) == len(header) - 1:
                if header[0] == "metrics":
                    yield from _table_row(header[1:], cells)
                    continue
                for name, cell in zip(header[2:], cells[1:], strict=True):
                    add_value(found, f"{name} {cells[0]}", cell, "genai-perf-summary")
            continue
        row, heading = _labelled(plain, heading)
        if any(found.get(key, value) != value for key, value in row.items()):
            yield "", found
            found = {}
        found |= row
    yield "", found


def _cells(line: str) -> list[str]:
    """Return the cells of a row of a printed table or of a CSV file; fewer than three: it is none."""
    if re.search(r"[|│┃]", line):
        return [cell.strip() for cell in _CELLS.split(line.strip().strip("|│┃"))]
    return cells_of(line) if line.count(",") > 1 and ": " not in line else []


def _header(cells: Sequence[str]) -> str | None:
    """Return what the columns of a table's header are: statistics of the row's metric, or metrics of the row's run."""
    labels = [label_of(cell, "results-table") for cell in cells[1:]]
    if sum(label.statistic is not None and label.metric is None for label in labels) > 1:
        return "statistics"
    return "metrics" if sum(label.metric in LATENCIES for label in labels) > 0 and len(labels) > 1 else None


def _table_row(header: Sequence[str], cells: Sequence[str]) -> Iterator[tuple[str, Statistics]]:
    """Yield the run in a row of a table whose columns are metrics; nothing for a row without a latency."""
    found: Statistics = {}
    for name, cell in zip(header, cells, strict=True):
        if match := re.match(rf"({_NUMBER})(?:/\d+)?\s*(.*)$", cell):
            add_value(found, name, match[1], "results-table", unit_of(match[2]))
    if any(metric in LATENCIES for metric, _ in found):
        yield cells[0] if label_of(header[0], "results-table").metric is None else f"{header[0]} {cells[0]}", found


def _labelled(line: str, heading: str) -> tuple[Statistics, str]:
    """Return the statistics in a line with a label and a value, and the heading that applies to those after it."""
    found: Statistics = {}
    text = _BEFORE.sub("", line).strip()
    match = _VALUE.search(text)
    name = text[: match.start()].strip(" :=|,") if match else ""
    if match is None or not name:
        title = re.sub(r"[-=_]{2,}|(?i:breakdown|\(excl[^)]*\))", " ", text).strip()
        return found, title if label_of(title).metric in LATENCIES else heading
    unit, value = unit_of(match[2]) if match[2] else None, match[1]
    add_value(found, name, value, "any", unit)
    label = label_of(name)
    if not found and heading and label.statistic and label.metric is None and len(name.split()) < 3:
        add_value(found, f"{label.statistic} {heading}", value, "any", unit or label.unit)
    elif heading and label.metric and label.unit is None and not found:
        add_value(found, name, value, "any", unit or label_of(heading).unit)
    return found, heading


def blocks_of(fragments: Iterable[tuple[str, Statistics]]) -> list[tuple[str, Statistics]]:
    """Return (name, statistics) of the runs of a text: parts that do not contradict each other belong together.

    Settings of the client that stand alone belong to the part after them.
    """
    blocks: list[tuple[str, Statistics]] = []
    waiting: Statistics = {}
    for name, found in fragments:
        if not found:
            continue
        if all(metric in SETTINGS for metric, _ in found):
            waiting |= found
            continue
        found, waiting = waiting | found, {}
        last = blocks[-1][1] if blocks and not name else None
        if last is not None and not (is_whole(last) and is_whole(found)) and agree(last, found):
            last |= found
        elif last is None or last != found:
            blocks.append((name, found))
    if blocks:
        blocks[-1] = (blocks[-1][0], waiting | blocks[-1][1])
    return blocks


def agree(one: Statistics, other: Statistics) -> bool:
    """Whether two parts of a text have no statistic with two values."""
    return all(one.get(key, value) == value for key, value in other.items())


def is_whole(found: Statistics) -> bool:
    """Whether statistics have a latency and say something of the load."""
    metrics = {metric for metric, _ in found}
    return bool(metrics.intersection(LATENCIES)) and bool(metrics.intersection(LOADS))


def contradiction(found: Statistics) -> str | None:
    """Return why statistics cannot be those of one run, or None."""
    for metric in LATENCIES:
        ranks = sorted(
            (RANKS.get(name) or float(name[1:]), name) for kind, name in found if kind == metric and name != "mean"
        )
        for (_, lower), (_, higher) in itertools.pairwise(ranks):
            if found[metric, lower] > found[metric, higher]:
                return f"its {lower} of {metric} is above its {higher}"
    duration = found.get(("duration_s", "total"))
    for total, rate in (("requests", "achieved_rate"), ("output_tokens", "output_tokens_per_s")):
        count, speed = found.get((total, "total")), found.get((rate, "mean"))
        if duration and count and speed and abs(speed * duration - count) > 0.03 * count + 0.006 * duration:
            return f"its {total} in its duration are not its {rate}"
    return None


def flattened(value: Any, path: str = "") -> Iterator[tuple[str, Any, str | None]]:
    """Yield (words of the path, value, unit that its object states) of each number in a JSON value, without lists."""
    if isinstance(value, Mapping):
        unit = value.get("unit") if isinstance(value.get("unit"), str) else None
        for name, inner in value.items():
            if isinstance(inner, Mapping):
                if set(inner) == {"secs", "nanos"}:
                    yield f"{path} {name}", inner["secs"] + inner["nanos"] / 1e9, "s"
                yield from flattened(inner, f"{path} {name}".strip())
            elif isinstance(inner, (int, float, str)) and not isinstance(inner, bool):
                yield f"{path} {name}".strip(), inner, unit


def statistics_of_result(result: Mapping[str, Any], form: str = "result") -> list[dict[str, Any]]:
    """Return the statistics in the fields of a result, as rows of a run; by default those of vLLM and SGLang.

    >>> statistics_of_result({"mean_e2el_ms": 5.0, "completed": 3, "request_rate": "inf"})[0]["metric"]
    'e2e_ms'
    """
    found: Statistics = {}
    for words, value, unit in flattened(result):
        add_value(found, words, str(value), form, unit_of(unit) if unit else None)
    return [row for (metric, stated), value in found.items() for row in statistic("run", metric, stated, value)]


def read(files: Sequence[LogFile], form: Mapping[str, Any]) -> list[LogRun]:
    """Return one run per file, whose parts are the runs in it, with their statistics."""
    runs = []
    for file in files:
        run = LogRun(file, form["form"])
        blocks = [(name, found) for name, found in _blocks(file, form) if name != "warmup"]
        whole = [(name, found) for name, found in blocks if is_whole(found) and not contradiction(found)]
        if not whole:
            problem = next((reason for _, found in blocks if (reason := contradiction(found))), "it has no latency")
            raise unusable(file.path, f"holds no whole result: {problem}", "Give the text as it was printed.")
        for number, (name, found) in enumerate(whole, 1):
            part = (
                name or "run" if len(whole) == 1 else f"{number:02d} {name}".strip() if name else f"block {number:02d}"
            )
            for (metric, stated), value in found.items():
                run.summaries += statistic(part, metric, stated, value)
        run.faults.add("statistics_only", len(whole), whole[0][0] or "the first block" if whole else None)
        run.faults.add("part_of_a_block", len(blocks) - len(whole))
        runs.append(run)
    return runs


def _blocks(file: LogFile, form: Mapping[str, Any]) -> list[tuple[str, Statistics]]:
    """Return (name, statistics) of the runs in a file."""
    if form["layout"] == "text":
        return blocks_of(fragments_of(file.text_of_all()))
    blocks: list[tuple[str, Statistics]] = []
    for _, value in documents(file):
        entries = value.get(form["parts"]) if form["parts"] and isinstance(value, Mapping) else [value]
        for entry in entries if isinstance(entries, list) else []:
            found: Statistics = {}
            for row in statistics_of_result(entry, form["form"]):
                found[row["metric"], row["statistic"]] = row["value"]
            name = entry.get("id") if isinstance(entry, Mapping) else None
            blocks.append((str(name) if name else "", found))
    return blocks


def recognises(file: LogFile, form: Mapping[str, Any]) -> bool:
    """Whether a file is of a form, a row of ``log_forms``."""
    if form["layout"] == "json":
        return file.kind == "json" and set(form["signature"].split()) <= file.fields
    if file.kind == "json" and not file.text.lstrip().startswith("["):
        return False
    if file.kind not in ("text", "json") or not _WORDS.search(file.text):
        return False
    if file.kind == "text" and len(file.columns) > 2 and columns_flag(sorted(file.columns)):
        return False  # a table of requests, each of which has a latency and a duration of its own
    return any(is_whole(found) for _, found in blocks_of(fragments_of(file.text)))


def labels_in(file: LogFile) -> set[str]:
    """Return the metrics that a text states with a label, of however little."""
    if file.kind != "text":
        return set()
    return {metric for _, found in fragments_of(file.text) for metric, _ in found}
