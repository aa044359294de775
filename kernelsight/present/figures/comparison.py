"""Figures of a saved comparison: misses by part, by request, by bucket and over time."""

from __future__ import annotations

from kernelsight.present.figures.chart import LOG, amount, chart, dashes, dots, kind, line, tips
from kernelsight.present.page import Figure

MOST_POINTS = 3_000
LONGER = {"condition": {"test": "datum.miss_ms > 0", "value": "#e07b39"}, "value": "#2a6fb0"}
PARTS = chart(
    "bar",
    x=amount("miss_ms", "measured − predicted, mean of a request (ms)"),
    y=kind("part", sort="-x"),
    color=LONGER,
    tooltip=tips("part", miss_ms=".4g"),
)
REQUESTS_QUERY = f"""
select predicted_e2e_ms as predicted, measured_e2e_ms as measured, prompt_tokens, output_tokens
from prediction_vs_production
where predicted_e2e_ms > 0 and measured_e2e_ms > 0
using sample reservoir({MOST_POINTS} rows) repeatable (1)
"""
SCALE = LOG | {"nice": False}
REQUESTS = {
    "layer": [
        chart(
            dots(14, opacity=0.45, clip=True),
            x=amount("predicted", "predicted E2E (ms)", scale=SCALE),
            y=amount("measured", "measured E2E (ms)", scale=SCALE),
            tooltip=tips("measured", "predicted", "prompt_tokens", "output_tokens"),
        ),
        chart(dashes(), x=amount("predicted"), y=amount("predicted")),
    ]
}
DRIFT = chart(
    line(),
    x=amount("s", "time of the log (s)"),
    y=amount("factor", "measured / predicted", scale={"zero": False}),
    color=kind("metric"),
    tooltip=tips("metric", "s", "n", factor=".3f"),
)
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
