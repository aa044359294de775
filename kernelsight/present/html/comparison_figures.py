"""Figures of the report of a saved comparison: misses by part, by request, by bucket and over time."""

from __future__ import annotations

from kernelsight.present.html.run_figures import Figure

MOST_POINTS = 3_000
PARTS = {
    "mark": "bar",
    "encoding": {
        "x": {"field": "miss_ms", "type": "quantitative", "title": "measured − predicted, mean of a request (ms)"},
        "y": {"field": "part", "type": "nominal", "sort": "-x", "title": None},
        "color": {
            "condition": {"test": "datum.miss_ms > 0", "value": "#e07b39"},
            "value": "#2a6fb0",
        },
        "tooltip": [{"field": "part"}, {"field": "miss_ms", "format": ".4g"}],
    },
}
REQUESTS_QUERY = f"""
select predicted_e2e_ms as predicted, measured_e2e_ms as measured, prompt_tokens, output_tokens
from prediction_vs_production
where predicted_e2e_ms > 0 and measured_e2e_ms > 0
using sample reservoir({MOST_POINTS} rows) repeatable (1)
"""
LOG_SCALE = {"type": "log", "nice": False}
REQUESTS = {
    "layer": [
        {
            "mark": {"type": "point", "size": 14, "opacity": 0.45, "filled": True, "clip": True},
            "encoding": {
                "x": {"field": "predicted", "type": "quantitative", "scale": LOG_SCALE, "title": "predicted E2E (ms)"},
                "y": {"field": "measured", "type": "quantitative", "scale": LOG_SCALE, "title": "measured E2E (ms)"},
                "tooltip": [{"field": name} for name in ("measured", "predicted", "prompt_tokens", "output_tokens")],
            },
        },
        {
            "mark": {"type": "line", "strokeDash": [4, 3], "color": "#888", "strokeWidth": 1},
            "encoding": {
                "x": {"field": "predicted", "type": "quantitative"},
                "y": {"field": "predicted", "type": "quantitative"},
            },
        },
    ]
}
DRIFT = {
    "mark": {"type": "line", "interpolate": "step-after", "clip": True},
    "encoding": {
        "x": {"field": "s", "type": "quantitative", "title": "time of the log (s)"},
        "y": {"field": "factor", "type": "quantitative", "title": "measured / predicted", "scale": {"zero": False}},
        "color": {"field": "metric", "type": "nominal", "title": None},
        "tooltip": [{"field": "metric"}, {"field": "s"}, {"field": "factor", "format": ".3f"}, {"field": "n"}],
    },
}
COMPARISON_FIGURES = (
    Figure(
        "Parts of the miss",
        "What measured and predicted E2E differ by on average; parts add up to it. Positive: longer than predicted.",
        "select part, miss_ms\nfrom miss_by_part\nwhere abs(miss_ms) >= 0.005\norder by abs(miss_ms) desc",
        PARTS,
    ),
    Figure("Requests", "Measured against predicted E2E of each request; dashed: equal.", REQUESTS_QUERY, REQUESTS),
    Figure(
        "Along the log",
        "Measured over predicted time by window; a step says when the server changed.",
        "select start_s as s, metric, factor, n\nfrom drift_over_time\norder by metric, s",
        DRIFT,
        wide=True,
    ),
    Figure(
        "Errors by bucket",
        "By prompt length, output length and concurrency, in percent; covered: share within the 90 % interval.",
        "select bucket, at_least, below, metric, n, 100.0 * median_ape as median_error, 100.0 * bias as bias,\n"
        "  100.0 * coverage_90 as covered\nfrom error_by_bucket\norder by metric, bucket, at_least",
        wide=True,
    ),
    Figure(
        "Settings that may differ",
        "Gain: the share of the miss that goes where the setting is as in `value`.",
        "select setting, stated, value, gain, evidence\nfrom setting_suspects",
    ),
    Figure(
        "Corrections",
        "Fitted on the first part of the time and better on the last than one factor a metric.",
        "select part, factor, exposed_us, n, held_out_before, held_out_after\nfrom fitted_corrections",
    ),
    Figure(
        "Requests that are furthest off",
        "The twenty with the largest miss, and its largest parts.",
        "select log_id, request_id, prompt_tokens, output_tokens, measured_e2e_ms, predicted_e2e_ms, e2e_miss_ms,\n"
        "  queue_ms, client_ms, workload_ms, host_ms, unexplained_ms\nfrom prediction_vs_production\n"
        "order by abs(e2e_miss_ms) desc\nlimit 20",
        wide=True,
    ),
)
