-- Summary of each scenario as printed by a benchmark client, and the time use of its replicas
with gaps as (select scenario_id, sum(gaps) as gaps from itl_histogram group by scenario_id),
replicas as (
  select
    scenario_id,
    sum(steps)::bigint as steps,
    sum(preemptions)::bigint as preemptions,
    max(peak_kv_units / nullif(capacity_units, 0)) as peak_kv_share,
    sum(gpu_ns) / 1e9 as gpu_s,
    sum(host_ns) / 1e9 as host_exposed_s,
    sum(idle_ns) / 1e9 as idle_s,
    sum(itl_sum_ns) as itl_sum_ns,
    sum(draft_tokens)::bigint as draft_tokens,
    sum(accepted_draft_tokens)::bigint as accepted_draft_tokens
  from replica_totals join (select deployment_id, capacity_units from memory_plan) using (deployment_id)
  group by scenario_id
),
pools as (
  -- with disaggregated serving two: one that decodes, one that computes prompts
  select scenario_id, deployment_id, coalesce(decode_replicas, replicas, 1) as replicas from scenarios
  union all
  select scenario_id, prefill_deployment_id, coalesce(prefill_replicas, 1) from scenarios where prefill_deployment_id is not null
),
sizes as (
  select scenario_id, sum(tp * pp * dp * replicas)::bigint as gpus
  from pools join deployment_settings using (deployment_id)
  group by scenario_id
),
itl as (
  select scenario_id, max(itl_ms) filter (where percentile = 50) as p50, max(itl_ms) filter (where percentile = 90) as p90,
         max(itl_ms) filter (where percentile = 99) as p99
  from itl_percentiles
  group by scenario_id
),
faults as (
  select scenario_id, string_agg(sentence, '; ' order by fault) as sentences
  from (
    select distinct pools.scenario_id, fault, sentence
    from pools
    join deployment_settings as settings using (deployment_id)
    join deployment_faults as faults on faults.deployment_id in (settings.deployment_id, settings.draft_deployment_id)
  )
  group by scenario_id
)
select
  scenarios.scenario_id,
  scenarios.deployment_id,
  coalesce(faults.sentences, 'served') as status,
  coalesce(statistics.requests, 0) as requests,
  coalesce(statistics.completed, 0) as completed,
  statistics.duration_s,
  statistics.ttft_mean_ms, statistics.ttft_p50_ms, statistics.ttft_p90_ms, statistics.ttft_p99_ms,
  statistics.tpot_mean_ms, statistics.tpot_p50_ms, statistics.tpot_p90_ms, statistics.tpot_p99_ms,
  replicas.itl_sum_ns / gaps.gaps / 1e6 as itl_mean_ms, itl.p50 as itl_p50_ms, itl.p90 as itl_p90_ms, itl.p99 as itl_p99_ms,
  statistics.e2e_mean_ms, statistics.e2e_p50_ms, statistics.e2e_p90_ms, statistics.e2e_p99_ms,
  statistics.queue_ns / nullif(statistics.completed, 0) / 1e6 as queue_mean_ms,
  statistics.queue_p50_ms, statistics.queue_p90_ms, statistics.queue_p99_ms,
  statistics.front_end_ns / nullif(statistics.completed, 0) / 1e6 as front_end_mean_ms,
  statistics.front_end_ns / nullif(statistics.spent_ns, 0) as front_end_share,
  statistics.queue_ns / nullif(statistics.spent_ns, 0) as queue_share,
  statistics.prefill_ns / nullif(statistics.spent_ns, 0) as prefill_share,
  statistics.decode_ns / nullif(statistics.spent_ns, 0) as decode_share,
  statistics.preempted_ns / nullif(statistics.spent_ns, 0) as preempted_share,
  nullif(statistics.completed, 0) / nullif(statistics.duration_s, 0) as request_throughput,
  statistics.output_tokens / nullif(statistics.duration_s, 0) as output_throughput,
  (statistics.prompt_tokens + statistics.output_tokens) / nullif(statistics.duration_s, 0) as total_throughput,
  statistics.good / nullif(statistics.duration_s, 0) as goodput,
  sizes.gpus,
  statistics.output_tokens / nullif(statistics.duration_s, 0) / sizes.gpus as output_throughput_per_gpu,
  1000 / statistics.tpot_mean_ms as output_throughput_per_user,
  replicas.steps,
  replicas.preemptions,
  nullif(replicas.draft_tokens, 0) as draft_tokens,
  case when replicas.draft_tokens > 0 then replicas.accepted_draft_tokens end as accepted_draft_tokens,
  case when statistics.asked_tokens > 0 then statistics.cached_tokens / statistics.asked_tokens end as prefix_cache_hit_rate,
  case when statistics.asked_tokens > 0 then (statistics.cached_tokens - statistics.tier_tokens) / statistics.asked_tokens end as device_hit_rate,
  plan.kv_cache_tokens,
  replicas.peak_kv_share,
  replicas.gpu_s,
  replicas.host_exposed_s,
  replicas.idle_s,
  energy.mean_power_w, energy.mean_power_w_low, energy.mean_power_w_high,
  energy.energy_per_output_token_j, energy.energy_per_output_token_j_low, energy.energy_per_output_token_j_high,
  energy.energy_per_request_j, energy.energy_per_request_j_low, energy.energy_per_request_j_high,
  energy.carbon_per_million_tokens_g, energy.carbon_per_million_tokens_g_low, energy.carbon_per_million_tokens_g_high,
  capacities.capacity,
  capacities.capacity_low,
  capacities.capacity_high,
  capacities.capacity_limit,
  capacities."load",
  tiers.tier,
  tiers.not_measured
from scenarios
join sizes using (scenario_id)
join memory_plan as plan using (deployment_id)
left join deployment_tiers as tiers using (deployment_id)
left join faults using (scenario_id)
left join (select *, front_end_ns + queue_ns + prefill_ns + decode_ns as spent_ns from request_statistics) as statistics using (scenario_id)
left join gaps using (scenario_id)
left join scenario_capacity as capacities using (scenario_id)
left join replicas using (scenario_id)
left join itl using (scenario_id)
left join scenario_energy as energy using (scenario_id)
order by scenarios.scenario_id
