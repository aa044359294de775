-- Limiting resource of each scenario in each time window: of the resources that delay requests, the one of which more gains most throughput
with gains as (
  select scenario_id, resource, throughput_gain, e2e_gain from resource_gains
),
seen as (
  select
    windows.*,
    settings.max_num_seqs as seats,
    windows.kv_blocks_used_max / nullif(windows.kv_blocks_used_max + windows.kv_blocks_free_min, 0) as kv_share_max,
    -- requests that were sent but have not reached the scheduler do not wait for the engine
    windows.waiting_mean - host.request_us / 1e6 * statistics.completed / statistics.duration_s as held_up,
    (windows.prefill_tokens + windows.decode_tokens) / nullif(windows.steps, 0) / settings.max_num_batched_tokens as budget_share,
    statistics.prompt_tokens / nullif(statistics.completed, 0) / nullif(plan.kv_cache_tokens, 0) as prompt_share
  from cache_over_time as windows
  join replica_totals using (scenario_id, replica)
  join deployment_settings as settings using (deployment_id)
  join memory_plan as plan using (deployment_id)
  join host_settings as host using (deployment_id)
  join request_statistics as statistics using (scenario_id)
),
held as (
  select
    *,
    held_up >= 1 and running_max >= seats as by_seats,
    -- a prompt that does not fit in the free KV cache waits although some of it is left
    preemptions > 0 or (held_up >= 1 and running_max < seats and kv_share_max + prompt_share >= 0.97) as by_kv,
    held_up >= 1 and budget_share >= 0.9 as by_budget
  from seen
),
limits as (
  select
    held.scenario_id,
    held.replica,
    held."window",
    arg_max(gains.resource, (gains.throughput_gain, gains.resource)) as held_by,
    arg_max(gains.resource, (gains.e2e_gain, gains.resource))
      filter (gains.resource in ('prefill compute', 'decode bandwidth', 'link', 'host')) as slowed_by
  from held
  join gains
    on gains.scenario_id = held.scenario_id
    and case gains.resource
      when 'seats' then by_seats
      when 'KV cache' then by_kv
      when 'token budget' then by_budget
      when 'arrivals' then not (by_seats or by_kv or by_budget)
      else true
    end
  group by all
)
select
  held.scenario_id,
  held.replica,
  held."window",
  held.start_s,
  held.end_s,
  case when held.steps = 0 then 'arrivals' else limits.held_by end as "limit",
  limits.slowed_by,
  format('{:.1f} running of {} seats, {:.1f} waiting, KV cache {:.0f} % full, steps {:.0f} % of the time', running_mean, seats,
    waiting_mean, 100 * kv_share_mean, 100 * busy_share) as evidence,
  case "limit"
    when 'arrivals' then 'nothing: requests are served as they arrive, and more could be'
    when 'prefill compute'
      then 'a GPU with more FLOP/s, fewer bits a weight, tensor parallelism, more replicas; prefix caching where prompts share a prefix'
    when 'decode bandwidth'
      then 'a GPU with more memory bandwidth, fewer bits a weight or cached key, tensor parallelism; larger batches where latency allows'
    when 'link' then 'a lower tensor_parallel_size, or GPUs with faster links'
    when 'host' then 'CUDA graphs up to the batch that runs, asynchronous scheduling, a newer engine, a faster CPU'
    when 'KV cache' then 'kv_cache_dtype fp8, more gpu_memory_utilization, GPUs with more memory, a higher tensor_parallel_size'
    when 'seats' then 'a higher max_num_seqs'
    when 'token budget' then 'a higher max_num_batched_tokens'
  end as help,
  running_mean,
  waiting_mean,
  kv_share_max,
  budget_share,
  busy_share
from held
join limits using (scenario_id, replica, "window")
order by all
