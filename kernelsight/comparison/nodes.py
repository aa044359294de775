"""Graph nodes of comparisons: tables made from ``comparisons`` and ``production_requests``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kernelsight.dataflow.blas import one_blas_thread
from kernelsight.dataflow.graph import produces, reads

if TYPE_CHECKING:
    from kernelsight.dataflow.node_runs import Reader
    from kernelsight.dataflow.session import Session


@reads("production_logs")
def compared_requests(comparisons: pa.Table, production_requests: pa.Table, *, read: Reader) -> pa.Table:
    """Requests of each comparison, of all its logs, on one time line and in order of sending."""
    from kernelsight.comparison.compared_log import compared_table

    return compared_table(comparisons, production_requests, read)


@reads("deployment_settings")
def log_settings(comparisons: pa.Table, *, fork: Callable[[], Session]) -> pa.Table:
    """Resolved settings of the deployment of each comparison."""
    from kernelsight.comparison.replayed_log import settings_table

    with fork() as session:
        return settings_table(comparisons, session)


@reads("step_costs", "knot_corrections")
@produces("log_replays", "replayed_parts")
def log_replays(
    comparisons: pa.Table, log_settings: pa.Table, compared_requests: pa.Table, *, fork: Callable[[], Session]
) -> dict[str, pa.Table]:
    """Replay of each log: its own requests, simulated on the stated deployment."""
    from kernelsight.comparison.compared_log import compared_logs
    from kernelsight.comparison.replayed_log import replay_tables

    with fork() as session:
        return replay_tables(compared_logs(comparisons, log_settings, compared_requests), session)


@reads("scenario_intervals", "deployment_tiers", "scenario_tiers", "step_costs", "knot_corrections")
@produces("log_intervals", "log_tiers")
def log_intervals(
    comparisons: pa.Table, log_settings: pa.Table, compared_requests: pa.Table, *, fork: Callable[[], Session]
) -> dict[str, pa.Table]:
    """90 % prediction intervals of each log's metrics, and the tiers of the kernel model behind them."""
    from kernelsight.comparison.compared_log import compared_logs
    from kernelsight.comparison.replayed_log import interval_tables

    with fork() as session:
        return interval_tables(compared_logs(comparisons, log_settings, compared_requests), session)


def log_incidents(
    comparisons: pa.Table, log_settings: pa.Table, compared_requests: pa.Table, log_replays: pa.Table
) -> pa.Table:
    """Incidents of each log: outages, pauses, and spans of time in which the engine was slower than predicted."""
    from kernelsight.comparison.causes_by_evidence import incident_table
    from kernelsight.comparison.compared_log import compared_logs

    with one_blas_thread():
        return incident_table(compared_logs(comparisons, log_settings, compared_requests), log_replays)


@reads("step_costs", "knot_corrections")
def causes(
    comparisons: pa.Table,
    log_settings: pa.Table,
    compared_requests: pa.Table,
    log_replays: pa.Table,
    log_incidents: pa.Table,
    log_intervals: pa.Table,
    fitted_causes: pa.Table,
    miss_by_part: pa.Table,
    *,
    fork: Callable[[], Session],
) -> pa.Table:
    """Causes of each log's misses, in the order of evidence: incidents, occupancy, load, settings, front end, parts."""
    from kernelsight.comparison.causes_by_evidence import cause_table
    from kernelsight.comparison.compared_log import compared_logs

    tables = {
        "log_replays": log_replays,
        "log_incidents": log_incidents,
        "log_intervals": log_intervals,
        "fitted_causes": fitted_causes,
        "miss_by_part": miss_by_part,
    }
    with one_blas_thread(), fork() as session:
        return cause_table(compared_logs(comparisons, log_settings, compared_requests), tables, session)


@reads(
    *("production_logs", "production_steps", "production_kernels", "production_windows", "production_settings"),
    *("step_costs", "knot_corrections", "kernel_latencies", "step_totals"),
)
@produces(
    *("explained_replays", "fitted_causes", "fitted_parameters", "setting_suspects", "fitted_corrections"),
    *("correction_scores", "log_evidence"),
)
def log_explanations(
    comparisons: pa.Table,
    log_settings: pa.Table,
    compared_requests: pa.Table,
    log_replays: pa.Table,
    log_incidents: pa.Table,
    *,
    read: Reader,
    fork: Callable[[], Session],
) -> dict[str, pa.Table]:
    """Explanation of each log by replays: other settings, factors on kernels, host time, front-end time."""
    from kernelsight.comparison.compared_log import compared_logs, tables_beside
    from kernelsight.comparison.explanation import explanation_tables

    with one_blas_thread(), fork() as session:
        logs = compared_logs(comparisons, log_settings, compared_requests, tables_beside(read))
        return explanation_tables(logs, log_replays, log_incidents, session)


