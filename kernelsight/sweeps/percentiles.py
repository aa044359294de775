"""Adds latency percentiles that ``scenario_summary`` lacks, from the requests or the histogram of gaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from kernelsight.scenario.objectives import Objective, objective_of

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session


def missing_percentiles(session: Session, slo: Mapping[str, float] | None) -> tuple[str, ...]:
    """Return the columns of objectives that ``scenario_summary`` lacks, in order; UnknownName: no latency statistic."""
    columns = session.graph.known("scenario_summary").column_names
    return tuple(sorted({objective_of(name, 1.0).column for name in slo or () if name not in columns}))


def with_percentiles(session: Session, columns: Iterable[str]) -> pa.Table:
    """Return ``scenario_summary`` with columns of percentiles, linear between ranks; null: no request has the metric.

    Percentiles of ITL come from ``itl_histogram``, whose bins are 0.2 % wide.
    """
    import pyarrow as pa

    objectives = [objective_of(name, 1.0) for name in columns]
    if not objectives:
        return session.table("scenario_summary")
    of_gaps = {objective for objective in objectives if objective.metric == "itl"}
    tables = [*(["request_metrics"] if set(objectives) - of_gaps else []), *(["itl_histogram"] if of_gaps else [])]
    session.compute("scenario_summary", *tables)
    summary = session.table("scenario_summary")
    names = summary["scenario_id"].to_pylist()
    for objective in objectives:
        percentiles = (
            _gap_percentiles(session, objective) if objective in of_gaps else _request_percentiles(session, objective)
        )
        summary = summary.append_column(
            objective.column, pa.array([percentiles.get(name) for name in names], pa.float64())
        )
    return summary


def _request_percentiles(session: Session, objective: Objective) -> dict[str, float]:
    """Return a percentile in ms over each scenario's requests, by scenario."""
    from kernelsight.serving.load.requests import spans_of

    metrics = session.table("request_metrics")
    values = metrics[f"{objective.metric}_ms"].to_numpy()
    percentiles = {}
    for name, (start, stop) in spans_of(metrics["scenario_id"]).items():
        times = values[start:stop]
        times = times[~np.isnan(times)]
        if times.size:
            percentiles[name] = float(np.percentile(times, objective.percent))
    return percentiles


def _gap_percentiles(session: Session, objective: Objective) -> dict[str, float]:
    """Return a percentile in ms over each scenario's gaps between tokens, by scenario."""
    from kernelsight.serving.runs.statistics_tables import gap_percentiles

    rows = gap_percentiles(session.table("itl_histogram"), (objective.percent,)).to_pylist()
    return {row["scenario_id"]: row["itl_ms"] for row in rows}
