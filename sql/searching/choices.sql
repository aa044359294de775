-- Fastest implementation at each shape, its lead over the next one, and whether to trust it or to measure first
with ranked as (
  select *,
    row_number() over each_shape as place,
    count(*) over whole_shape as candidates,
    count(measured_us) over whole_shape as measured,
    min(measured_us) over whole_shape as fastest_us
  from choice_candidates
  window
    whole_shape as (partition by gpu, family, dtype, distribution, shape),
    each_shape as (whole_shape order by log_ratio, p_fastest desc, engine, implementation)
)
select
  pick.gpu, pick.family, pick.dtype, pick.distribution, pick.shape, pick.engine, pick.implementation,
  pick.latency_us, pick.p05_us, pick.p95_us, pick.candidates, pick.p_fastest, pick.expected_regret,
  other.engine as next_engine,
  other.implementation as next_implementation,
  exp(other.log_ratio) as next_ratio,
  exp(other.log_ratio_p05) as next_ratio_p05,
  exp(other.log_ratio_p95) as next_ratio_p95,
  case
    when pick.measured = pick.candidates then 'measured'
    when pick.expected_regret <= pick.tolerance then 'trust'
    else 'measure'
  end as decision,
  pick.measured_us / pick.fastest_us - 1 as regret,
  pick.tier, pick.evidence
from ranked as pick
left join ranked as other
  on other.place = 2 and pick.gpu = other.gpu and pick.family = other.family and pick.dtype = other.dtype
  and pick.distribution is not distinct from other.distribution and pick.shape = other.shape
where pick.place = 1
order by pick.gpu, pick.family, pick.dtype, pick.distribution, pick.shape
