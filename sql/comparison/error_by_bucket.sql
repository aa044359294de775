-- Prediction errors by prompt length, output length and concurrency
with buckets as (
  select
    unnest(['prompt', 'output', 'concurrency']) as bucket,
    unnest([[256, 1024, 4096, 16384], [32, 128, 512, 2048], [1, 4, 16, 64, 256]]) as edges
),
times as (
  unpivot (
    select
      comparison_id, prompt_tokens, output_tokens, in_flight,
      struct_pack(real := measured_ttft_ms, ours := predicted_ttft_ms) as ttft,
      struct_pack(real := measured_tpot_ms, ours := predicted_tpot_ms) as tpot,
      struct_pack(real := measured_e2e_ms, ours := predicted_e2e_ms) as e2e
    from log_replays
  )
  on ttft, tpot, e2e into name metric value pair
),
placed as (
  select
    comparison_id, bucket, metric, edges, pair.real, pair.ours,
    case bucket when 'prompt' then prompt_tokens when 'output' then output_tokens else in_flight end as size,
    len(list_filter(edges, lambda edge: edge <= size)) as place
  from times
  cross join buckets
  where pair.real > 0 and isfinite(pair.real) and pair.ours is not null
)
select
  comparison_id,
  bucket,
  if(place = 0, 0, edges[place]) as at_least,
  edges[place + 1] as below,
  metric,
  count(*) as n,
  median(abs(ours / real - 1)) as median_ape,
  quantile_cont(abs(ours / real - 1), 0.9) as p90_ape,
  -- decimals, because their sum does not depend on the order of rows
  sum(ours::decimal(38, 12))::double / sum(real::decimal(38, 12))::double - 1 as bias,
  avg((real / greatest(ours, 1e-9) between request_low and request_high)::int) as coverage_90
from placed
left join log_intervals using (comparison_id, metric)
group by comparison_id, bucket, edges, place, metric
order by
  comparison_id, list_position(['prompt', 'output', 'concurrency'], bucket), place,
  list_position(['ttft', 'tpot', 'e2e'], metric)
