"""Comparison of a log with an earlier one (baseline): what changed in load, speed and settings, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from kernelsight.comparison.answer import NO_CAUSE, as_cause
from kernelsight.comparison.comparison_tables import ComparisonTables
from kernelsight.comparison.errors import METRICS
from kernelsight.comparison.log_changes import LENGTHEN
from kernelsight.comparison.log_pairs import TABLES
from kernelsight.comparison.question import Question
from kernelsight.comparison.unused_rows import fault_counts, unused_clause
from kernelsight.comparison.verdict import AGREES, cause_sentence, verdict_table
from kernelsight.dataflow.session import Session
from kernelsight.escape import visible
from kernelsight.number_format import number, percent

NAME = "changed"
# prefix of the earlier log's name, which distinguishes its rows in tables of both logs
EARLIER = "before/"


def merged_logs(after: Mapping[str, pa.Table], before: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Return the tables of two logs as one set, the earlier log's names beginning with EARLIER."""

    def renamed(table: pa.Table) -> pa.Table:
        if "log_id" not in table.column_names:
            return table
        column_index = table.column_names.index("log_id")
        names = [f"{EARLIER}{name}" for name in table["log_id"].to_pylist()]
        return table.set_column(column_index, table.schema.field(column_index), pa.array(names, pa.string()))

    return {name: pa.concat_tables([table, renamed(before[name])]) for name, table in after.items()}


class BaselineComparison(ComparisonTables):
    """A log and an earlier one: a view of the tables that the graph makes of both.

    >>> import kernelsight as ks
    >>> def log(ms):
    ...     sizes = {"prompt_tokens": 64, "output_tokens": 9}
    ...     return [{"arrival_s": i / 4, **sizes, "ttft_ms": 20.0, "e2e_ms": ms + i % 3} for i in range(120)]
    >>> changed = ks.compare(requests=log(50.0), baseline=log(40.0))
    >>> changed.summary["verdict"].split(";")[0]
    'mean E2E is 24.4% longer than before (51 ms, before 41 ms)'
    """

    _derived = TABLES
    _description = "a comparison of two logs"

    def __init__(
        self, session: Session, after: Mapping[str, pa.Table], before: Mapping[str, pa.Table], question: Question
    ) -> None:
        logs = merged_logs(after, before)
        super().__init__(session, list(logs))
        ids = [logs["production_logs"]["log_id"].to_pylist()[rows] for rows in _row_slices(after)]
        session.give("comparisons", [question._replace(log_ids=tuple(ids[0]), baseline=tuple(ids[1])).as_row(NAME)])
        for name, table in logs.items():
            session.give(name, table, trusted=True)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The comparison as ``kernelsight compare --format json`` prints it; ``predicted`` is the earlier log."""
        latencies = self._rows("change_latencies")
        causes = [as_cause(row) for row in self._rows("change_causes")]
        faults = self._session.table("log_faults").to_pylist()
        requests = self._session.table("production_requests")
        is_earlier = np.array([name.startswith(EARLIER) for name in requests["log_id"].to_pylist()])
        ok = np.array([status == "ok" for status in requests["status"].to_pylist()])
        counts = {"after": int((ok & ~is_earlier).sum()), "before": int((ok & is_earlier).sum())}
        by_metric = {(row["metric"], row["statistic"]): row for row in latencies}
        summary: dict[str, Any] = {
            "requests": counts["after"],
            "baseline": {"requests": counts["before"]},
            "dropped": fault_counts(row for row in faults if not row["log_id"].startswith(EARLIER)),
            "files": self._session.table("production_files").to_pylist(),
            **{f"{name}_ms": _errors(by_metric.get((f"{name}_ms", "mean")), counts) for name in METRICS},
            "changes": self._rows("log_changes"),
            "causes": causes,
            "cause": causes[0] if causes else dict(NO_CAUSE),
            "percentiles": _percentiles(latencies),
        }
        e2e = by_metric.get(("e2e_ms", "mean"))
        summary["parts"] = _parts_of_miss(e2e)
        running_max = next((row for row in summary["changes"] if row["what"] == "running_max"), None)
        summary["occupancy"] = {"running_max": _pair(running_max)} if running_max else {}
        summary |= {"suspects": [], "fit": {}, "drift": [], "cached_tokens": {}, "evidence": {}, "not_separated": []}
        return summary | {"verdict": _verdict(summary)}

    def _rows(self, name: str) -> list[dict[str, Any]]:
        return self.table(name).to_pylist()

    def __repr__(self) -> str:
        return visible(f"BaselineComparison({self.summary['verdict']})")

    def _repr_html_(self) -> str:
        rows = [row for row in self.summary["changes"] if row["certain"]]
        return verdict_table(self.summary, rows, ("what", "before", "after", "factor"))


def _row_slices(later_tables: Mapping[str, pa.Table]) -> tuple[slice, slice]:
    later_logs = later_tables["production_logs"].num_rows
    return slice(0, later_logs), slice(later_logs, None)


def _pair(row: Mapping[str, Any]) -> dict[str, float | None]:
    return {"measured": row["after"], "predicted": row["before"]}


def _errors(mean: Mapping[str, Any] | None, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the mean latencies of both logs, ms, and their bias; errors by request are None.

    Requests of one log have no counterpart in the other.
    """
    no_errors = dict.fromkeys(("median_ape", "p90_ape", "coverage_90"))
    if mean is None or mean["before"] is None or mean["after"] is None:
        return {"n": 0, "measured": None, "predicted": None, "bias": None, **no_errors}
    bias = mean["before"] / mean["after"] - 1.0 if mean["after"] else None
    return {"n": counts["after"], **_pair(mean), "bias": bias, **no_errors}


