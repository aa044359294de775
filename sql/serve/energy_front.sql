-- Pareto front of energy per output token and tokens per second per user, separately for each load; scenarios with equal values are all included
with ranked as (
  select
    scenario_id,
    deployment_id,
    load_groups.load,
    output_throughput_per_user,
    energy_per_output_token_j,
    min(energy_per_output_token_j) over (
      partition by load_groups.load order by output_throughput_per_user desc range between unbounded preceding and current row exclude group
    ) as best_above,
    min(energy_per_output_token_j) over (partition by load_groups.load, output_throughput_per_user) as best_beside
  from scenario_summary
  join load_groups using (scenario_id)
  where output_throughput_per_user is not null and energy_per_output_token_j is not null
)
select scenario_id, deployment_id, load, output_throughput_per_user, energy_per_output_token_j
from ranked
where energy_per_output_token_j = best_beside and energy_per_output_token_j < coalesce(best_above, 'infinity'::double)
order by load, output_throughput_per_user desc, scenario_id
