-- Tier of most of each deployment's GPU time, and what was not measured
with spent as (
  select
    deployment_id,
    tier,
    family,
    gpu_us,
    -- assumed constants: kernels that no sweep contains
    family in (select family from eta_coefficients where part = 'constant' and assumed is not null) as is_assumed
  from kernel_evidence
),
tiers as (
  select
    deployment_id,
    -- general constants can be wrong by a factor of 4, so a fifth of the time suffices to set the tier of the whole
    case when coalesce(sum(gpu_us) filter (tier = 'unmeasured-vendor'), 0) >= 0.2 * sum(gpu_us) then 'unmeasured-vendor'
         else arg_max(tier, (gpu_us, tier)) end as tier,
    sum(gpu_us) filter (tier = 'target-measured' and not is_assumed) / sum(gpu_us) as measured_share
  from (select deployment_id, tier, is_assumed, sum(gpu_us) as gpu_us from spent group by all)
  group by deployment_id
),
assumed as (
  select deployment_id, string_agg(distinct family, ', ' order by family) as families
  from spent where is_assumed group by deployment_id
),
other_kernels as (
  select deployment_id, string_agg(family, ', ' order by family) as families
  from (
    select deployment_id, family
    from spent
    group by deployment_id, family
    -- families with less than a fiftieth of the time are not listed
    qualify sum(gpu_us) filter (tier = 'gpu-measured' and not is_assumed)
      >= 0.02 * sum(sum(gpu_us)) over (partition by deployment_id)
  )
  group by deployment_id
),
foreign_kernels as (
  select deployment_id, string_agg(distinct family, ', ' order by family) as families
  from spent where tier = 'unmeasured-vendor' group by deployment_id
)
select
  settings.deployment_id,
  case
    when settings.deployment_id in (select deployment_id from corrections) then 'log-corrected'
    when settings.tier = 'roofline' then 'roofline'
    else coalesce(tiers.tier, settings.tier)
  end as tier,
  coalesce(tiers.measured_share, 0) as measured_share,
  assumed.families as assumed_families,
  nullif(concat_ws('; ',
    gpu_engines.says,
    case
      when settings.tier = 'roofline' then 'kernels and host time: bounds of the hardware alone'
      when foreign_kernels.families is not null then format('{} on a GPU of {}: general constants stand in', foreign_kernels.families, upper(gpus.vendor))
      when tiers.tier = 'cross-generation' then format('kernels on {}', settings.gpu)
      when tiers.tier = 'points-measured' then format('kernels on {} beside a few points', settings.gpu)
    end,
    other_kernels.families || ' with these kernels or sizes',
    case when settings.tier <> 'roofline' and foreign_kernels.families is null then assumed.families end,
    case when settings.tier <> 'roofline' and host.assumed is not null then 'host time' end), '') as not_measured
from deployment_settings as settings
join gpus on gpus.gpu = settings.gpu
left join tiers using (deployment_id)
left join assumed using (deployment_id)
left join other_kernels using (deployment_id)
left join foreign_kernels using (deployment_id)
left join host_settings as host using (deployment_id)
left join gpu_engines on gpu_engines.gpu = settings.gpu and gpu_engines.engine = settings.engine
