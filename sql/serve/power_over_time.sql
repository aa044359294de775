-- Power of the GPUs of each scenario by time window; where replicas have windows of different widths, the widest
with windows as (
  select
    *,
    max(end_ns - start_ns) over (partition by scenario_id) as width_ns,
    min(start_ns) over (partition by scenario_id) as origin_ns,
    max(end_ns) over (partition by scenario_id) as last_ns
  from serving_windows
),
-- each window of a replica lies within one of the widest, whose width is a power of two times its own
placed as (
  select
    windows.scenario_id,
    (((start_ns + end_ns) // 2 - origin_ns) // greatest(width_ns, 1))::bigint as place,
    origin_ns + place * width_ns as from_ns,
    least(origin_ns + (place + 1) * width_ns, last_ns) as to_ns,
    settings.tp * settings.pp * least(busy_us * 1e3, end_ns - start_ns) as active_ns,
    power.idle_w,
    power.idle_w + power.active_w + 1e9 * settings.tp * dynamic_energy_j / nullif(active_ns, 0) as free_w,
    held_w(free_w, least(power.cap_w, settings.power_limit_w), power.cap_sharpness) as active_w
  from windows
  join deployment_settings as settings using (deployment_id)
  join gpu_power as power on power.gpu = settings.gpu
  where end_ns > start_ns
),
idle as (
  select totals.scenario_id, sum(round(settings.tp * settings.pp * power.idle_w * 1e6)::hugeint) / 1e6 as idle_w
  from replica_totals as totals
  join deployment_settings as settings using (deployment_id)
  join gpu_power as power on power.gpu = settings.gpu
  group by totals.scenario_id
),
-- whole nanojoules, so that sums do not depend on the order of rows
summed as (
  select
    scenario_id,
    place,
    from_ns,
    to_ns,
    case when bool_and(active_w is not null or active_ns = 0) then sum(round(active_ns * coalesce(active_w - idle_w, 0))::hugeint) end as active
  from placed
  group by scenario_id, place, from_ns, to_ns
)
select
  scenario_id,
  place as "window",
  from_ns / 1e9 as start_s,
  to_ns / 1e9 as end_s,
  idle_w + active / nullif(to_ns - from_ns, 0) + coalesce(host_power_w, 0) * gpus as power_w,
  power_w * (to_ns - from_ns) / 1e9 as energy_j
from summed
join idle using (scenario_id)
join scenario_energy using (scenario_id)
join scenarios using (scenario_id)
order by scenario_id, "window"
