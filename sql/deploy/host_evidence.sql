-- Data behind the host times of each deployment: the row of host_overheads, and campaigns named as its source
with hosts as (
  select
    deployment_id,
    engine || ' from version ' || from_version as row_of_engine,
    assumed,
    array_to_string(list_sort(list_distinct(regexp_extract_all(
      source, 'InferenceX|gap analysis|ML\.ENERGY|inference-perf|vLLM 0\.15\.1 over HTTP|own tables|aiconfigurator'))), ', ') as campaigns
  from host_settings
)
select
  settings.deployment_id,
  case
    when settings.tier = 'roofline' then 'roofline'
    when settings.deployment_id in (select deployment_id from corrections where part in ('host', 'front_end')) then 'log-corrected'
    when hosts.campaigns <> '' then 'campaign-fitted'
    when hosts.assumed is not null then 'a-priori'
    else 'measured'
  end as tier,
  case
    when settings.tier = 'roofline' then 'no time of the host'
    else 'host times of ' || hosts.row_of_engine
      || case when hosts.campaigns <> '' then ', in part fitted to or chosen on runs of ' || hosts.campaigns
              when hosts.assumed is not null then ', ' || hosts.assumed else '' end
  end as evidence,
  case when hosts.assumed is null and settings.tier <> 'roofline' then 1.0 else 0.0 end as measured_share
from deployment_settings as settings
join hosts using (deployment_id)
order by deployment_id
