-- What a benchmark client would print for each scenario, and how the replicas spent their time
with served as (
  select
    scenario_id,
    count(*) as completed,
    sum(prompt_tokens) as prompt_tokens,
    sum(output_tokens) as output_tokens,
    sum(round(ttft_ms * 1e6)::hugeint) / count(*) / 1e6 as ttft_mean_ms,
    quantile_cont(ttft_ms, [0.5, 0.9, 0.99]) as ttft,
    sum(round(tpot_ms * 1e6)::hugeint) / count(tpot_ms) / 1e6 as tpot_mean_ms,
    quantile_cont(tpot_ms, [0.5, 0.9, 0.99]) as tpot,
    sum(round(e2e_ms * 1e6)::hugeint) / count(*) / 1e6 as e2e_mean_ms,
    quantile_cont(e2e_ms, [0.5, 0.9, 0.99]) as e2e,
    sum(round(queue_ms * 1e6)::hugeint) as queue_ns,
    sum(round(prefill_ms * 1e6)::hugeint) as prefill_ns,
    sum(round(decode_ms * 1e6)::hugeint) as decode_ns,
    sum(round((requeue_ms + recompute_ms) * 1e6)::hugeint) as preempted_ns,
    quantile_cont(queue_ms, [0.5, 0.9, 0.99]) as queue,
    count(*) filter (where meets_objectives) as good,
    bool_or(meets_objectives is not null) as has_objectives
  from request_metrics
  group by scenario_id
),
asked as (
  select
    scenario_id,
    count(*) as requests,
    sum(events.prompt_tokens) as prompt_tokens,
    sum(events.cached_tokens) as cached_tokens,
    (coalesce(max(events.finish_ns), min(events.sent_ns)) - min(events.sent_ns)) / 1e9 as duration_s
  from request_events as events
  join requests using (scenario_id, request_id)
  where not coalesce(requests.warmup, false)
  group by scenario_id
),
gaps as (select scenario_id, sum(gaps) as gaps from itl_histogram group by scenario_id),
replicas as (
  select
    scenario_id,
    sum(steps)::bigint as steps,
    sum(preemptions)::bigint as preemptions,
    max(peak_kv_units) as peak_kv_units,
    sum(gpu_ns) / 1e9 as gpu_s,
    sum(host_ns) / 1e9 as host_exposed_s,
    sum(idle_ns) / 1e9 as idle_s,
    sum(itl_sum_ns) as itl_sum_ns
  from replica_totals
  group by scenario_id
),
itl as (
  select scenario_id, max(itl_ms) filter (where percentile = 50) as p50, max(itl_ms) filter (where percentile = 90) as p90,
         max(itl_ms) filter (where percentile = 99) as p99
  from itl_percentiles
  group by scenario_id
),
faults as (
  select deployment_id, string_agg(sentence, '; ' order by fault) as sentences from deployment_faults group by deployment_id
)
select
  scenarios.scenario_id,
  scenarios.deployment_id,
  coalesce(faults.sentences, 'served') as status,
  coalesce(asked.requests, 0) as requests,
  coalesce(served.completed, 0) as completed,
  asked.duration_s,
  served.ttft_mean_ms, served.ttft[1] as ttft_p50_ms, served.ttft[2] as ttft_p90_ms, served.ttft[3] as ttft_p99_ms,
  served.tpot_mean_ms, served.tpot[1] as tpot_p50_ms, served.tpot[2] as tpot_p90_ms, served.tpot[3] as tpot_p99_ms,
  replicas.itl_sum_ns / gaps.gaps / 1e6 as itl_mean_ms, itl.p50 as itl_p50_ms, itl.p90 as itl_p90_ms, itl.p99 as itl_p99_ms,
  served.e2e_mean_ms, served.e2e[1] as e2e_p50_ms, served.e2e[2] as e2e_p90_ms, served.e2e[3] as e2e_p99_ms,
  served.queue_ns / served.completed / 1e6 as queue_mean_ms,
  served.queue[1] as queue_p50_ms, served.queue[2] as queue_p90_ms, served.queue[3] as queue_p99_ms,
  served.queue_ns / nullif(served.queue_ns + served.prefill_ns + served.decode_ns, 0) as queue_share,
  served.prefill_ns / nullif(served.queue_ns + served.prefill_ns + served.decode_ns, 0) as prefill_share,
  served.decode_ns / nullif(served.queue_ns + served.prefill_ns + served.decode_ns, 0) as decode_share,
  served.preempted_ns / nullif(served.queue_ns + served.prefill_ns + served.decode_ns, 0) as preempted_share,
  served.completed / nullif(asked.duration_s, 0) as request_throughput,
  served.output_tokens / nullif(asked.duration_s, 0) as output_throughput,
  (served.prompt_tokens + served.output_tokens) / nullif(asked.duration_s, 0) as total_throughput,
  case when served.has_objectives then served.good / nullif(asked.duration_s, 0) end as goodput,
  settings.tp * settings.pp * settings.dp as gpus,
  served.output_tokens / nullif(asked.duration_s, 0) / (settings.tp * settings.pp * settings.dp) as output_throughput_per_gpu,
  1000 / served.tpot_mean_ms as output_throughput_per_user,
  replicas.steps,
  replicas.preemptions,
  case when asked.prompt_tokens > 0 then asked.cached_tokens / asked.prompt_tokens end as prefix_cache_hit_rate,
  plan.kv_cache_tokens,
  replicas.peak_kv_units / nullif(plan.capacity_units, 0) as peak_kv_share,
  replicas.gpu_s,
  replicas.host_exposed_s,
  replicas.idle_s
from scenarios
join deployment_settings as settings using (deployment_id)
join memory_plan as plan using (deployment_id)
left join faults using (deployment_id)
left join asked using (scenario_id)
left join served using (scenario_id)
left join gaps using (scenario_id)
left join replicas using (scenario_id)
left join itl using (scenario_id)
order by scenarios.scenario_id
