"""Figures of a kernel search: a SQL query over the saved search and a Vega-Lite specification each."""

from __future__ import annotations

from kernelsight.present.figures.chart import LOG, amount, chart, dashes, dots, kind, line, tips
from kernelsight.present.page import Figure

MEASURED = amount("measured", "measurements")
COURSE_QUERY = """
unpivot (
  select measured, 100.0 * regret as "above the fastest of the file", 100.0 * believed_regret as "expected gain left"
  from search_rounds
) on columns(* exclude measured) into name measure value percent
order by measure, measured
"""
COURSE = chart(
    line(point=True),
    x=MEASURED,
    y=amount("percent", "percent", scale={"type": "symlog"}),
    color=kind("measure"),
    tooltip=tips("measure", "measured", percent=".3g"),
)
MEASUREMENTS_QUERY = """
select
  row_number() over (order by round, rank) as measured,
  round,
  candidate_id,
  reason,
  run,
  latency_us,
  status
from search_measurements
join search_decisions using (search_id, round, candidate_id)
order by measured
"""
MEASUREMENTS = chart(
    dots(45),
    {"filter": "datum.latency_us != null"},
    x=MEASURED,
    y=amount("latency_us", "latency (us)", scale=LOG),
    color=kind("reason", "measured because of"),
    tooltip=tips("measured", "candidate_id", "reason", "run", "latency_us"),
)
# candidates that the last round forecast and that were never measured
DEFERRED = """
with deferred as (
  select
    f.*,
    case
      when p_ok < 0.5 then 'expected to fail'
      when p_faster < 0.001 then 'slower than the best, almost surely'
      when p_faster < 0.05 then 'probably slower than the best'
      else 'might be faster: the budget is spent, or others were expected to gain more'
    end as why
  from kernel_forecasts f
  where round = (select max(round) from kernel_forecasts)
    and candidate_id not in (select candidate_id from search_measurements)
)
"""
DEFERRED_QUERY = f"""{DEFERRED}
select why, count(*) as candidates, sum(p_faster * p_ok) as expected_faster, min(p05_us) as fastest_p05_us
from deferred
group by why
order by expected_faster desc
"""
CLOSEST_QUERY = f"""{DEFERRED}
select candidate_id, latency_us, p05_us, p95_us, 100.0 * p_faster as percent_faster, 100.0 * p_ok as percent_works, why
from deferred
order by p_faster * p_ok desc, candidate_id
limit 40
"""
FORECAST_QUERY = """
select f.candidate_id, f.round, f.p05_us, f.p50_us, f.p95_us, m.latency_us,
  m.latency_us between f.p05_us and f.p95_us as inside
from kernel_forecasts f
join search_measurements m using (search_id, round, candidate_id)
where m.latency_us is not null and m.run = 1 and f.measured_n >= 3
order by m.latency_us
"""
AGAINST = {
    "layer": [
        chart(
            {"type": "rule", "opacity": 0.5, "color": "#888"},
            x=amount("latency_us"),
            y=amount("p05_us"),
            y2={"field": "p95_us"},
        ),
        chart(
            dots(40),
            x=amount("latency_us", "measured (us)", scale=LOG),
            y=amount("p50_us", "forecast (us), with its 90 % interval", scale=LOG),
            color=kind("inside", "in the interval"),
            tooltip=tips("candidate_id", "round", "latency_us", "p50_us"),
        ),
    ]
}
# true speed-up bins of candidates that the search never measured, from the file of a replay
JUDGED = """
with truth as (
  select candidate_id, median(latency_us) as us
  from kernel_measurements
  join search_scenarios using (space, gpu)
  where status = 'ok'
  group by candidate_id
),
anchor as (
  select coalesce(
    (select median(ln(latency_us)) from search_measurements, search_scenarios where candidate_id = anchor),
    (select ln(us) from truth, search_scenarios where candidate_id = anchor),
    (select median(ln(latency_us)) from search_measurements)
  ) as log_us
),
judged as (
  select
    confidence,
    list_position(list_value(bin_1, bin_2, bin_3, bin_4, bin_5, bin_6, bin_7, bin_8), confidence) - 1 as stated,
    len(list_filter(
      list_value(0.25, 0.5, sqrt(0.5), 1.0, sqrt(2.0), 2.0, 4.0), lambda edge: ln(edge) <= log_us - ln(us)
    )) as happened
  from kernel_forecasts
  join truth using (candidate_id)
  cross join anchor
  where round = (select max(round) from kernel_forecasts)
    and candidate_id not in (select candidate_id from search_measurements)
)
"""
RELIABILITY_QUERY = f"""{JUDGED}
select
  100.0 * avg(confidence) as stated_percent,
  100.0 * avg((stated = happened)::int) as right_percent,
  count(*) as candidates
from judged
group by least(floor(confidence * 10), 9)
order by stated_percent
"""
WHOLE = {"scale": {"domain": [0, 100]}}
RELIABILITY = {
    "layer": [
        {
            "data": {"values": [{"x": 0, "y": 0}, {"x": 100, "y": 100}]},
            **chart(dashes(), x=amount("x", **WHOLE), y=amount("y", **WHOLE)),
        },
        chart(
            {"type": "line", "point": True},
            x=amount("stated_percent", "stated probability of the likeliest bin (%)", **WHOLE),
            y=amount("right_percent", "how often it is right (%)", **WHOLE),
            tooltip=tips("candidates", right_percent=".3g"),
        ),
    ]
}
RISK_QUERY = f"""{JUDGED},
ranked as (
  select
    row_number() over surest as kept,
    count(*) over () as every,
    sum((stated != happened)::int) over (surest rows unbounded preceding) as wrong
  from judged
  window surest as (order by confidence desc, stated, happened)
)
select ceil(20.0 * kept / every) * 5 as coverage_percent, 100.0 * max_by(wrong / kept, kept) as wrong_percent
from ranked
group by coverage_percent
order by coverage_percent
"""
RISK = chart(
    {"type": "line", "point": True},
    x=amount("coverage_percent", "forecasts that are trusted, surest first (%)", **WHOLE),
    y=amount("wrong_percent", "wrong bins (%)", **WHOLE),
    tooltip=tips("coverage_percent", wrong_percent=".3g"),
)
SEARCH_FIGURES = (
    Figure(
        "The course",
        "How far the best so far is above the fastest of the file (known in a replay), and what the search expected to "
        "gain by its next measurement.",
        COURSE_QUERY,
        COURSE,
    ),
    Figure(
        "What was measured, and why",
        "Each measurement that worked; random draws are what intervals are widened by.",
        MEASUREMENTS_QUERY,
        MEASUREMENTS,
    ),
    Figure(
        "Forecast against measurement",
        "Candidates as they were forecast just before they were measured: a search measures its favourites, so these "
        "do not stand for all.",
        FORECAST_QUERY,
        AGAINST,
    ),
    Figure(
        "What was deferred",
        "Candidates that were forecast and never measured, by what the last round expected of them; expected_faster is "
        "the expected number that is faster than the best by 2 %.",
        DEFERRED_QUERY,
    ),
    Figure(
        "Reliability of the speed-up bins",
        "Candidates that were never measured, against what the file holds of them: on the dashed line, stated "
        "probabilities are right. Only a replay knows this.",
        RELIABILITY_QUERY,
        RELIABILITY,
    ),
    Figure(
        "Risk against coverage",
        "Share of wrong bins when only the surest forecasts are trusted. Only a replay knows this.",
        RISK_QUERY,
        RISK,
    ),
    Figure(
        "The deferred candidates that are closest to a measurement",
        "What a larger budget would measure next, most promising first.",
        CLOSEST_QUERY,
        wide=True,
    ),
)
