-- Measured / predicted time over the time of each log, and the window in which the ratio changed
with spans as (
  select
    comparison_id,
    min(sent_s) as first_s,
    greatest((max(sent_s) - min(sent_s)) / 12, 1e-9) as width_s,
    if(count(measured_tpot_ms) > 0, 'tpot', 'e2e') as metric
  from log_replays
  group by comparison_id
),
ratios as (
  select
    comparison_id,
    metric,
    first_s,
    width_s,
    least(floor((sent_s - first_s) / width_s), 11) as place,
    if(metric = 'tpot', measured_tpot_ms / predicted_tpot_ms, measured_e2e_ms / predicted_e2e_ms) as ratio
  from log_replays
  join spans using (comparison_id)
),
windows as (
  select comparison_id, metric, first_s, width_s, place, count(*) as n, median(ln(ratio)) as log_factor
  from ratios
  where ratio > 0 and isfinite(ratio)
  group by all
  having count(*) >= 5
),
splits as (
  -- each window is tried as the first one after a change
  select
    *,
    count(*) over earlier as windows_before,
    count(*) over later as windows_after,
    avg(log_factor) over earlier as before,
    avg(log_factor) over later as after,
    var_samp(log_factor) over earlier / windows_before + var_samp(log_factor) over later / windows_after as noise,
    abs(before - after) / greatest(sqrt(noise), 0.002) as z
  from windows
  window
    earlier as (partition by comparison_id order by place rows between unbounded preceding and 1 preceding),
    later as (partition by comparison_id order by place rows between current row and unbounded following)
),
changes as (
  -- a change: windows differ by more than five standard errors and by more than 3 %
  select comparison_id, arg_max(place, (z, -place)) as place
  from splits
  where windows_before >= 2 and windows_after >= 2
  group by comparison_id
  having max(z) > 5 and arg_max(abs(before - after), (z, -place)) > 0.03
)
select
  comparison_id,
  first_s + place * width_s as start_s,
  first_s + (place + 1) * width_s as end_s,
  metric,
  n,
  exp(log_factor) as factor,
  changes.place is not null as change,
  if(change, exp(before), null) as before,
  if(change, exp(after), null) as after
from splits
left join changes using (comparison_id, place)
order by comparison_id, start_s
