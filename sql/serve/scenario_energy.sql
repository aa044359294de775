-- Energy of all GPUs of each scenario: active GPUs with the work of kernels, held below their limit on average, and idle ones
with engines as (
  select
    totals.scenario_id,
    totals.first_ns,
    totals.last_ns,
    settings.tp * settings.pp as gpus,
    settings.tp * (totals.gpu_ns + totals.host_ns) as active_ns,
    power.idle_w,
    power.idle_w + power.active_w + 1e9 * settings.tp * totals.dynamic_energy_j / nullif(active_ns, 0) as free_w,
    held_w(free_w, least(power.cap_w, settings.power_limit_w), power.cap_sharpness) as active_w,
    settings.tp * settings.pp * least(power.limit_w, settings.power_limit_w) as limit_w,
    power.power_log_half,
    power.energy_log_half
  from replica_totals as totals
  join deployment_settings as settings using (deployment_id)
  join gpu_power as power on power.gpu = settings.gpu
),
spans as (
  select scenario_id, max(last_ns) - min(first_ns) as span_ns from engines group by scenario_id
),
-- in nanojoules, whole numbers, so that the order of rows changes nothing
spent as (
  select
    scenario_id,
    span_ns,
    sum(gpus)::bigint as gpus,
    case when bool_and(free_w is not null or active_ns = 0) then sum(round(active_ns * coalesce(free_w, 0))::hugeint) end as free,
    case when bool_and(free_w is not null or active_ns = 0) then sum(round(active_ns * coalesce(active_w, 0))::hugeint) end as active,
    sum(round(greatest(gpus * span_ns - active_ns, 0) * idle_w)::hugeint) as idle,
    sum(round(limit_w * 1e3)::hugeint) / 1e3 as limit_w,
    max(power_log_half) as power_log_half,
    max(energy_log_half) as energy_log_half
  from engines join spans using (scenario_id)
  group by scenario_id, span_ns
)
select
  scenario_id,
  gpus,
  span_ns / 1e9 as span_s,
  active / 1e9 as active_energy_j,
  idle / 1e9 as idle_energy_j,
  active / nullif(free, 0) as held_share,
  (active + idle) / nullif(span_ns, 0) as gpu_power_w,
  limit_w,
  power_log_half,
  energy_log_half
from spent
order by scenario_id
