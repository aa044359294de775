"""Comparison of a log's statistics (stages without requests) with the simulation of each stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.comparison.answer import NO_CAUSE
from kernelsight.comparison.compared_log import Question, of_logs, question_of
from kernelsight.comparison.errors import METRICS
from kernelsight.comparison.replay import NO_LOAD, conformed
from kernelsight.comparison.replayed_log import served_label
from kernelsight.comparison.stage_logs import (
    Stage,
    client_of,
    findings,
    load_of_stage,
    server_sentences,
    stages_and_lacks,
)
from kernelsight.comparison.verdict import fault_counts, unused_clause
from kernelsight.dataflow.python_nodes import produces, reads
from kernelsight.dataflow.session import Session
from kernelsight.errors import InvalidInput
from kernelsight.number_format import deviation
from kernelsight.scenario.plan import give_plan, plan_rows

WINDOW_COLUMNS = [
    *("replica", "start_s", "end_s", "prompt_tokens", "output_tokens", "running", "waiting", "kv_share", "hit_share"),
]
MOST_WINDOWS = 1000
STATISTICS = ("mean", "p50", "p90", "p99")
NAMES = ("measured", "predicted")


class Stages(NamedTuple):
    """The stages of one comparison's log, and the settings that their client states; see ``client_of``."""

    comparison_id: str
    question: Question
    stages: Sequence[Stage]
    client: Mapping[str, float]
    server: Sequence[str] = ()  # what a server's log or metrics say
    lacks: Sequence[str] = ()


def stages_of_comparison(row: Mapping[str, Any], production_summaries: pa.Table) -> Stages:
    """Return the stages of a row of ``comparisons``; InvalidInput: none states its requests, rate and lengths."""
    question = question_of(row)
    summaries = of_logs(production_summaries, question)
    stages, lacks = stages_and_lacks(summaries, question.stated or {})
    server = server_sentences(summaries)
    if not stages and not server:
        raise InvalidInput(
            f"the log holds statistics and no requests, and lacks {lacks[0] if lacks else 'a run'}: state what is "
            "missing, such as --stated '--num-prompts 100 --input-len 512'."
        )
    return Stages(row["comparison_id"], question, stages, client_of(summaries), server, lacks)


@reads("scenario_summary", "scenario_intervals", "deployment_tiers", "scenario_tiers")
@produces("stage_vs_prediction", "stage_tiers")
def stage_rows(
    comparisons: pa.Table, production_summaries: pa.Table, *, fork: Callable[[], Session]
) -> dict[str, list[dict[str, Any]]]:
    """Measured and simulated statistics of the stages of logs that hold no requests.

    Every stage is simulated with the load that its client sent.

    Flags of the described load that are used: ``max_concurrency`` (of the client), ``input_len``, ``output_len``
    (where the client retokenises), ``range_ratio`` and ``seed``.
    """
    rows, tiers = [], []
    for row in comparisons.to_pylist():
        comparison = stages_of_comparison(row, production_summaries)
        if not comparison.stages:
            continue
        with fork() as session:
            give_stages(session, comparison)
            session.compute("scenario_summary", "scenario_intervals", "deployment_tiers", "scenario_tiers")
            summaries = sorted(session.table("scenario_summary").to_pylist(), key=lambda row: row["scenario_id"])
            intervals: dict[str, dict[str, Any]] = {}
            for interval in session.table("scenario_intervals").to_pylist():
                intervals.setdefault(interval["scenario_id"], {})[interval["metric"]] = (
                    interval["low"],
                    interval["high"],
                )
            tier = session.table("deployment_tiers").to_pylist()[0] | served_label(session)
            tiers.append({"comparison_id": comparison.comparison_id, **tier})
        for stage, summary in zip(comparison.stages, summaries, strict=True):
            rows += [
                {"comparison_id": comparison.comparison_id, **values}
                for values in _stage_rows(stage, summary, intervals.get(summary["scenario_id"], {}))
            ]
    return {"stage_vs_prediction": rows, "stage_tiers": tiers}


def give_stages(fork: Session, comparison: Stages) -> None:
    """Give a session one scenario per stage, with the load that its client sent; ids are in the order of stages."""
    described_load = dict(comparison.question.stated or {})
    plan = plan_rows(fork, [{**NO_LOAD, **comparison.question.flags}], origin="")
    scenario = plan.planned[0]
    scenarios, loads = [], []
    for number, stage in enumerate(comparison.stages):
        stage_id = f"{number:03d}"
        concurrency = (
            described_load.get("max_concurrency") or stage.max_concurrency or comparison.client.get("max_concurrency")
        )
        unlimited = stage.is_open or stage.all_at_once
        max_concurrency = int(concurrency) if concurrency else None if unlimited else stage.in_flight
        scenarios.append({**scenario, "scenario_id": stage_id, "max_concurrency": max_concurrency})
        columns = load_of_stage(stage, described_load.get("seed", 0) + number, described_load, comparison.client)
        loads.append(pa.table({"load_id": pa.array([stage_id] * stage.requests), **columns}))
    give_plan(fork, plan.deployments_of(plan.planned), scenarios)
    names = [row["scenario_id"] for row in scenarios]
    fork.give("scenario_loads", [{"scenario_id": stage_id, "load_id": stage_id} for stage_id in names])
    requests = pa.concat_tables(loads)
    fork.give(
        "load_requests", conformed({stage_id: requests[stage_id] for stage_id in requests.column_names}), trusted=True
    )


