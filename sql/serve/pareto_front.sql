-- Pareto front of tokens per second per GPU and per user, separately for each load; scenarios with equal values are all included
with ranked as (
  select
    scenario_id,
    deployment_id,
    load_groups.load,
    output_throughput_per_user,
    output_throughput_per_gpu,
    -- the highest value per GPU among scenarios with higher values per user, and among those with the same value per user
    max(output_throughput_per_gpu) over (
      partition by load_groups.load order by output_throughput_per_user desc range between unbounded preceding and current row exclude group
    ) as best_above,
    max(output_throughput_per_gpu) over (partition by load_groups.load, output_throughput_per_user) as best_beside
  from scenario_summary
  join load_groups using (scenario_id)
  where output_throughput_per_user is not null and output_throughput_per_gpu is not null
)
select scenario_id, deployment_id, load, output_throughput_per_user, output_throughput_per_gpu
from ranked
where output_throughput_per_gpu = best_beside and output_throughput_per_gpu > coalesce(best_above, 0)
order by load, output_throughput_per_user desc, scenario_id
