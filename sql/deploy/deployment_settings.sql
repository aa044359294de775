-- Every flag of each deployment with the engine's defaults filled in, and the number format of each class of weights
with preset as (
  select deployments.deployment_id, engine_presets.*
  from deployments
  join gpus on gpus.gpu = deployments.gpu
  join engine_presets
    on engine_presets.engine = deployments.engine
   and engine_presets.min_memory_bytes <= gpus.memory_bytes
   and (engine_presets.excludes is null or not starts_with(gpus.gpu, engine_presets.excludes))
  qualify row_number() over (partition by deployments.deployment_id order by engine_presets.min_memory_bytes desc) = 1
),
formats as (
  select
    deployments.deployment_id,
    coalesce(deployments.dtype, case when models.dtype = 'fp32' then 'bf16' else models.dtype end) as dtype,
    case when quantizations.quantization is null then models.attention_format else quantizations.attention_format end as attention_format,
    case when quantizations.quantization is null then models.ffn_format else quantizations.ffn_format end as ffn_format,
    case when quantizations.quantization is null then models.expert_format else quantizations.expert_format end as expert_format,
    coalesce(quantizations.activation_scales, models.activation_scales) as activation_scales,
    models.kv_cache_format
  from deployments
  join models on models.model = deployments.model
  left join quantizations on quantizations.quantization = deployments.quantization
),
-- the numbers of a release of vLLM, by which defaults changed; null: another engine, or no release
releases as (
  select
    deployment_id,
    case when engine = 'vllm' and regexp_matches(engine_version, '^v?[0-9]')
         then regexp_extract_all(split_part(engine_version, '+', 1), '[0-9]+')::bigint[] end as vllm
  from deployments
),
-- every limit as the deployment states it, else as its engine's preset does
limits as (
  select deployment_id, any_value(columns(* exclude (deployment_id, level)) order by level)
  from (select 0 as level, * from deployments union all by name select 1 as level, * from preset)
  group by deployment_id
),
-- where draft tokens come from; null: there are none
proposing as (
  select
    deployment_id,
    case when num_speculative_tokens > 0 then coalesce(speculative_method, case when draft_deployment_id is null then 'ngram' else 'draft_model' end) end as method
  from limits
)
select
  limits.* exclude (engine_version, quantization, enforce_eager, max_cudagraph_capture_size, min_memory_bytes, excludes, assumed, source) replace (
    coalesce(limits.tier, 'auto') as tier,
    formats.dtype as dtype,
    coalesce(limits.kv_cache_dtype, case when formats.kv_cache_format = 'fp8' then 'fp8' else formats.dtype end) as kv_cache_dtype,
    coalesce(limits.max_model_len, least(models.max_positions, 1048576))::bigint as max_model_len,
    -- default of a long prompt with concurrent partial prefills: 4 % of max_model_len, as in vLLM's SchedulerConfig
    coalesce(
      deployments.long_prefill_token_threshold,
      case when greatest(deployments.max_num_partial_prefills, deployments.max_long_partial_prefills) > 1
           then greatest(least(coalesce(limits.max_model_len, models.max_positions), 1048576) * 4 // 100, 1) end,
      limits.long_prefill_token_threshold
    )::bigint as long_prefill_token_threshold,
    -- a static batch is prefilled before it decodes, and keeps its blocks until it finishes
    case when deployments.scheduling = 'static' then 'prefill_first' else limits.prefill_policy end as prefill_policy,
    case
      when deployments.scheduling = 'static' then coalesce(deployments.capacity_policy, 'guaranteed_no_evict')
      -- vLLM asks for room for the whole prompt from version 0.19 on (pull request 37307)
      when deployments.capacity_policy is null and releases.vllm < [0, 19] then 'max_utilization'
      else limits.capacity_policy
    end as capacity_policy,
    coalesce(limits.num_speculative_tokens, 0) as num_speculative_tokens,
    case when limits.num_speculative_tokens > 0 then coalesce(limits.draft_acceptance_rate, usual.acceptance_rate) else 0 end as draft_acceptance_rate,
    proposing.method as speculative_method,
    case when limits.num_speculative_tokens > 0 then limits.draft_deployment_id end as draft_deployment_id,
    -- vLLM schedules a step ahead by default from version 0.14 on
    case when deployments.async_scheduling is null and releases.vllm < [0, 14] then false else limits.async_scheduling end as async_scheduling,
    -- TensorRT-LLM gathers tokens unless there are more expert ranks than a token has experts
    case when deployments.expert_exchange is null and limits.engine = 'trtllm' and limits.ep <= coalesce(models.top_k, 0) then 'all_gather'
         else limits.expert_exchange end as expert_exchange,
    case when coalesce(limits.enforce_eager, false) then 0 else coalesce(limits.max_cudagraph_capture_size, limits.graph_max_tokens) end as graph_max_tokens
  ),
  limits.tp * limits.dp // limits.ep as moe_tp,
  limits.ep as moe_ep,
  case when coalesce(formats.attention_format, 'bf16') in ('bf16', 'fp16', 'fp32') then formats.dtype else formats.attention_format end as attention_format,
  case when coalesce(formats.ffn_format, 'bf16') in ('bf16', 'fp16', 'fp32') then formats.dtype else formats.ffn_format end as ffn_format,
  case when coalesce(formats.expert_format, 'bf16') in ('bf16', 'fp16', 'fp32') then formats.dtype else formats.expert_format end as expert_format,
  formats.activation_scales,
  1 + coalesce(limits.num_speculative_tokens, 0) as query_tokens,
  -- data-parallel ranks meet at the experts that they share; a model that proposes tokens follows its target
  limits.dp > 1 and limits.pp = 1 and models.experts is not null
    and limits.deployment_id not in (select draft_deployment_id from deployments where draft_deployment_id is not null) as lock_step
from limits
join deployments using (deployment_id)
join formats using (deployment_id)
join releases using (deployment_id)
join proposing using (deployment_id)
join models on models.model = limits.model
left join draft_acceptance_rates as usual on usual.method = proposing.method