def _stage_rows(
    stage: Stage, summary: Mapping[str, Any], intervals: Mapping[str, tuple[float, float]]
) -> list[dict[str, Any]]:
    """Return rows of ``stage_vs_prediction`` of one stage: its stated latencies, and the rate of a saturated one.

    ``intervals``: 90 % interval (low, high) by column of ``scenario_summary``.
    """
    predictions = {
        (f"{metric}_ms", statistic): summary[f"{metric}_{statistic}_ms"]
        for statistic in STATISTICS
        for metric in (*METRICS, "itl")
    }
    predictions["output_tokens_per_s", "mean"] = summary["output_throughput"]
    # by Little's law
    predictions["running", "mean"] = summary["request_throughput"] * summary["e2e_mean_ms"] / 1e3
    measurements = dict(stage.measured)
    if not stage.is_open:
        # the rate of a saturated closed loop is the engine's throughput
        predictions["request_throughput", "mean"] = summary["request_throughput"]
        measurements["request_throughput", "mean"] = stage.achieved
    rows = []
    for (metric, statistic), predicted in predictions.items():
        measured = measurements.get((metric, statistic))
        if not measured or predicted is None:
            continue
        name = (
            metric.replace("output_tokens_per_s", "output_throughput")
            if not metric.endswith("_ms")
            else f"{metric.removesuffix('_ms')}_{statistic}_ms"
        )
        low, high = intervals.get(name, (None, None))
        rows.append(
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
    return rows


def answer_of(log: Stages, table: Callable[[str], pa.Table]) -> dict[str, Any]:
    """Return the summary of a log's stages, as ``kernelsight compare --format json`` prints it.

    ``table``: returns a table of the comparison by its name; ``stages``: rows of ``stage_vs_prediction``: each stated
    latency, and the rate of saturated stages.
    """
    faults = table("log_faults").to_pylist()
    rows = table("stage_vs_prediction").drop_columns(["comparison_id"]).to_pylist()
    tiers = next(iter(table("stage_tiers").to_pylist()), {"tier": None, "not_measured": []})
    windows = table("production_windows")
    weights = {(stage.log_id, stage.part): stage.requests for stage in log.stages}
    errors = {f"{name}_ms": _errors(f"{name}_ms", rows, weights) for name in METRICS}
    miss_ms = errors["e2e_ms"]["measured"] - errors["e2e_ms"]["predicted"] if errors["e2e_ms"]["n"] else 0.0
    return {
        "requests": sum(stage.requests for stage in log.stages),
        "dropped": fault_counts(faults),
        "files": table("production_files").to_pylist(),
        **errors,
        "cause": dict(NO_CAUSE),
        "causes": [],
        "percentiles": {},
        "occupancy": {},
        "parts": [
            {"part": "unexplained", "miss_ms": miss_ms, "share": 1.0 if miss_ms else 0.0, "posterior_ratio": None}
        ],
        "suspects": [],
        "fit": {},
        "drift": [],
        **{name: tiers[name] for name in ("tier", "not_measured")},
        "stages": rows,
        "windows": windows.select(WINDOW_COLUMNS).slice(0, MOST_WINDOWS).to_pylist(),
        "findings": [*log.server, *(findings(log.stages, faults, log.client) if log.stages else [])],
        "verdict": _verdict(rows, unused_clause(fault_counts(faults))) if log.stages else _no_stage(log),
    }


def _no_stage(log: Stages) -> str:
    """Return the verdict of a server's log or metrics whose load cannot be replayed, one sentence."""
    return (
        f"nothing is predicted: the server states no single requests, and to replay its load one lacks {log.lacks[0]}; "
        "give what is known with --stated, or the client's results with --log"
    )


def _errors(
    metric: str, stage_rows: Sequence[Mapping[str, Any]], weights: Mapping[tuple[str, str], int]
) -> dict[str, Any]:
    """Return mean times weighted by requests, and the errors of the stages' means; see ``errors.errors_of``."""
    rows = [row for row in stage_rows if (row["metric"], row["statistic"]) == (metric, "mean")]
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


def _verdict(stage_rows: Sequence[Mapping[str, Any]], unused: str) -> str:
    """Return the verdict, one sentence: error of E2E in open-loop stages, and of the rate in saturated ones."""
    means = [row for row in stage_rows if row["statistic"] == "mean"]
    has_e2e = any(row["metric"] == "e2e_ms" and row["open_loop"] for row in means)
    # reports without E2E, such as vLLM's, have TTFT and TPOT
    open_metrics = ["e2e_ms"] if has_e2e else ["ttft_ms", "tpot_ms"]
    clauses = []
    for metric, is_open in (*((name, True) for name in open_metrics), ("request_throughput", False)):
        rows = [row for row in means if row["metric"] == metric and row["open_loop"] == is_open]
        if rows:
            errors = [row["error"] for row in rows]
            stages = f"{len(rows)} {'open' if is_open else 'full'} {'stage' if len(rows) == 1 else 'stages'}"
            metric_name = metric.removesuffix("_ms").upper() if is_open else "rate"
            error_text = (
                f"within {deviation(min(errors))} to {deviation(max(errors))} of"
                if len(rows) > 1
                else f"{deviation(errors[0])} off"
            )
            clauses.append(f"{metric_name} of {stages} predicted {error_text} measured")
    if not clauses:
        return f"no stage of the log has a mean that is compared{unused}."
    return "; ".join(clauses) + f"; the log holds no requests, so that no cause was looked for{unused}."
