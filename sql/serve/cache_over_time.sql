-- KV use, prefix-cache hits and the batch of each replica over time: means over windows, including idle time
with means as (
  select
    *,
    (end_ns - start_ns) / 1e3 as span_us,
    kv_block_us / span_us as kv_blocks_used_mean,
    running_us / span_us as running_mean,
    -- both sums come from the same moments: a difference below nought is rounding
    greatest(in_flight_us - running_us, 0) / span_us as waiting_mean
  from serving_windows
  where end_ns > start_ns
)
select
  means.scenario_id,
  means.replica,
  means."window",
  means.start_ns / 1e9 as start_s,
  means.end_ns / 1e9 as end_s,
  means.kv_blocks_used_mean,
  means.kv_blocks_used_max,
  plan.capacity_units - means.kv_blocks_used_mean as kv_blocks_free_mean,
  plan.capacity_units - means.kv_blocks_used_max as kv_blocks_free_min,
  means.kv_blocks_used_mean / plan.capacity_units as kv_share_mean,
  means.running_mean,
  means.running_max,
  means.waiting_mean,
  least(means.busy_us / means.span_us, 1) as busy_share,
  means.steps,
  means.prefill_tokens,
  means.decode_tokens,
  means.cached_tokens,
  means.looked_up_tokens,
  means.cached_tokens / nullif(means.looked_up_tokens, 0) as hit_rate,
  means.preemptions
from means
join memory_plan as plan using (deployment_id)
order by means.scenario_id, means.replica, means."window"
