-- Sensitivity of the GPU time of each step shape to the specifications of the GPU
-- Elasticities of its kernels over 1 % less to 1 % more, weighted by their time.
with timed as (
  select
    kernels.deployment_id,
    kernels.step_shape_id,
    case
      when kernels.family = 'moe' then 'moe'
      when kernels.family in ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all') then 'communication'
      else 'rest'
    end as part,
    kernels.call,
    kernels.count * kernels.latency_us * case
      when corrected.deployment_id is null then 1
      when part = 'moe' then corrected.moe_factor
      when part = 'communication' then corrected.communication_factor
      else corrected.factor
    end as total_us
  from kernel_latencies as kernels
  left join knot_corrections as corrected using (deployment_id, step_shape_id)
  where kernels.count > 0
),
moved as (
  select
    deployment_id,
    step_shape_id,
    fact,
    part,
    -- whole millionths, so that sums do not depend on the order of rows
    sum(round(total_us * 1e6)::hugeint) as spent,
    sum(round(total_us * elasticity * 1e6)::hugeint) as gained
  from kernel_sensitivities
  join timed using (deployment_id, step_shape_id, call)
  group by all
)
select
  deployment_id,
  step_shape_id,
  fact,
  sum(gained) / sum(spent) as elasticity,
  any_value(gained / spent) filter (part = 'moe') as moe_elasticity,
  any_value(gained / spent) filter (part = 'communication') as communication_elasticity,
  any_value(gained / spent) filter (part = 'rest') as rest_elasticity
from moved
where spent > 0
group by all
order by deployment_id, step_shape_id, fact
