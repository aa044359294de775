-- Sessions: requests, tokens, latencies, and the time of the whole task
select
  scenario_id,
  session,
  case when count(*) = count(*) filter (where status = 'finished') then 'finished' else 'cut_short' end as status,
  count(*) as requests,
  count(*) filter (where status = 'finished') as completed,
  max(turn) + 1 as turns,
  coalesce(sum(prompt_tokens) filter (where status = 'finished'), 0)::bigint as prompt_tokens,
  sum(output_tokens)::bigint as output_tokens,
  coalesce(sum(cached_tokens) filter (where status = 'finished'), 0)::bigint as cached_tokens,
  min(sent_ns) / 1e9 as start_s,
  (max(finish_ns) - min(sent_ns)) / 1e9 as duration_s,
  coalesce(sum(finish_ns - sent_ns), 0) / 1e9 as serving_s,
  sum(first_token_ns - sent_ns) / nullif(count(first_token_ns), 0) / 1e6 as ttft_mean_ms,
  max(first_token_ns - sent_ns) / 1e6 as ttft_max_ms
from session_requests
join request_events using (scenario_id, request_id)
where not warmup
group by scenario_id, session
order by scenario_id, session
