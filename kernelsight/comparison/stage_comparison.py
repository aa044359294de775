"""A log of statistics compared with the simulation of its stages: what can be said without requests."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kernelsight.catalog.tables import contracts
from kernelsight.comparison.errors import METRICS
from kernelsight.comparison.replay import NO_LOAD, conformed
from kernelsight.comparison.stage_logs import Stage, client_of, findings, load_of_stage, stages_of
from kernelsight.comparison.unused_rows import counted, unused
from kernelsight.comparison.verdict import verdict_table
from kernelsight.dataflow.rows import as_table
from kernelsight.dataflow.session import Session
from kernelsight.errors import InvalidInput
from kernelsight.escape import visible
from kernelsight.scenario.scenarios import give_plan, plan_rows

STATISTICS = ("mean", "p50", "p90", "p99")
TABLE = "stage_vs_prediction"
NAMES = ("measured", "predicted")


class StageComparison:
    """A production log without requests: each stage's statistics beside those of its simulation.

    ``flags``: of the deployment; ``stated``: of the load, of which ``max_concurrency`` (what the client has in flight
    at most), ``input_len``, ``output_len`` (where the client counts tokens anew) and ``seed`` are used.
    InvalidInput: a log whose statistics do not say what was sent.
    """

    def __init__(
        self,
        session: Session,
        tables: Mapping[str, pa.Table],
        flags: Mapping[str, Any],
        stated: Mapping[str, Any] | None = None,
    ) -> None:
        self._session, self._logs, self._flags = session, dict(tables), dict(flags)
        self._stated = dict(stated or {})
        self.stages: list[Stage] = stages_of(self._logs["production_summaries"])
        self._client: dict[str, float] = client_of(self._logs["production_summaries"])
        if not self.stages:
            raise InvalidInput(
                "the log holds no requests with a prompt length, and its statistics do not say how many were sent, how "
                "fast, and of which lengths; log_faults says why rows were dropped."
            )

    @cached_property
    def _served(self) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]], dict[str, str | None]]:
        """Rows of ``scenario_summary`` by stage, their intervals, and what the prediction rests on."""
        seed = self._stated.get("seed", 0)
        with self._session.fork() as fork:
            plan = plan_rows(fork, [{**NO_LOAD, **self._flags}], origin="")
            scenario = plan.planned[0]
            scenarios, loads = [], []
            for number, stage in enumerate(self.stages):
                own = f"{number:03d}"
                known = self._stated.get("max_concurrency") or self._client.get("max_concurrency")
                most = int(known) if known else None if stage.is_open else stage.in_flight
                scenarios.append({**scenario, "scenario_id": own, "max_concurrency": most})
                columns = load_of_stage(stage, seed + number, self._stated, self._client)
                loads.append(pa.table({"load_id": pa.array([own] * stage.requests), **columns}))
            give_plan(fork, plan.deployments_of(plan.planned), scenarios)
            fork.give(
                "scenario_loads", [dict.fromkeys(("scenario_id", "load_id"), row["scenario_id"]) for row in scenarios]
            )
            together = pa.concat_tables(loads)
            fork.give(
                "load_requests", conformed({name: together[name] for name in together.column_names}), trusted=True
            )
            fork.compute("scenario_summary", "scenario_intervals", "deployment_tiers")
            rows = sorted(fork.table("scenario_summary").to_pylist(), key=lambda row: row["scenario_id"])
            intervals: dict[str, dict[str, Any]] = {}
            for row in fork.table("scenario_intervals").to_pylist():
                intervals.setdefault(row["scenario_id"], {})[row["metric"]] = (row["low"], row["high"])
            tier = fork.table("deployment_tiers").to_pylist()[0]
        return rows, intervals, {"tier": tier["tier"], "not_measured": tier["not_measured"]}

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of ``stage_vs_prediction``: each latency that the log states, and the rate of stages that were full."""
        summaries, intervals, _ = self._served
        found = []
        for stage, row in zip(self.stages, summaries, strict=True):
            ours = {
                (f"{metric}_ms", statistic): row[f"{metric}_{statistic}_ms"]
                for metric in METRICS
                for statistic in STATISTICS
            }
            theirs = dict(stage.measured)
            if not stage.is_open:
                # of a loop that is full the rate is an answer of the engine
                ours["request_throughput", "mean"] = row["request_throughput"]
                theirs["request_throughput", "mean"] = stage.achieved
            for key, predicted in ours.items():
                measured = theirs.get(key)
                if not measured or predicted is None:
                    continue
                metric, statistic = key
                name = metric if metric == "request_throughput" else f"{metric.removesuffix('_ms')}_{statistic}_ms"
                low, high = intervals.get(row["scenario_id"], {}).get(name, (None, None))
                found.append(
                    {
                        "log_id": stage.log_id,
                        "part": stage.part,
                        "open_loop": stage.is_open,
                        "metric": metric,
                        "statistic": statistic,
                        "measured": measured,
                        "predicted": predicted,
                        "error": predicted / measured - 1.0,
                        "low": low,
                        "high": high,
                    }
                )
        return found

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The comparison as ``kernelsight compare --format json`` prints it; ``stages``: the rows."""
        faults = self._logs["log_faults"].to_pylist()
        *_, rests_on = self._served
        errors = {f"{name}_ms": self._errors(f"{name}_ms") for name in METRICS}
        off = errors["e2e_ms"]["measured"] - errors["e2e_ms"]["predicted"] if errors["e2e_ms"]["n"] else 0.0
        return {
            "requests": sum(stage.requests for stage in self.stages),
            "dropped": counted(faults),
            "files": self._logs["production_files"].to_pylist(),
            **errors,
            "causes": [],
            "parts": [{"part": "unexplained", "miss_ms": off, "share": 1.0 if off else 0.0, "posterior_ratio": None}],
            "suspects": [],
            "fit": {},
            "drift": [],
            **rests_on,
            "stages": self.rows,
            "findings": findings(self.stages, faults, self._client),
            "verdict": self._verdict(),
        }

    def _errors(self, metric: str) -> dict[str, Any]:
        """Return mean times over requests, and the errors of the stages' means."""
        weights = {(stage.log_id, stage.part): stage.requests for stage in self.stages}
        rows = [row for row in self.rows if (row["metric"], row["statistic"]) == (metric, "mean")]
        if not rows:
            return {"n": 0, **dict.fromkeys(("measured", "predicted", "median_ape", "p90_ape", "bias", "coverage_90"))}
        weight = [weights[row["log_id"], row["part"]] for row in rows]
        measured, predicted = (np.average([row[name] for row in rows], weights=weight) for name in NAMES)
        ape = np.abs([row["error"] for row in rows])
        covered = [row["low"] <= row["measured"] <= row["high"] for row in rows if row["low"] is not None]
        return {
            "n": len(rows),
            "measured": float(measured),
            "predicted": float(predicted),
            "median_ape": float(np.median(ape)),
            "p90_ape": float(np.quantile(ape, 0.9)),
            "bias": float(predicted / measured - 1.0),
            "coverage_90": float(np.mean(covered)) if covered else None,
        }

    def _verdict(self) -> str:
        """Return one sentence: how far the open stages are off in E2E, and full ones in the rate that is served."""
        lost = unused(counted(self._logs["log_faults"].to_pylist()))
        means = [row for row in self.rows if row["statistic"] == "mean"]
        has_e2e = any(row["metric"] == "e2e_ms" and row["open_loop"] for row in means)
        # a report without E2E, such as vLLM's, has the other two
        of_open = ["e2e_ms"] if has_e2e else ["ttft_ms", "tpot_ms"]
        said = []
        for metric, is_open in (*((name, True) for name in of_open), ("request_throughput", False)):
            rows = [row for row in means if row["metric"] == metric and row["open_loop"] == is_open]
            if rows:
                errors = [row["error"] for row in rows]
                stages = f"{len(rows)} {'open' if is_open else 'full'} {'stage' if len(rows) == 1 else 'stages'}"
                what = metric.removesuffix("_ms").upper() if is_open else "rate"
                off = (
                    f"within {min(errors):+.1%} to {max(errors):+.1%} of" if len(rows) > 1 else f"{errors[0]:+.1%} off"
                )
                said.append(f"{what} of {stages} predicted {off} measured")
        if not said:
            return f"no stage of the log has a mean that is compared{lost}."
        return "; ".join(said) + f"; the log holds no requests, so that no cause was looked for{lost}."

    def table(self, name: str) -> pa.Table:
        """Return ``stage_vs_prediction``, or a table of the log; InvalidInput for another name."""
        if name in self._logs:
            return self._logs[name]
        if name != TABLE:
            raise InvalidInput(f"a comparison of statistics has no table {name!r}; it has {TABLE} and the log's.")
        return as_table(contracts()[TABLE], self.rows)

    def save(self, path: str | Path) -> None:
        """Write the comparison and the log to a DuckDB file."""
        with self._session.fork() as fork:
            for name in (TABLE, *self._logs):
                fork.give(name, self.table(name), trusted=True)
            fork.save(path, [TABLE, *self._logs])

    def sql(self, query: str) -> Any:
        """Return a DuckDB relation over the tables of the comparison and of the log."""
        for name in (TABLE, *self._logs):
            self._session.give(name, self.table(name), trusted=True)
        return self._session.sql(query)

    def __repr__(self) -> str:
        return visible(f"StageComparison({self.summary['verdict']})")

    def _repr_html_(self) -> str:
        return verdict_table(self.summary, self.rows, ("part", "metric", "statistic", "measured", "predicted", "error"))
