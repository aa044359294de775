-- Finished requests of sessions by turn: lengths, cached tokens and latencies
select
  scenario_id,
  turn,
  count(*) as requests,
  sum(prompt_tokens) / count(*) as prompt_tokens_mean,
  sum(cached_tokens) / sum(prompt_tokens) as cached_share,
  sum(first_token_ns - sent_ns) / count(*) / 1e6 as ttft_mean_ms,
  quantile_cont((first_token_ns - sent_ns) / 1e6, 0.5) as ttft_p50_ms,
  quantile_cont((first_token_ns - sent_ns) / 1e6, 0.99) as ttft_p99_ms,
  sum(finish_ns - sent_ns) / count(*) / 1e6 as e2e_mean_ms
from session_requests
join request_events using (scenario_id, request_id)
where status = 'finished' and not warmup
group by scenario_id, turn
order by scenario_id, turn
