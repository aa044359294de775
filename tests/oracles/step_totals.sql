-- GPU, exposed host and total time of each whole step; host_times in serving/costs.py implements the same rule for the simulation
with kernels as (
  select
    deployment_id,
    step_shape_id,
    sum((round(latency_us * 1e6) * count)::hugeint)::double / 1e6 as gpu_us,
    sum((round(latency_p05_us * 1e6) * count)::hugeint)::double / 1e6 as gpu_p05_us,
    sum((round(latency_p95_us * 1e6) * count)::hugeint)::double / 1e6 as gpu_p95_us,
    sum(count)::bigint as launches
  from kernel_latencies
  group by all
),
host as (
  select
    kernels.*,
    overheads.overlapped,
    overheads.step_exposed_us + overheads.launch_gap_us * kernels.launches
      + overheads.exposed_per_request_us * (shapes.decode_requests + shapes.prefill_requests) as step_exposed_us,
    overheads.step_base_us
      + overheads.per_request_us * (shapes.decode_requests + shapes.prefill_requests)
      + overheads.per_token_us * shapes.tokens as cpu_us,
    kernels.launches * case when shapes.tokens > settings.graph_max_tokens then overheads.per_eager_launch_us else overheads.per_captured_launch_us end as launch_us
  from kernels
  join step_shapes as shapes using (deployment_id, step_shape_id)
  join deployment_settings as settings using (deployment_id)
  join host_settings as overheads using (deployment_id)
  where shapes.part = 'whole' and settings.tier <> 'roofline'
),
paced as (
  select
    *,
    case when overlapped then cpu_us + launch_us else launch_us end as hidden_us,
    step_exposed_us + case when overlapped then 0 else cpu_us end as exposed_us
  from host
  union all
  -- the roofline tier is a bound of the GPU's work: no host time
  select kernels.*, true, 0, 0, 0, 0, 0
  from kernels
  join step_shapes as shapes using (deployment_id, step_shape_id)
  join deployment_settings as settings using (deployment_id)
  where shapes.part = 'whole' and settings.tier = 'roofline'
)
select
  deployment_id,
  step_shape_id,
  gpu_us,
  launches,
  exposed_us + greatest(hidden_us - gpu_us, 0) as host_us,
  exposed_us + greatest(hidden_us, gpu_us) as total_us,
  exposed_us + greatest(hidden_us, gpu_p05_us) as p05_us,
  exposed_us + greatest(hidden_us, gpu_p95_us) as p95_us
from paced
