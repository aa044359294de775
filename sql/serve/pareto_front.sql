-- Pareto front of tokens per second per GPU and per user, for each load by itself; equal scenarios are both included
with loads as (
  -- loads that differ in nothing but how many requests there are at once are one
  select
    scenario_id,
    dense_rank() over (
      order by trace, lengths_from, length_distribution, input_len, output_len, range_ratio, input_len_cv, output_len_cv,
        prefix_len, num_prefixes, num_turns, think_time_s
    ) as load
  from scenarios
),
ranked as (
  select
    scenario_id,
    deployment_id,
    loads.load,
    output_throughput_per_user,
    output_throughput_per_gpu,
    -- the best per GPU among those that are better per user, and among equals per user
    max(output_throughput_per_gpu) over (
      partition by loads.load order by output_throughput_per_user desc range between unbounded preceding and current row exclude group
    ) as best_above,
    max(output_throughput_per_gpu) over (partition by loads.load, output_throughput_per_user) as best_beside
  from scenario_summary
  join loads using (scenario_id)
  where output_throughput_per_user is not null and output_throughput_per_gpu is not null
)
select scenario_id, deployment_id, load, output_throughput_per_user, output_throughput_per_gpu
from ranked
where output_throughput_per_gpu = best_beside and output_throughput_per_gpu > coalesce(best_above, 0)
order by load, output_throughput_per_user desc, scenario_id
