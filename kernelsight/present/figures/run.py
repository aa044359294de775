"""Figures of a run: a SQL query and a Vega-Lite specification over its rows each."""

from __future__ import annotations

from typing import Any

from kernelsight.present.figures.chart import LOG, amount, chart, dashes, fold, kind, line, tips
from kernelsight.present.page import Figure

TIME = amount("s", "time (s)")
PHASE_COLORS = {"domain": ["prefill", "decode", "mixed"], "range": ["#e07b39", "#2a6fb0", "#8a63b8"]}


def over_time(columns: str, title: str) -> tuple[str, dict[str, Any]]:
    """Return SQL and Vega-Lite spec of lines over time, one per replica and measure; ``columns``: SQL of measures."""
    query = f"""
unpivot (
  select start_s as s, replica, {columns}
  from cache_over_time
) on columns(* exclude (s, replica)) into name measure value value
order by measure, replica, s
"""
    channels = {"color": kind("measure"), "detail": {"field": "replica"}}
    tooltip = tips("replica", "measure", "s", value=".4g")
    return query, chart(line(opacity=0.8), x=TIME, y=amount("value", title), **channels, tooltip=tooltip)


LATENCY_QUERY = """
with metrics as (
  unpivot (select ttft_ms as TTFT, tpot_ms as TPOT, e2e_ms as E2E, queue_ms as queue from request_metrics)
  on TTFT, TPOT, E2E, queue into name metric value ms
),
ranked as (
  select metric, ms, 100.0 * row_number() over by_ms / count(*) over (partition by metric) as percentile
  from metrics
  where ms is not null
  window by_ms as (partition by metric order by ms)
  union all
  -- a bin of gaps is 0.2 % wide, and begins at this power of 1.002 us
  select 'ITL', exp(bin * ln(1.002)) / 1e3, 100.0 * sum(gaps) over (order by bin) / sum(gaps) over ()
  from itl_histogram
)
select metric, max(ms) as ms, ceil(percentile * 5 - 1e-9) / 5 as percentile
from ranked
where ms > 0
group by metric, ceil(percentile * 5 - 1e-9)
order by metric, percentile
"""
METRICS = ["TTFT", "TPOT", "ITL", "E2E", "queue"]
LATENCIES = {
    "layer": [
        chart(
            line(interpolate="linear"),
            x=amount("ms", "latency (ms)", scale=LOG),
            y=amount("percentile", "requests, or gaps (%)"),
            order={"field": "percentile"},
            color=kind("metric", sort=METRICS),
            tooltip=tips("metric", "percentile", ms=".4g"),
        ),
        {"data": {"values": [{"p": 50}, {"p": 90}, {"p": 99}]}, **chart(dashes(type="rule"), y=amount("p"))},
    ]
}
LATENCY_OVER_TIME_QUERY = """
with requests as (
  select sent_ns / 1e9 as sent_s, ttft_ms as TTFT, tpot_ms as TPOT, e2e_ms as E2E
  from request_metrics
  join request_events using (scenario_id, request_id)
),
windows as (select min(sent_s) as first_s, greatest(max(sent_s) - min(sent_s), 1e-9) / 40 as width_s from requests),
binned as (
  unpivot (
    select first_s + width_s * (least(floor((sent_s - first_s) / width_s), 39) + 0.5) as s, TTFT, TPOT, E2E
    from requests, windows
  ) on TTFT, TPOT, E2E into name metric value ms
)
select s, metric, count(*) as requests, median(ms) as p50, quantile_cont(ms, 0.99) as p99
from binned
group by s, metric
order by metric, s
"""
LATENCY_OVER_TIME = chart(
    line(interpolate="linear", point={"size": 12}),
    fold("statistic", "ms", "p50", "p99"),
    x={**TIME, "title": "sent at (s)"},
    y=amount("ms", "latency (ms)", scale=LOG),
    color=kind("metric", sort=METRICS),
    strokeDash=kind("statistic"),
    tooltip=tips("metric", "statistic", "requests", s=".4g", ms=".4g"),
)
LIMITS_QUERY = """
select resource, 100.0 * throughput_gain as throughput, 100.0 * e2e_gain as E2E, 100.0 * ttft_gain as TTFT,
  100.0 * tpot_gain as TPOT
from resource_gains
order by greatest(throughput_gain, e2e_gain) desc, resource
"""
MEASURES = ["throughput", "E2E", "TTFT", "TPOT"]
LIMITS = chart(
    "bar",
    fold("measure", "gain", *MEASURES),
    {"filter": "isValid(datum.gain)"},
    x=amount("gain", "gain from a fifth more (%)"),
    y=kind("resource", sort=None),
    yOffset={"field": "measure", "sort": MEASURES},
    color=kind("measure", sort=MEASURES),
    tooltip=tips("resource", "measure", gain=".3g"),
)
KERNELS_QUERY = """
with kernels as (
  select family, name, row_number() over (order by round(sum(total_us), 3) desc, family, name) as place
  from kernel_breakdown
  group by family, name
)
select
  phase,
  if(place <= 14, name, 'all others') as kernel,
  sum(total_us) / 1e6 as gpu_s,
  100.0 * sum(share) as share,
  min(least(place, 15)) as place
from kernel_breakdown
join kernels using (family, name)
group by all
order by place, phase
"""
LARGEST_FIRST = {"field": "place", "op": "min"}
KERNELS = chart(
    "bar",
    x=amount("gpu_s", "GPU time (s)"),
    y=kind("kernel", sort=LARGEST_FIRST),
    color=kind("phase", "steps", scale=PHASE_COLORS),
    tooltip=tips("kernel", "phase", gpu_s=".3g", share=".3g"),
)
POWER_QUERY = """
select (start_s + end_s) / 2 as s, power_w
from power_over_time
where power_w is not null
order by s
"""
POWER = chart(line(interpolate="step"), x=TIME, y=amount("power_w", "W"), tooltip=tips(s=".4g", power_w=".4g"))
COMPOSITION_QUERY = """
with generated as (
  select end_s, sum(sum(decode_tokens)) over (order by end_s) as tokens from cache_over_time group by end_s
),
twentieths as (
  select family, total_us, tokens,
    if(phase = 'prefill', 0, greatest(ceil(20 * tokens / (select max(tokens) from generated)), 1)) as place
  from kernel_breakdown_over_time as kernels asof join generated on kernels.end_s >= generated.end_s
)
select place, family, 100.0 * sum(total_us) / sum(sum(total_us)) over (partition by place) as share,
  if(place = 0, 'prompt', format('{:,}', max(max(tokens)) over (partition by place)::bigint)) as generated
from twentieths
group by place, family
order by place, family
"""
COMPOSITION = chart(
    "bar",
    x=kind("generated", "output tokens generated", sort={"field": "place"}, axis={"labelAngle": -45}),
    y=amount("share", "GPU time (%)", stack="zero", scale={"domain": [0, 100]}),
    color=kind("family", scale={"scheme": "tableau20"}),
    tooltip=tips("generated", "family", share=".3g"),
)
ARRIVALS_QUERY = """
with windows as (
  select start_s as s, end_s, end_s = max(end_s) over () as is_last
  from cache_over_time
  where replica = (select arg_max(replica, end_s) from cache_over_time)
)
select
  s,
  count(sent_ns) filter (moment = 'sent') / (end_s - s) as sent,
  count(sent_ns) filter (moment = 'finished') / (end_s - s) as finished
from windows
left join (
  select sent_ns, sent_ns / 1e9 as at_s, 'sent' as moment from request_events
  union all
  select sent_ns, finish_ns / 1e9, 'finished' from request_events
) on at_s >= s and (at_s < end_s or is_last)
group by s, end_s
order by s
"""
ARRIVALS = chart(
    line(),
    fold("measure", "value", "sent", "finished"),
    x=TIME,
    y=amount("value", "requests per second"),
    color=kind("measure"),
    tooltip=tips("measure", s=".4g", value=".4g"),
)
FOUND_QUERY = """
with sent as (
  select *, min(sent_ns) over () as low, greatest(max(sent_ns) over () - min(sent_ns) over (), 1) as length
  from request_events
  where sent_ns is not null and not warmup
),
windows as (
  select
    least(floor(40.0 * (sent_ns - low) / length), 39) as place,
    any_value(length) / 40e9 as width,
    sum(prompt_tokens - cached_tokens)::bigint as computed,
    sum(cached_tokens - tier_tokens)::bigint as device,
    sum(tier_tokens)::bigint as tiers,
    sum(kv_load_ns) / 1e9 as waited_s
  from sent
  group by place
)
select measure, (place + 0.5) * width as s, value, waited_s
from (
  unpivot windows on computed as 'computed', device as 'in the GPU cache', tiers as 'loaded from tiers'
  into name measure value value
)
where exists (select 1 from request_events where tier_tokens > 0)
order by measure, s
"""
FOUND = chart(
    {"type": "area", "interpolate": "step"},
    x={**TIME, "title": "sent (s)"},
    y=amount("value", "prompt tokens", stack="zero"),
    color=kind("measure"),
    tooltip=tips("measure", s=".4g", value=".4g", waited_s=".4g"),
)
RUN_FIGURES = (
    Figure(
        "Latency",
        "How many requests have at most this latency; dashed: p50, p90, p99. ITL: gaps between tokens.",
        LATENCY_QUERY,
        LATENCIES,
    ),
    Figure(
        "Latency over time",
        "Median and 99th percentile of the requests that were sent in each fortieth of the run.",
        LATENCY_OVER_TIME_QUERY,
        LATENCY_OVER_TIME,
    ),
    Figure(
        "How sure",
        "Each figure with its 90 % interval: kernels and host may be faster or slower than predicted.",
        "select metric, predicted, low, high\nfrom scenario_intervals\norder by metric",
    ),
    Figure(
        "What limits",
        "What a fifth more of each resource brings, in percent: throughput, and shorter mean latencies.",
        LIMITS_QUERY,
        LIMITS,
    ),
    Figure("Load", "Requests sent and finished per second, by window.", ARRIVALS_QUERY, ARRIVALS),
    Figure(
        "Batch and queue",
        "Mean number of running and waiting requests of each replica.",
        *over_time("running_mean as running, waiting_mean as waiting", "requests"),
    ),
    Figure(
        "KV cache and busy time",
        "Share of the KV cache in use, and of the time in steps, of each replica.",
        *over_time('100.0 * kv_share_mean as "KV cache", 100.0 * busy_share as busy', "%"),
    ),
    Figure(
        "Tokens",
        "Prompt and output tokens per second of each replica.",
        *over_time(
            "prefill_tokens / (end_s - start_s) as prefill, decode_tokens / (end_s - start_s) as decode", "tokens/s"
        ),
    ),
    Figure(
        "Prompt tokens and KV tiers",
        "Of the requests sent in each fortieth of the run: computed, in the GPU's cache, loaded from tiers.",
        FOUND_QUERY,
        FOUND,
    ),
    Figure("Power", "Power of all GPUs, by window.", POWER_QUERY, POWER),
    Figure("Kernels", "GPU time of each kernel, by the phase of the step that it ran in.", KERNELS_QUERY, KERNELS),
    Figure(
        "Kernels as output grows",
        "GPU time by kernel family: of steps with prompts alone, then of each twentieth of all output tokens.",
        COMPOSITION_QUERY,
        COMPOSITION,
        wide=True,
    ),
    Figure(
        "Kernel breakdown",
        "Where the GPU time went.",
        "select phase, family, name, calls, total_us / 1e3 as total_ms, 100.0 * share as percent, bound, energy_j\n"
        "from kernel_breakdown\norder by total_us desc",
        wide=True,
        most_rows=20,
    ),
    Figure(
        "Slowest requests",
        "The twenty with the longest E2E time.",
        "select coalesce(external_id, request_id::varchar) as request, prompt_tokens, output_tokens, cached_tokens,\n"
        "  queue_ms, ttft_ms, tpot_ms, e2e_ms, preemptions\nfrom request_metrics\norder by e2e_ms desc, request_id\n"
        "limit 20",
        wide=True,
    ),
)
