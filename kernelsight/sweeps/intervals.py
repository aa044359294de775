"""Adds the columns of 90 % intervals to scenario summaries, for the figures that people decide by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelsight.scenario.objectives import interval_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session

FIGURES = ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "tpot_p99_ms", "output_throughput")


def with_intervals(session: Session, summary: pa.Table) -> pa.Table:
    """Return a summary with both ends of FIGURES, from ``scenario_intervals``; null where no request was served."""
    import pyarrow as pa

    bounds_of = {
        (row["scenario_id"], row["metric"]): (row["low"], row["high"])
        for row in session.table("scenario_intervals").to_pylist()
    }
    names = summary["scenario_id"].to_pylist()
    for figure in FIGURES:
        bounds = [bounds_of.get((name, figure), (None, None)) for name in names]
        for side, column in enumerate(interval_columns(figure)):
            summary = summary.append_column(column, pa.array([pair[side] for pair in bounds], pa.float64()))
    return summary