def _percentiles(latencies: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float | None]]]:
    percentiles: dict[str, dict[str, dict[str, float | None]]] = {}
    for row in latencies:
        if row["statistic"] != "mean":
            percentiles.setdefault(row["metric"], {})[row["statistic"]] = _pair(row)
    return percentiles


def _parts_of_miss(e2e: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the difference of mean E2E, ms, split into the part of the workload and the unexplained rest."""
    if e2e is None or e2e["before"] is None or e2e["after"] is None or e2e["expected"] is None:
        return []
    load, unexplained = e2e["expected"] - e2e["before"], e2e["after"] - e2e["expected"]
    total = abs(load) + abs(unexplained)
    rows = [
        {"part": name, "miss_ms": miss, "share": abs(miss) / total if total else None, "posterior_ratio": None}
        for name, miss in (("workload", load), ("unexplained", unexplained))
    ]
    return sorted(rows, key=lambda row: -abs(row["miss_ms"]))


def _verdict(summary: Mapping[str, Any]) -> str:
    """Return the verdict, one sentence: change of the mean latency, the workload's part of it, and the causes."""
    name = next((name for name in ("E2E", "TPOT", "TTFT") if summary[f"{name.lower()}_ms"]["n"]), None)
    if name is None:
        return "the two logs have no latency in common, so that nothing is compared."
    latency = summary[f"{name.lower()}_ms"]
    change = latency["measured"] / latency["predicted"] - 1.0 if latency["predicted"] else 0.0
    times = f"({number(latency['measured'])} ms, before {number(latency['predicted'])} ms)"
    agrees = abs(change) < AGREES and not summary["causes"]
    clauses = [
        f"both logs agree: mean {name} {times}"
        if agrees
        else f"mean {name} is {percent(abs(change), 1)} {'longer' if change > 0 else 'shorter'} than before {times}"
    ]
    load = next((row["miss_ms"] for row in summary["parts"] if row["part"] == "workload"), None)
    changed = {row["what"] for row in summary["changes"] if row["certain"]}
    is_load = load is not None and bool(changed & set(LENGTHEN))
    if is_load and name == "E2E" and not agrees and abs(load) >= AGREES * latency["predicted"]:
        clauses.append(f"the load makes {'+' if load >= 0 else '-'}{number(abs(load), 3)} ms of it")
    clauses += [cause_sentence(cause, "what it was before", "before") for cause in summary["causes"]]
    power_change = next((row for row in summary["changes"] if row["what"] == "power_w" and row["certain"]), None)
    if power_change is not None:
        clauses.append(
            f"its GPUs drew {number(power_change['after'], 3)} W, before {number(power_change['before'], 3)} W"
        )
    if not changed and not summary["causes"] and not agrees:
        clauses.append("no change beyond chance")
    elif not summary["causes"] and not agrees:
        unexplained = next((row["miss_ms"] for row in summary["parts"] if row["part"] == "unexplained"), None)
        if unexplained is None:
            clauses.append("too few requests with times of sending for a cause")
        elif abs(unexplained) < AGREES * latency["measured"]:
            clauses.append("at the same load the engine is as fast as before")
        else:
            clauses.append("no cause holds")
    return f"{'; '.join(clauses)}{unused_clause(summary['dropped'])}."
