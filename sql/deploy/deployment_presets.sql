-- Engine defaults of each deployment before its own flags: the rows that apply to its version, GPU and parallel sizes
with facts as (
  select
    deployments.deployment_id, deployments.engine, deployments.engine_version, deployments.dp, deployments.pp, gpus.memory_bytes,
    device_words(gpus.name, gpus.compute_capability) as device,
    -- SGLang counts attention replicas that share experts within its tensor-parallel group
    deployments.tp * case when deployments.engine = 'sglang' and models.experts is not null then deployments.dp else 1 end as group_tp,
    1 + coalesce(deployments.num_speculative_tokens, 0) as query_tokens,
    -- data-parallel ranks synchronise at the experts that they share; a draft model runs with its target
    deployments.dp > 1 and deployments.pp = 1 and models.experts is not null
      and deployments.deployment_id not in (select draft_deployment_id from deployments where draft_deployment_id is not null) as lock_step
  from deployments
  join gpus on gpus.gpu = deployments.gpu
  join models on models.model = deployments.model
),
presets as (
  select facts.deployment_id, engine_presets.*
  from facts join engine_presets using (engine)
  qualify row_number() over (
    partition by deployment_id order by holding_version(from_version, engine_version) desc nulls last, version_numbers(from_version)) = 1
),
-- of the matching rows of a version: the one with the most memory, then a row for named GPUs, then the largest parallel size
sizes as (
  select facts.deployment_id, engine_sizes.*
  from facts join engine_sizes using (engine)
  where holds_memory(memory_bytes, min_memory, memory_unit, memory_operator) and group_tp >= min_tp and is_like(device, gpu_like, gpu_unlike)
  qualify row_number() over (
    partition by deployment_id
    order by holding_version(from_version, engine_version) desc nulls last, version_numbers(from_version),
             min_memory desc, memory_operator, gpu_like = '*', min_tp desc) = 1
)
select
  presets.* exclude (engine, from_version, source) replace (async_scheduling and (query_tokens = 1 or async_with_drafts) as async_scheduling),
  facts.lock_step,
  facts.query_tokens,
  facts.group_tp * facts.pp as group_gpus,
  case when query_tokens > 1 and draft_max_num_seqs is not null then greatest(draft_max_num_seqs // case when lock_step then dp else 1 end, 1)
       else max_num_seqs * case when seats_per_stage then pp else 1 end end as max_num_seqs,
  case when lock_step and ranks_divide_budget then greatest(max_num_batched_tokens // dp, 1)
    else max_num_batched_tokens end as max_num_batched_tokens,
  sizes.graph_max_tokens,
  sizes.graph_tokens_per_seat,
  format('{} from {}', presets.engine, presets.from_version) as presets_row,
  preset_class(sizes.from_version, sizes.min_memory, sizes.memory_unit, sizes.memory_operator, sizes.gpu_like, sizes.min_tp,
    'tensor-parallel size') as sizes_row
from facts
join presets using (deployment_id)
join sizes using (deployment_id)
