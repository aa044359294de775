-- GPU time at each knot: the sum of its kernels (in whole picoseconds, so that the result does not depend on the order of rows)
select
  step_shapes.deployment_id,
  step_shapes.part,
  step_shapes.step_shape_id,
  step_shapes.x,
  step_shapes.y,
  sum((round(kernel_latencies.latency_us * 1e6) * kernel_latencies.count)::hugeint)::double / 1e6 as gpu_us,
  sum((round(kernel_latencies.latency_p05_us * 1e6) * kernel_latencies.count)::hugeint)::double / 1e6 as gpu_p05_us,
  sum((round(kernel_latencies.latency_p95_us * 1e6) * kernel_latencies.count)::hugeint)::double / 1e6 as gpu_p95_us,
  coalesce(sum((round(kernel_latencies.latency_us * 1e6) * kernel_latencies.count)::hugeint)
    filter (where kernel_latencies.tier = 'target-measured'), 0)::double / 1e6 as measured_us,
  sum(kernel_latencies.count)::bigint as launches,
  coalesce(sum((round(kernel_latencies.latency_us * 1e6) * kernel_latencies.count)::hugeint)
    filter (where kernel_latencies.family = 'embedding'), 0)::double / 1e6 as embedding_us,
  coalesce(sum((round(kernel_latencies.latency_us * 1e6) * kernel_latencies.count)::hugeint)
    filter (where kernel_latencies.family = 'p2p'), 0)::double / 1e6 as transfer_us,
  coalesce(sum((round(kernel_latencies.latency_us * 1e6) * kernel_latencies.count)::hugeint)
    filter (where kernel_latencies.family = 'moe'), 0)::double / 1e6 as moe_us,
  coalesce(sum((round(kernel_latencies.latency_us * 1e6) * kernel_latencies.count)::hugeint)
    filter (where kernel_latencies.family in ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all')), 0)::double / 1e6 as communication_us
from step_shapes
join kernel_latencies using (deployment_id, step_shape_id)
where step_shapes.part <> 'whole'
group by all
