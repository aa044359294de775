-- Host overhead of each deployment: the engine's latest row up to the deployment's version, or its newest row if no version is stated
-- Additions: launches inside nodes (layer_launches), and the stated delay of requests. Times of Python and PyTorch scale with the CPU;
-- gaps between kernels belong to the GPU, and times from log_corrections were measured. A graph that is started as a whole launches no kernel.
with held as (
  select
    deployments.deployment_id,
    deployments.model,
    deployments.gpu,
    deployments.engine_version,
    coalesce(deployments.api_server_count, 1) as front_ends,
    case when deployments.endpoint = 'chat' and not is_listed(models.architecture, coalesce(host_overheads.chat_unlike, ''))
         then coalesce(host_overheads.chat_us, 0) else 0.0 end as chat_us,
    coalesce(deployments.request_delay_ms, 0) * 1000 as request_delay_us,
    coalesce(deployments.cpu, gpus.cpu, 'x86') as cpu,
    case when coalesce(gpus.kind, 'gpu') = 'gpu' then 1.0 else 0.0 end as launched,
    case when coalesce(host_overheads.compiled, false) then 1.0 else coalesce(cpus.speed, 1.0) end as cpu_speed,
    host_overheads.* exclude (chat_us, chat_unlike),
    holding_version(host_overheads.from_version, deployments.engine_version) as holding
  from deployments
  join host_overheads using (engine)
  join gpus using (gpu)
  join models on models.model = deployments.model
  left join cpus on cpus.cpu = coalesce(deployments.cpu, gpus.cpu, 'x86')
),
-- how ranks that share experts synchronise a step; a single rank does not
agreed as (
  select deployments.deployment_id, known.padded, known.waits
  from deployments
  join models using (model)
  join engine_ranks as known using (engine)
  where deployments.dp > 1 and models.experts is not null and holding_version(known.from_version, deployments.engine_version) is not null
  qualify row_number() over (
    partition by deployments.deployment_id order by holding_version(known.from_version, deployments.engine_version) desc) = 1
),
-- operations outside CUDA graphs that are no calls (those of drafts between the passes, apart from the others): those inside nodes, of which the node's call counts as one
inner_launches as (
  select deployment_id, coalesce(sum(launches) filter (node not in ('draft_pass', 'draft_vocabulary')), 0)::bigint as launches, sum(host_us) as host_us,
    coalesce(sum(launches) filter (node in ('draft_pass', 'draft_vocabulary')), 0)::bigint as of_drafts,
    coalesce(sum(launches) filter (node in ('adapted', 'adapter_mapping')), 0)::bigint as of_adapters
  from (
    select deployment_id, node, sum(operations) filter (where not apart) - max(case when swept then nodes else 0 end) as launches, sum(host_us) as host_us
    from layer_launches group by deployment_id, layer_kind, node
  )
  group by deployment_id
),
added as (
  select
    deployment_id,
    sum(exposed_us) filter (where part = 'host') as step_us,
    sum(exposed_us) filter (where part = 'front_end') as request_us
  from corrections
  group by deployment_id
)
select
  deployment_id,
  engine,
  engine_version,
  from_version,
  step_exposed_us / cpu_speed + coalesce(added.step_us, 0) as step_exposed_us,
  step_base_us / cpu_speed as step_base_us,
  per_request_us / cpu_speed as per_request_us,
  per_token_us / cpu_speed as per_token_us,
  launched * per_captured_launch_us / cpu_speed as per_captured_launch_us,
  models.experts is not null as experts,
  launched * per_eager_launch_us / cpu_speed as per_eager_launch_us,
  coalesce(inner_launches.launches, 0) as inner_launches,
  coalesce(inner_launches.of_adapters, 0) as adapter_launches,
  coalesce(inner_launches.of_drafts, 0) as draft_launches,
  launched * coalesce(inner_launches.host_us, 0) / cpu_speed as eager_dispatch_us,
  -- attention, its KV write, and the graph of the remaining kernels
  3 * models.layer_count as piecewise_launches,
  launched * coalesce(launch_gap_us, gpus.kernel_gap_us, 1.3) as launch_gap_us,
  held.chat_us / cpu_speed as chat_us,
  greatest((held.request_us + held.chat_us) / cpu_speed + request_delay_us + coalesce(added.request_us, 0), 0) as request_us,
  request_delay_us,
  coalesce(per_prompt_token_us, 0) / cpu_speed as per_prompt_token_us,
  coalesce(per_output_token_us, 0) / cpu_speed as per_output_token_us,
  coalesce(per_active_us, 0) / cpu_speed as per_active_us,
  front_ends,
  held.cpu,
  cpu_speed,
  coalesce(exposed_per_request_us, 0) / cpu_speed as exposed_per_request_us,
  exposed_requests_half,
  coalesce(step_log_sd, 0) as step_log_sd,
  overlapped and not coalesce(agreed.waits, false) as overlapped,
  coalesce(agreed.padded, false) as ranks_padded,
  assumed,
  held.source
from held
join models using (model)
join gpus using (gpu)
left join inner_launches using (deployment_id)
left join added using (deployment_id)
left join agreed using (deployment_id)
-- versions older than every row use the oldest row
qualify row_number() over (partition by deployment_id order by holding desc nulls last, version_numbers(from_version)) = 1
