-- Measured and predicted latency percentiles of each log
with times as (
  unpivot (
    select
      comparison_id,
      struct_pack(real := measured_ttft_ms, ours := predicted_ttft_ms) as ttft_ms,
      struct_pack(real := measured_tpot_ms, ours := predicted_tpot_ms) as tpot_ms,
      struct_pack(real := measured_e2e_ms, ours := predicted_e2e_ms) as e2e_ms
    from log_replays
  )
  on ttft_ms, tpot_ms, e2e_ms into name metric value pair
),
pairs as (
  select comparison_id, metric, pair.real, pair.ours
  from times
  where pair.real is not null and pair.ours is not null
  union all by name
  -- gaps between the tokens of a stream
  select comparison_id, 'itl_ms' as metric, unnest(chunk_gaps_ms)::double as real, null as ours
  from compared_requests
  where status = 'ok' and coalesce(tokens_per_chunk, 1) < 1.01
),
shares as (
  select unnest(['p50', 'p90', 'p95', 'p99']) as percentile, unnest([0.5, 0.9, 0.95, 0.99]) as share
),
ordered as (
  select comparison_id, metric, list(real order by real) as real, list(ours order by ours) as ours
  from pairs
  group by all
)
select
  comparison_id,
  metric,
  percentile,
  real[1 + round(share * (len(real) - 1))::bigint] as measured,
  ours[1 + round(share * (len(ours) - 1))::bigint] as predicted
from ordered
cross join shares
order by comparison_id, list_position(['ttft_ms', 'tpot_ms', 'itl_ms', 'e2e_ms'], metric), percentile
