-- Sampling kernel of each deployment after a top-p or top-k filter: the engine's latest row up to the deployment's version, otherwise its oldest
select
  deployments.deployment_id,
  case when gpus.vendor = 'nvidia' then engine_samplers.sampler else engine_samplers.sampler_elsewhere end as sampler
from deployments
join gpus on gpus.gpu = deployments.gpu
join engine_samplers using (engine)
qualify row_number() over (
  partition by deployments.deployment_id
  order by holding_version(engine_samplers.from_version, deployments.engine_version) desc nulls last, version_numbers(engine_samplers.from_version)
) = 1
