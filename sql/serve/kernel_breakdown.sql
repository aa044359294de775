-- GPU time of each scenario by kernel: the kernels of every knot, weighted by the knot's uses
with spent as (
  select
    uses.scenario_id,
    uses.phase,
    kernels.family,
    kernels.name,
    kernels.bound,
    -- in millionths, whole numbers, so that the order of rows changes nothing
    sum(round(uses.weight * kernels.count * 1e6)::hugeint) as calls,
    sum(round(uses.weight * kernels.count * kernels.latency_us * 1e6 * case
      when corrected.deployment_id is null then 1
      when kernels.family = 'moe' then corrected.moe_factor
      when kernels.family in ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all') then corrected.communication_factor
      else corrected.factor
    end)::hugeint) as total
  from step_cost_uses as uses
  join kernel_latencies as kernels using (deployment_id, step_shape_id)
  left join knot_corrections as corrected using (deployment_id, step_shape_id)
  group by all
),
named as (
  select scenario_id, phase, family, name, sum(calls) as calls, sum(total) as total, arg_max(bound, (total, bound)) as bound
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
  bound
from named
order by scenario_id, phase, total_us desc, name
