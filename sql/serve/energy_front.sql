-- Pareto front of energy per output token and tokens per second per user, separately for each load; scenarios with equal values are all included
select scenario_id, deployment_id, load_groups.load, output_throughput_per_user, energy_per_output_token_j
from scenario_summary
join load_groups using (scenario_id)
where output_throughput_per_user is not null and energy_per_output_token_j is not null
qualify is_on_front(load_groups.load, output_throughput_per_user, -energy_per_output_token_j)
order by load_groups.load, output_throughput_per_user desc, scenario_id
