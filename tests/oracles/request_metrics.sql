-- Latencies of each finished request, as defined by benchmark clients; without warm-ups
select
  events.scenario_id,
  events.request_id,
  requests.external_id,
  events.prompt_tokens,
  events.output_tokens,
  (events.first_token_ns - events.sent_ns) / 1e6 as ttft_ms,
  case when events.output_tokens > 1 then (events.finish_ns - events.first_token_ns) / 1e6 / (events.output_tokens - 1) end as tpot_ms,
  case when events.output_tokens > 1 then (events.finish_ns - events.first_token_ns) / 1e6 / (events.output_tokens - 1) end as itl_ms,
  (events.finish_ns - events.sent_ns) / 1e6 as e2e_ms,
  least(round_even((host.request_us + host.per_prompt_token_us * events.prompt_tokens) * 1e3, 0)::bigint, events.scheduled_ns - events.sent_ns) / 1e6 as front_end_ms,
  (events.scheduled_ns - events.sent_ns - least(round_even((host.request_us + host.per_prompt_token_us * events.prompt_tokens) * 1e3, 0)::bigint, events.scheduled_ns - events.sent_ns)) / 1e6 as queue_ms,
  (events.first_token_ns - events.scheduled_ns) / 1e6 as prefill_ms,
  (events.finish_ns - events.first_token_ns) / 1e6 as decode_ms,
  (events.kv_received_ns - events.first_token_ns) / 1e6 as kv_transfer_ms,
  events.cached_tokens,
  events.tier_tokens,
  events.kv_load_ns / 1e6 as kv_load_ms,
  events.preemptions,
  events.requeued_ns / 1e6 as requeue_ms,
  events.recomputed_ns / 1e6 as recompute_ms,
  case when coalesce(scenarios.goodput_ttft_ms, scenarios.goodput_tpot_ms, scenarios.goodput_e2el_ms) is not null then
    (events.first_token_ns - events.sent_ns) / 1e6 <= coalesce(scenarios.goodput_ttft_ms, 'inf'::double)
    and (events.output_tokens <= 1
         or (events.finish_ns - events.first_token_ns) / 1e6 / (events.output_tokens - 1) <= coalesce(scenarios.goodput_tpot_ms, 'inf'::double))
    and (events.finish_ns - events.sent_ns) / 1e6 <= coalesce(scenarios.goodput_e2el_ms, 'inf'::double)
  end as meets_objectives
from request_events as events
join requests using (scenario_id, request_id)
join scenarios using (scenario_id)
join host_settings as host using (deployment_id)
where events.status = 'finished' and not coalesce(requests.warmup, false)
order by events.scenario_id, events.request_id
