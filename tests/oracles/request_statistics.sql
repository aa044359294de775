-- Request statistics of each scenario: counts, tokens, means and percentiles of their latencies; without warm-ups
with served as (
  select
    scenario_id,
    count(*) as completed,
    sum(prompt_tokens) as prompt_tokens,
    sum(output_tokens) as output_tokens,
    sum(round(ttft_ms * 1e6)::hugeint) / count(*) / 1e6 as ttft_mean_ms,
    list_sort(list(ttft_ms) filter (where ttft_ms is not null)) as ttft,
    sum(round(tpot_ms * 1e6)::hugeint) / count(tpot_ms) / 1e6 as tpot_mean_ms,
    list_sort(list(tpot_ms) filter (where tpot_ms is not null)) as tpot,
    sum(round(e2e_ms * 1e6)::hugeint) / count(*) / 1e6 as e2e_mean_ms,
    list_sort(list(e2e_ms) filter (where e2e_ms is not null)) as e2e,
    list_sort(list(queue_ms) filter (where queue_ms is not null)) as queue,
    sum(round(front_end_ms * 1e6)::hugeint)::double as front_end_ns,
    sum(round(queue_ms * 1e6)::hugeint)::double as queue_ns,
    sum(round(prefill_ms * 1e6)::hugeint)::double as prefill_ns,
    sum(round(decode_ms * 1e6)::hugeint)::double as decode_ns,
    sum(round((requeue_ms + recompute_ms) * 1e6)::hugeint)::double as preempted_ns,
    case when bool_or(meets_objectives is not null) then count(*) filter (where meets_objectives) end as good
  from request_metrics
  group by scenario_id
),
ranked as (
  select scenario_id, unnest(['ttft', 'tpot', 'e2e', 'queue']) as latency, unnest([ttft, tpot, e2e, queue]) as sorted from served
),
percentiles as (
  -- linear between ranks, written out: quantile_cont rounds in its own way on each processor
  select
    scenario_id,
    latency,
    list_transform([0.5, 0.9, 0.99]::double[], lambda share:
      sorted[floor((len(sorted) - 1) * share)::bigint + 1]
      + (sorted[ceil((len(sorted) - 1) * share)::bigint + 1] - sorted[floor((len(sorted) - 1) * share)::bigint + 1])
        * ((len(sorted) - 1) * share - floor((len(sorted) - 1) * share))) as ms
  from ranked
),
asked as (
  select
    scenario_id,
    count(*) as requests,
    sum(events.prompt_tokens) as asked_tokens,
    sum(events.cached_tokens) as cached_tokens,
    (coalesce(max(events.finish_ns), min(events.sent_ns)) - min(events.sent_ns)) / 1e9 as duration_s
  from request_events as events
  join requests using (scenario_id, request_id)
  where not coalesce(requests.warmup, false)
  group by scenario_id
)
select
  asked.*,
  coalesce(served.completed, 0) as completed,
  served.prompt_tokens, served.output_tokens,
  served.ttft_mean_ms, ttft.ms[1] as ttft_p50_ms, ttft.ms[2] as ttft_p90_ms, ttft.ms[3] as ttft_p99_ms,
  served.tpot_mean_ms, tpot.ms[1] as tpot_p50_ms, tpot.ms[2] as tpot_p90_ms, tpot.ms[3] as tpot_p99_ms,
  served.e2e_mean_ms, e2e.ms[1] as e2e_p50_ms, e2e.ms[2] as e2e_p90_ms, e2e.ms[3] as e2e_p99_ms,
  queue.ms[1] as queue_p50_ms, queue.ms[2] as queue_p90_ms, queue.ms[3] as queue_p99_ms,
  served.front_end_ns, served.queue_ns, served.prefill_ns, served.decode_ns, served.preempted_ns,
  served.good
from asked
left join served using (scenario_id)
left join percentiles as ttft on ttft.scenario_id = asked.scenario_id and ttft.latency = 'ttft'
left join percentiles as tpot on tpot.scenario_id = asked.scenario_id and tpot.latency = 'tpot'
left join percentiles as e2e on e2e.scenario_id = asked.scenario_id and e2e.latency = 'e2e'
left join percentiles as queue on queue.scenario_id = asked.scenario_id and queue.latency = 'queue'
