-- Measured and predicted number of decoding requests in each of sixty windows of a log
with lengths as (
  select
    comparison_id,
    min(sent_s) as first_s,
    greatest((max(sent_s + coalesce(measured_e2e_ms, 0) / 1e3) - min(sent_s)) / 60, 1e-9) as width_s
  from log_replays
  group by comparison_id
),
spans as (
  select comparison_id, true as real, sent_s + measured_ttft_ms / 1e3 as begin_s, sent_s + measured_e2e_ms / 1e3 as end_s
  from log_replays
  union all
  select comparison_id, false, first_token_ns / 1e9, finish_ns / 1e9
  from log_replays
),
moments as (
  select comparison_id, real, begin_s as at_s, 1 as change from spans where end_s > begin_s
  union all
  select comparison_id, real, end_s, -1 from spans where end_s > begin_s
  union all
  -- levels are split at the edges of windows
  select comparison_id, side.real, first_s + place * width_s, 0
  from lengths
  cross join range(60) as windows(place)
  cross join (values (true), (false)) as side(real)
),
levels as (
  select
    comparison_id,
    real,
    at_s,
    sum(change) over in_order as running,
    coalesce(lead(at_s) over in_order, at_s) - at_s as seconds
  from moments
  window in_order as (partition by comparison_id, real order by at_s, change rows unbounded preceding)
)
select
  comparison_id,
  first_s + floor((at_s - first_s) / width_s + 1e-9) * width_s as start_s,
  first_s + (floor((at_s - first_s) / width_s + 1e-9) + 1) * width_s as end_s,
  coalesce(max(running) filter (real and seconds > 0), 0)::bigint as running_max,
  coalesce(max(running) filter (not real and seconds > 0), 0)::bigint as predicted_running_max,
  coalesce(sum((running * seconds)::decimal(38, 9)) filter (real), 0)::double / any_value(width_s) as running_mean,
  coalesce(sum((running * seconds)::decimal(38, 9)) filter (not real), 0)::double / any_value(width_s) as predicted_running_mean
from levels
join lengths using (comparison_id)
where at_s >= first_s and at_s < first_s + 60 * width_s - 1e-9
group by all
order by comparison_id, start_s