@reads("request_metrics")
def prediction_vs_production(
    comparisons: pa.Table,
    log_settings: pa.Table,
    compared_requests: pa.Table,
    log_replays: pa.Table,
    explained_replays: pa.Table,
    fitted_parameters: pa.Table,
    fitted_causes: pa.Table,
    *,
    fork: Callable[[], Session],
) -> pa.Table:
    """Measured and predicted latencies of each request, and the parts of its miss."""
    from kernelsight.comparison.compared_log import compared_logs
    from kernelsight.comparison.prediction_vs_production import FittedExplanation, request_table

    explained = FittedExplanation(log_replays, explained_replays, fitted_parameters, fitted_causes)
    with fork() as session:
        return request_table(compared_logs(comparisons, log_settings, compared_requests), explained, session)


@reads("production_logs", "production_windows", "power_over_time", "scenario_energy")
def power_vs_production(
    comparisons: pa.Table,
    log_settings: pa.Table,
    compared_requests: pa.Table,
    *,
    read: Reader,
    fork: Callable[[], Session],
) -> pa.Table:
    """GPU power over time of each log, measured and predicted; logs without measured power are not simulated."""
    from kernelsight.comparison.compared_log import compared_logs, tables_beside
    from kernelsight.comparison.power import power_table

    with fork() as session:
        return power_table(compared_logs(comparisons, log_settings, compared_requests, tables_beside(read)), session)


@reads("production_windows", "production_files", "log_faults")
def comparison_findings(
    comparisons: pa.Table,
    log_settings: pa.Table,
    compared_requests: pa.Table,
    log_replays: pa.Table,
    log_intervals: pa.Table,
    log_tiers: pa.Table,
    miss_by_part: pa.Table,
    drift_over_time: pa.Table,
    setting_suspects: pa.Table,
    causes: pa.Table,
    latency_percentiles: pa.Table,
    occupancy_over_time: pa.Table,
    correction_scores: pa.Table,
    log_evidence: pa.Table,
    power_vs_production: pa.Table,
    *,
    read: Reader,
) -> pa.Table:
    """Findings of each comparison, one sentence a row: the verdict first, then the limits of its evidence."""
    from kernelsight.comparison.answer import findings_table
    from kernelsight.comparison.compared_log import compared_logs, tables_beside

    tables: dict[str, Any] = {
        "log_replays": log_replays,
        "log_intervals": log_intervals,
        "log_tiers": log_tiers,
        "miss_by_part": miss_by_part,
        "drift_over_time": drift_over_time,
        "setting_suspects": setting_suspects,
        "causes": causes,
        "latency_percentiles": latency_percentiles,
        "occupancy_over_time": occupancy_over_time,
        "correction_scores": correction_scores,
        "log_evidence": log_evidence,
        "power_vs_production": power_vs_production,
    }
    return findings_table(compared_logs(comparisons, log_settings, compared_requests, tables_beside(read)), tables)


@reads("production_logs", "production_settings", "production_windows", "step_costs", "knot_corrections")
@produces("log_changes", "change_causes", "change_latencies")
def log_changes(
    comparisons: pa.Table, production_requests: pa.Table, *, read: Reader, fork: Callable[[], Session]
) -> dict[str, pa.Table]:
    """Changes between a log and its baseline: load, speed, settings, and the causes of the change in latency."""
    from kernelsight.comparison.compared_log import tables_beside
    from kernelsight.comparison.log_pairs import change_tables

    with one_blas_thread(), fork() as session:
        tables = {**tables_beside(read), "production_requests": production_requests}
        return change_tables(comparisons, tables, session)


@reads("scenario_summary", "scenario_intervals", "deployment_tiers", "scenario_tiers")
@produces("stage_vs_prediction", "stage_tiers")
def stage_replays(
    comparisons: pa.Table, production_summaries: pa.Table, *, fork: Callable[[], Session]
) -> dict[str, pa.Table]:
    """Measured and simulated statistics of the stages of logs that hold no requests."""
    from kernelsight.comparison.stage_comparison import stage_tables

    with fork() as session:
        return stage_tables(comparisons, production_summaries, session)


@reads("scenario_summary", "deployment_settings", "step_costs", "knot_corrections")
def stage_corrections(
    comparisons: pa.Table,
    production_summaries: pa.Table,
    stage_vs_prediction: pa.Table,
    *,
    fork: Callable[[], Session],
) -> pa.Table:
    """Bounded factors on kernels that reduce the error of a log's stages."""
    from kernelsight.comparison.stage_corrections import correction_table

    with fork() as session:
        return correction_table(comparisons, production_summaries, stage_vs_prediction, session)
