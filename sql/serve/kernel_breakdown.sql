-- GPU time and energy of each scenario by kernel: the kernels of every knot, weighted by the knot's uses
with factors as (
  select
    kernels.*,
    case
      when corrected.deployment_id is null then 1
      when kernels.family = 'moe' then corrected.moe_factor
      when kernels.family in ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all') then corrected.communication_factor
      else corrected.factor
    end as correction,
    -- a correction changes the time, and with it what an active GPU draws anyway
    settings.tp * (energy_j * 1e6 + (correction - 1) * latency_us * (power.idle_w + power.active_w)) as energy
  from kernel_latencies as kernels
  join deployment_settings as settings using (deployment_id)
  join gpu_power as power on power.gpu = settings.gpu
  left join knot_corrections as corrected using (deployment_id, step_shape_id)
),
spent as (
  select
    uses.scenario_id,
    uses.phase,
    kernels.family,
    kernels.name,
    kernels.bound,
    -- in millionths, whole numbers, so that the order of rows changes nothing
    sum(round(uses.weight * kernels.count * 1e6)::hugeint) as calls,
    sum(round(uses.weight * kernels.count * kernels.latency_us * 1e6 * correction)::hugeint) as total,
    case when bool_and(energy is not null) then sum(round(uses.weight * kernels.count * energy)::hugeint) end as energy
  from step_cost_uses as uses
  join factors as kernels using (deployment_id, step_shape_id)
  group by all
),
named as (
  select
    scenario_id, phase, family, name, sum(calls) as calls, sum(total) as total, arg_max(bound, (total, bound)) as bound,
    case when bool_and(energy is not null) then sum(energy) end as energy
  from spent
  group by all
)
select
  scenario_id,
  phase,
  family,
  name,
  calls / 1e6 as calls,
  total / 1e6 as total_us,
  total / sum(total) over (partition by scenario_id) as share,
  bound,
  energy / 1e6 * held_share as energy_j
from named
left join scenario_energy using (scenario_id)
order by scenario_id, phase, total_us desc, name
