-- Percentiles of inter-token latency, by linear interpolation between ranks, from the histogram's bin centres
with ranked as (
  select
    scenario_id,
    pow(1.002, bin + 0.5) / 1000 as gap_ms,
    sum(gaps) over (partition by scenario_id order by bin) as up_to,
    sum(gaps) over (partition by scenario_id) as total
  from itl_histogram
),
wanted as (
  select scenario_id, percentile, (any_value(total) - 1) * percentile / 100.0 as rank
  from ranked cross join (values (50), (90), (99)) as percentiles (percentile)
  group by scenario_id, percentile
),
found as (
  -- ranks count from 0: the gap of rank r lies in the first bin whose gaps reach beyond r
  select
    wanted.scenario_id,
    wanted.percentile,
    wanted.rank - floor(wanted.rank) as share,
    min(ranked.gap_ms) filter (where ranked.up_to > floor(wanted.rank)) as low_ms,
    min(ranked.gap_ms) filter (where ranked.up_to > ceil(wanted.rank)) as high_ms
  from wanted join ranked using (scenario_id)
  group by all
)
select scenario_id, percentile::bigint as percentile, low_ms + share * (high_ms - low_ms) as itl_ms
from found
