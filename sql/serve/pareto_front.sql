-- Pareto front of tokens per second per GPU and per user, separately for each load; scenarios with equal values are all included
select scenario_id, deployment_id, load_groups.load, output_throughput_per_user, output_throughput_per_gpu
from scenario_summary
join load_groups using (scenario_id)
where output_throughput_per_user is not null and output_throughput_per_gpu > 0
qualify is_on_front(load_groups.load, output_throughput_per_user, output_throughput_per_gpu)
order by load_groups.load, output_throughput_per_user desc, scenario_id
