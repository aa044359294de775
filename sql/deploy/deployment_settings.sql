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
)
select
  deployments.deployment_id,
  deployments.model,
  deployments.gpu,
  deployments.tp,
  deployments.pp,
  deployments.dp,
  deployments.ep,
  deployments.tp * deployments.dp // deployments.ep as moe_tp,
  deployments.ep as moe_ep,
  deployments.engine,
  coalesce(deployments.tier, 'auto') as tier,
  deployments.moe_backend,
  formats.dtype,
  case when coalesce(formats.attention_format, 'bf16') in ('bf16', 'fp16', 'fp32') then formats.dtype else formats.attention_format end as attention_format,
  case when coalesce(formats.ffn_format, 'bf16') in ('bf16', 'fp16', 'fp32') then formats.dtype else formats.ffn_format end as ffn_format,
  case when coalesce(formats.expert_format, 'bf16') in ('bf16', 'fp16', 'fp32') then formats.dtype else formats.expert_format end as expert_format,
  formats.activation_scales,
  coalesce(deployments.kv_cache_dtype, case when formats.kv_cache_format = 'fp8' then 'fp8' else formats.dtype end) as kv_cache_dtype,
  least(coalesce(deployments.max_model_len, models.max_positions), 1048576)::bigint as max_model_len,
  coalesce(deployments.max_num_seqs, preset.max_num_seqs) as max_num_seqs,
  coalesce(deployments.max_num_batched_tokens, preset.max_num_batched_tokens) as max_num_batched_tokens,
  -- default of a long prompt with concurrent partial prefills: 4 % of max_model_len, as in vLLM's SchedulerConfig
  coalesce(
    deployments.long_prefill_token_threshold,
    case when greatest(deployments.max_num_partial_prefills, deployments.max_long_partial_prefills) > 1
         then greatest(least(coalesce(deployments.max_model_len, models.max_positions), 1048576) * 4 // 100, 1) end,
    preset.long_prefill_token_threshold
  )::bigint as long_prefill_token_threshold,
  coalesce(deployments.block_size, preset.block_size) as block_size,
  coalesce(deployments.gpu_memory_utilization, preset.gpu_memory_utilization) as gpu_memory_utilization,
  deployments.kv_cache_tokens,
  coalesce(deployments.enable_chunked_prefill, preset.enable_chunked_prefill) as enable_chunked_prefill,
  coalesce(deployments.enable_prefix_caching, preset.enable_prefix_caching) as enable_prefix_caching,
  coalesce(deployments.async_scheduling, preset.async_scheduling) as async_scheduling,
  coalesce(deployments.scheduling, preset.scheduling) as scheduling,
  -- a static batch is prefilled before it decodes, and keeps its blocks until it finishes
  case when deployments.scheduling = 'static' then 'prefill_first' else coalesce(deployments.prefill_policy, preset.prefill_policy) end as prefill_policy,
  coalesce(deployments.scheduling_policy, preset.scheduling_policy) as scheduling_policy,
  coalesce(deployments.capacity_policy, case when deployments.scheduling = 'static' then 'guaranteed_no_evict' else preset.capacity_policy end) as capacity_policy,
  coalesce(deployments.preemption_policy, preset.preemption_policy) as preemption_policy,
  coalesce(deployments.schedule_conservativeness, preset.schedule_conservativeness) as schedule_conservativeness,
  coalesce(deployments.batch_wait_timeout_iters, preset.batch_wait_timeout_iters) as batch_wait_timeout_iters,
  coalesce(deployments.batch_wait_timeout_ms, preset.batch_wait_timeout_ms) as batch_wait_timeout_ms,
  coalesce(deployments.batch_wait_max_tokens_ratio, preset.batch_wait_max_tokens_ratio) as batch_wait_max_tokens_ratio,
  coalesce(deployments.scheduler_recv_interval, preset.scheduler_recv_interval) as scheduler_recv_interval,
  coalesce(deployments.max_num_partial_prefills, preset.max_num_partial_prefills) as max_num_partial_prefills,
  coalesce(deployments.max_long_partial_prefills, preset.max_long_partial_prefills) as max_long_partial_prefills,
  coalesce(deployments.num_speculative_tokens, 0) as num_speculative_tokens,
  coalesce(deployments.draft_acceptance_rate, 0) as draft_acceptance_rate,
  case when deployments.num_speculative_tokens > 0 then coalesce(deployments.speculative_method, case when deployments.draft_deployment_id is null then 'ngram' else 'draft_model' end) end as speculative_method,
  case when deployments.num_speculative_tokens > 0 then deployments.draft_deployment_id end as draft_deployment_id,
  1 + coalesce(deployments.num_speculative_tokens, 0) as query_tokens,
  preset.expert_exchange,
  case when coalesce(deployments.enforce_eager, false) then 0 else coalesce(deployments.max_cudagraph_capture_size, preset.graph_max_tokens) end as graph_max_tokens
from deployments
join formats using (deployment_id)
join preset using (deployment_id)
join models on models.model = deployments.model
