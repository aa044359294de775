"""Figures of a sweep: the Pareto front of each load, and the table of scenarios."""

from __future__ import annotations

from collections.abc import Sequence

from kernelsight.present.figures.chart import amount, chart, dots, kind, tips
from kernelsight.present.page import MOST_ROWS, Figure

FIGURES = (
    *("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "e2e_p99_ms", "request_throughput"),
    *("output_throughput", "goodput", "output_throughput_per_gpu", "output_throughput_per_user", "peak_kv_share"),
)
FRONT_QUERY = """
with loads as (
  -- requests of a kind: their rate or concurrency is what a deployment is compared at
  select
    scenario_id,
    model || ', ' || coalesce(trace, input_len || ' in, ' || output_len || ' out')
      || if(coalesce(prefix_len, 0) > 0, ', prefix ' || prefix_len, '')
      || if(coalesce(num_turns, 1) > 1, ', ' || num_turns || ' turns', '') as load,
    gpu || ' tp ' || tp as gpus,
    max_concurrency,
    request_rate
  from scenarios
  join deployments using (deployment_id)
),
points as (
  select
    loads.*,
    output_throughput_per_user as per_user,
    output_throughput_per_gpu as per_gpu,
    ttft_p99_ms,
    max(per_gpu) over (
      partition by loads.load
      order by per_user desc range between unbounded preceding and current row exclude group
    ) as best_above,
    max(per_gpu) over (partition by loads.load, per_user) as best_beside
  from scenario_summary
  join loads using (scenario_id)
  where output_throughput_per_user is not null and output_throughput_per_gpu is not null
)
select * exclude (best_above, best_beside), per_gpu = best_beside and per_gpu > coalesce(best_above, 0) as on_front
from points
order by load, per_user
"""
AXES = {
    "x": amount("per_user", "output tokens/s of one user"),
    "y": amount("per_gpu", "output tokens/s of one GPU"),
}
SHOWN = ("scenario_id", "gpus", "max_concurrency", "request_rate")
FRONT = {
    "facet": kind("load", header={"labelLimit": 420}),
    "columns": 2,
    "resolve": {"scale": {"x": "independent", "y": "independent"}},
    "spec": {
        "width": 470,
        "height": 260,
        "layer": [
            chart(
                {"type": "line", "color": "#888", "strokeWidth": 1.5},
                {"filter": "datum.on_front"},
                **AXES,
                order={"field": "per_user"},
            ),
            chart(
                dots(60),
                **AXES,
                color=kind("gpus"),
                opacity={"condition": {"test": "datum.on_front", "value": 1}, "value": 0.35},
                tooltip=tips(*SHOWN, per_user=".4g", per_gpu=".4g", ttft_p99_ms=".4g"),
            ),
        ],
    },
}


def sweep_figures(columns: Sequence[str], constant: Sequence[str]) -> tuple[Figure, ...]:
    """Return the figures of a sweep; ``columns``: of the table sweep, ``constant``: those with the same value."""
    flags = [name for name in columns[2 : list(columns).index("status")] if name not in constant]
    added_columns = list(columns)[list(columns).index("idle_s") + 1 :]
    shown = ["scenario_id", *flags, "status", *(name for name in FIGURES if name in columns), *added_columns]
    select_list = ", ".join(f'"{name}"' for name in shown if name not in constant or name in ("scenario_id", "status"))
    table = f"select {select_list}\nfrom sweep\norder by output_throughput_per_gpu desc nulls last\nlimit {MOST_ROWS}"
    return (
        Figure(
            "Pareto front of each load",
            "Line: scenarios that no other beats per GPU without losing per user; pale: beaten ones.",
            FRONT_QUERY,
            FRONT,
            wide=True,
        ),
        Figure("Scenarios", f"At most {MOST_ROWS:,} rows; a click on a head sorts.", table, wide=True),
    )
