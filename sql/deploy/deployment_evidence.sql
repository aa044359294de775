-- Data behind each component of a deployment's steps: the kernels used with their measurements, and host times
with spent as (
  select
    deployment_id,
    case
      when family = 'moe' then 'experts'
      when family in ('all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'p2p') then 'exchange'
      when family like '%attention' or family like 'mla%' then 'attention'
      when family like '%gemm' then 'matrix products'
      else 'other kernels'
    end as component,
    -- assumed constants: kernels that no sweep contains
    case when tier = 'cross-generation' and family in (select family from eta_coefficients where part = 'constant' and assumed is not null)
         then 'a-priori' else tier end as tier,
    evidence,
    sum(gpu_us) as gpu_us
  from kernel_evidence
  group by all
),
tiers as (
  select deployment_id, component, tier, sum(gpu_us) as gpu_us from spent group by all
),
by_evidence as (
  select deployment_id, component, evidence, sum(gpu_us) as gpu_us from spent group by all
),
kernels as (
  select
    deployment_id,
    component,
    arg_max(tier, (gpu_us, tier)) as tier,
    coalesce(sum(gpu_us) filter (tier = 'target-measured'), 0) / sum(gpu_us) as measured_share,
    sum(gpu_us) / sum(sum(gpu_us)) over (partition by deployment_id) as gpu_share
  from tiers
  group by deployment_id, component
),
said as (
  select deployment_id, component, string_agg(evidence, '; ' order by gpu_us desc, evidence) as evidence
  from (
    select * from by_evidence
    -- evidence of less than a thirtieth of the component's time is not listed
    qualify gpu_us * 30 >= sum(gpu_us) over (partition by deployment_id, component)
  )
  group by deployment_id, component
),
hosts as (
  select
    deployment_id,
    engine || ' from version ' || from_version as row_of_engine,
    assumed,
    array_to_string(list_sort(list_distinct(regexp_extract_all(
      source, 'InferenceX|gap analysis|ML\.ENERGY|inference-perf|vLLM 0\.15\.1 over HTTP|own tables|aiconfigurator'))), ', ') as campaigns
  from host_settings
)
from (
select deployment_id, component, tier, said.evidence, measured_share, gpu_share
from kernels
join said using (deployment_id, component)
union all
select
  settings.deployment_id,
  'host',
  case
    when settings.tier = 'roofline' then 'roofline'
    when settings.deployment_id in (select deployment_id from corrections where part in ('host', 'front_end')) then 'log-corrected'
    when hosts.campaigns <> '' then 'campaign-fitted'
    when hosts.assumed is not null then 'a-priori'
    else 'measured'
  end,
  case
    when settings.tier = 'roofline' then 'no time of the host'
    else 'host times of ' || hosts.row_of_engine
      || case when hosts.campaigns <> '' then ', in part fitted to or chosen on runs of ' || hosts.campaigns
              when hosts.assumed is not null then ', ' || hosts.assumed else '' end
  end,
  case when hosts.assumed is null and settings.tier <> 'roofline' then 1.0 else 0.0 end,
  null
from deployment_settings as settings
join hosts using (deployment_id)
)
order by deployment_id, gpu_share desc nulls last, component
