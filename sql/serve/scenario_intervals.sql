-- 90 % intervals of what scenario_summary predicts: errors of kernels and host, served, and what is left on measured runs
with at_ends as (
  unpivot (
    select
      scenario_id, "end", columns('^(ttft|tpot|e2e)_(mean|p50|p90|p99)_ms$'),
      completed / nullif(duration_s, 0) as request_throughput,
      output_tokens / nullif(duration_s, 0) as output_throughput
    from request_statistics_at_ends
  )
  on columns(* exclude (scenario_id, "end")) into name metric value figure
),
moved as (
  -- how far the figure of a scenario moves from the middle, as a logarithm
  select
    scenario_id,
    metric,
    ln(max(figure) / max(figure) filter ("end" = 'middle')) as up,
    ln(max(figure) filter ("end" = 'middle') / min(figure)) as down
  from at_ends
  where figure > 0
  group by all
),
predicted as (
  unpivot (
    select scenario_id, columns('^(ttft|tpot|e2e)_(mean|p50|p90|p99)_ms$'), request_throughput, output_throughput
    from scenario_summary
  )
  on columns(* exclude (scenario_id)) into name metric value predicted
)
select
  scenario_id,
  metric,
  predicted,
  predicted * exp(-sqrt(moved.down ** 2 + (1.6448536269514722 * spread.log_sd) ** 2)) as low,
  predicted * exp(sqrt(moved.up ** 2 + (1.6448536269514722 * spread.log_sd) ** 2)) as high
from predicted
join moved using (scenario_id, metric)
join serving_spread as spread
  on spread.metric = case when predicted.metric like '%throughput' then 'throughput' else split_part(predicted.metric, '_', 1) end
order by scenario_id, metric
