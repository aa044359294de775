-- 90 % intervals of what scenario_summary predicts: errors of kernels and host, served, and what is left on measured runs
with at_ends as (
  unpivot (
    select
      scenario_id, "end", columns('^(ttft|tpot|e2e)_(mean|p50|p90|p99)_ms$'),
      completed / nullif(duration_s, 0) as request_throughput,
      output_tokens / nullif(duration_s, 0) as output_throughput
    from request_statistics_at_ends
    where "end" <> 'slower steps'
  )
  on columns(* exclude (scenario_id, "end")) into name metric value figure
),
moved as (
  -- how far a figure moves from the middle, as a logarithm
  select
    scenario_id,
    metric,
    ln(max(figure) / max(figure) filter ("end" = 'middle')) as up,
    ln(max(figure) filter ("end" = 'middle') / min(figure)) as down
  from at_ends
  where figure > 0
  group by all
),
loads as (
  -- requests that are running or waiting, on average
  select
    scenario_id,
    coalesce(any_value(max_concurrency), max(completed * e2e_mean_ms / 1e3 / nullif(duration_s, 0)), 1) as in_flight
  from scenarios
  join request_statistics_at_ends as ends using (scenario_id)
  where ends."end" = 'middle'
  group by scenario_id
),
spread as (
  select scenario_id, metric, arg_max(1.6448536269514722 * log_sd, in_flight_above) as half
  from scenarios
  join loads using (scenario_id)
  join deployment_settings using (deployment_id)
  join models using (model)
  join serving_spread on (serving_spread.model_class = 'moe') = (coalesce(models.experts, 0) > 0) and in_flight > in_flight_above
  group by scenario_id, metric
),
widened as (
  -- a rate follows the time of requests as far as it moves at all: arrivals may decide it
  select
    moved.*,
    case when moved.metric like '%throughput' then moved.up / nullif(e2e.down, 0) * sqrt(e2e.down ** 2 + half ** 2)
    else sqrt(moved.up ** 2 + half ** 2) end as above,
    case when moved.metric like '%throughput' then moved.down / nullif(e2e.up, 0) * sqrt(e2e.up ** 2 + half ** 2)
    else sqrt(moved.down ** 2 + half ** 2) end as below
  from moved
  join moved as e2e on e2e.scenario_id = moved.scenario_id and e2e.metric = 'e2e_mean_ms'
  join spread
    on spread.scenario_id = moved.scenario_id
    and spread.metric = case when moved.metric like '%throughput' then 'e2e' else split_part(moved.metric, '_', 1) end
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
  predicted * exp(-coalesce(below, 0)) as low,
  predicted * exp(coalesce(above, 0)) as high
from predicted
join widened using (scenario_id, metric)
order by scenario_id, metric
