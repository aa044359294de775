"""Adds the columns of 90 % intervals to scenario summaries, for the figures that people decide by."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session

FIGURES = ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "tpot_p99_ms", "output_throughput")


def interval_columns(figure: str) -> tuple[str, str]:
    """Return the names of a figure's columns for the lower and upper end of its interval.

    >>> interval_columns("ttft_p99_ms"), interval_columns("output_throughput")
    (('ttft_p99_low_ms', 'ttft_p99_high_ms'), ('output_throughput_low', 'output_throughput_high'))
    """
    name, unit = (figure.removesuffix("_ms"), "_ms") if figure.endswith("_ms") else (figure, "")
    return f"{name}_low{unit}", f"{name}_high{unit}"


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
