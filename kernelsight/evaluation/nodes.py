"""Graph nodes of evaluations: reports and scores of kernel models, and of simulated runs (backtests)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from kernelsight.dataflow.graph import produces, reads

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session


@produces("kernel_evaluation_reports", "kernel_scores")
def evaluations(kernel_evaluations: pa.Table) -> dict[str, pa.Table]:
    """Fit kernel models on some GPUs, and score them and baselines on others: reports and scores."""
    from kernelsight.evaluation.kernels.evaluations import evaluation_tables

    return evaluation_tables(kernel_evaluations)


@reads("recipes", "serving_spread", "scenario_summary", "scenario_intervals", "kernel_breakdown")
@produces("backtest_reports", "backtest_scores", "replayed_runs")
def replays_of_runs(
    backtests: pa.Table, measured_runs: pa.Table, *, fork: Callable[[], Session]
) -> dict[str, pa.Table]:
    """Simulate measured runs, and score their TTFT, TPOT and throughput: reports and scores of backtests."""
    from kernelsight.evaluation.runs.backtests import backtest_tables

    return backtest_tables(backtests, measured_runs, fork)
