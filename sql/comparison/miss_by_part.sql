-- Mean difference between measured and predicted E2E by part, summed in whole nanoseconds
with parts as (
  select
    comparison_id,
    unnest([
      'client', 'workload', 'front_end', 'queue', 'prefill_gemm', 'prefill_attention', 'decode_gemm',
      'decode_attention', 'moe', 'communication', 'host', 'preemption', 'unexplained', 'miss'
    ]) as part,
    generate_subscripts(range(14), 1) as place
  from comparisons
),
misses as (
  unpivot (
    select
      comparison_id, client_ms as client, workload_ms as workload, front_end_ms as front_end, queue_ms as queue,
      prefill_gemm_ms as prefill_gemm, prefill_attention_ms as prefill_attention, decode_gemm_ms as decode_gemm,
      decode_attention_ms as decode_attention, moe_ms as moe, communication_ms as communication, host_ms as host,
      preemption_ms as preemption, unexplained_ms as unexplained, e2e_miss_ms as miss
    from prediction_vs_production
  )
  on columns(* exclude (comparison_id)) into name part value ms
),
sums as (
  select
    comparison_id, part, place, coalesce(sum(round(ms * 1e6)::bigint), 0)::double as ns, greatest(count(ms), 1) as n
  from parts
  left join misses using (comparison_id, part)
  group by all
),
totals as (
  select comparison_id, ns from sums where part = 'miss'
)
select
  sums.comparison_id,
  sums.part,
  sums.ns / sums.n / 1e6 as miss_ms,
  coalesce(sums.ns / nullif(totals.ns, 0), 0) as share,
  replayed_parts.predicted_ms,
  if(fitted.sd is null or fitted.parameter in ('host', 'front_end'), null, exp(fitted.value)) as factor,
  if(factor is null, null, exp(fitted.value - 1.645 * fitted.sd)) as factor_p05,
  if(factor is null, null, exp(fitted.value + 1.645 * fitted.sd)) as factor_p95,
  fitted.sd / fitted.prior_sd as posterior_ratio
from sums
join totals using (comparison_id)
left join replayed_parts using (comparison_id, part)
left join fitted_parameters as fitted on fitted.comparison_id = sums.comparison_id and fitted.parameter = sums.part
where sums.part <> 'miss'
order by sums.comparison_id, abs(miss_ms) desc, sums.place
