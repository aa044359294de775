-- Largest CUDA-graph batch of each deployment, and the default share of memory that its engine uses
with asked as (
  select
    presets.deployment_id,
    presets.lock_step,
    presets.query_tokens,
    presets.group_gpus,
    deployments.engine,
    deployments.engine_version,
    gpus.memory_bytes,
    device_words(gpus.name, gpus.compute_capability) as device,
    deployments.dp,
    deployments.pp,
    coalesce(deployments.prompt_graphs = 'none', false) as without_prompt_graphs,
    gpus.memory_bytes / 1048576.0 as memory_mib,
    models.kv_lora_rank is not null as latent,
    deployments.draft_deployment_id,
    deployments.draft_deployment_id is not null and coalesce(methods.proposer, 'model') = 'model' as drafts_by_model,
    coalesce(deployments.max_cudagraph_capture_size,
             least(graph_max_tokens, graph_tokens_per_seat * coalesce(deployments.max_num_seqs, presets.max_num_seqs)
               * query_tokens)) as captured_batch,
    -- tokens of a step before they are divided between ranks
    coalesce(deployments.max_num_batched_tokens, presets.max_num_batched_tokens) * case when lock_step and ranks_divide_budget then dp
      else 1 end as budget
  from deployment_presets as presets
  join deployments using (deployment_id)
  join gpus on gpus.gpu = deployments.gpu
  join models on models.model = deployments.model
  left join draft_acceptance_rates as methods on methods.method = deployments.speculative_method
),
-- of the matching rows of a version: the one with the most memory, then a row for named GPUs, then the most GPUs
held as (
  select asked.*, engine_memory.* exclude (engine)
  from asked join engine_memory using (engine)
  where holds_memory(memory_bytes, min_memory, memory_unit, memory_operator) and group_gpus >= min_gpus and is_like(device, gpu_like, gpu_unlike)
  qualify row_number() over (
    partition by deployment_id
    order by holding_version(from_version, engine_version) desc nulls last, version_numbers(from_version),
             min_memory desc, memory_operator, gpu_like = '*', min_gpus desc) = 1
),
reserves as (
  select
    *,
    greatest(
      reserved_mib + reserved_mib_per_gpu * group_gpus + reserved_mib_per_token * greatest(budget, 2048) + reserved_mib_per_request * captured_batch
        + case when lock_step then reserved_mib_ranks
                 + captured_batch * dp * (reserved_mib_per_rank_request + case when captured_batch > 300 then reserved_mib_per_far_request else 0 end)
               when pp > 1 or without_prompt_graphs then 0
               when latent then reserved_mib_latent_graphs
               else reserved_mib_prompt_graphs end,
      least_reserved_mib)
      + case when query_tokens = 1 then 0 when drafts_by_model then reserved_mib_draft_model
             when draft_deployment_id is null then 0 else reserved_mib_draft_layer end
      as reserved
  from held
)
select
  deployment_id,
  captured_batch,
  case when gpu_memory_utilization is null then reserved end as reserved_mib,
  coalesce(gpu_memory_utilization, greatest(round((memory_mib - reserved) / memory_mib, 3), 0.001)) as gpu_memory_utilization,
  preset_class(from_version, min_memory, memory_unit, memory_operator, gpu_like, min_gpus, 'GPUs of an engine') as memory_row
from reserves
