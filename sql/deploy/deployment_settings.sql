-- Every flag of each deployment with the engine's defaults filled in, and the number format of each class of weights
with formats as (
  select
    deployments.deployment_id,
    coalesce(deployments.dtype, case when models.dtype = 'fp32' then 'bf16' else models.dtype end) as weights_dtype,
    format_in(case when quantizations.quantization is null then models.attention_format else quantizations.attention_format end, weights_dtype)
      as attention_format,
    format_in(case when quantizations.quantization is null then models.ffn_format else quantizations.ffn_format end, weights_dtype) as ffn_format,
    format_in(case when quantizations.quantization is null then models.expert_format else quantizations.expert_format end, weights_dtype)
      as expert_format,
    coalesce(quantizations.activation_scales, models.activation_scales) as activation_scales,
    models.kv_cache_format
  from deployments
  join models on models.model = deployments.model
  left join quantizations on quantizations.quantization = deployments.quantization
),
presets as (
  select
    presets.* exclude (assumed, presets_row, sizes_row, graph_max_tokens),
    memory.gpu_memory_utilization,
    memory.captured_batch * case when graph_sizes_of = 'requests' then query_tokens else 1 end as graph_max_tokens
  from deployment_presets as presets join memory_defaults as memory using (deployment_id)
),
-- each limit as stated by the deployment, otherwise from its engine's presets
limits as (
  select deployment_id, any_value(columns(* exclude (deployment_id, level)) order by level)
  from (select 0 as level, * from deployments union all by name select 1 as level, * from presets)
  group by deployment_id
),
-- sliding-window layers with a separate KV pool
pools as (
  select deployments.deployment_id, known.swa_full_tokens_ratio
  from deployments
  join models on models.model = deployments.model
  join gpus on gpus.gpu = deployments.gpu
  join engine_window_pools as known
    on known.engine = deployments.engine and known.architecture = models.architecture
   and is_of_versions(deployments.engine_version, known.from_version, known.before_version)
  where not coalesce(list_contains(string_split(known.unlike_capabilities, ' '), gpus.compute_capability), false)
    and (known.with_drafts or coalesce(deployments.num_speculative_tokens, 0) = 0)
),
-- what the engines choose kernels by, beside the GPU and the format; what rules out most kernels comes first
needs as (
  select
    deployment_id,
    [
      case when formats.expert_format = 'fp8_block' and (
        select bool_or(intermediate * deployments.ep % (coalesce(models.weight_block, 128) * deployments.tp * deployments.dp) <> 0) from model_layers as layers
        where layers.model = models.model and layers.ffn = 'moe') then 'cut_blocks' end,
      case when exists (select 1 from model_layers as layers where layers.model = models.model and layers.attention = 'selected')
        then 'selected_blocks' end,
      case when models.attention_sinks then 'sinks' end,
      case when (select max(head_dim) > 256 and min(head_dim) < max(head_dim) from model_layers as layers
                 where layers.model = models.model and layers.attention in ('full', 'sliding')) then 'head_sizes' end,
      case when coalesce(deployments.kv_cache_dtype, formats.kv_cache_format) = 'fp8' then 'fp8_kv' end,
      case when not models.ffn_gated then 'not_gated' end,
      case when deployments.ep > 1 then 'expert_parallel' end
    ] as words
  from deployments
  join formats using (deployment_id)
  join models on models.model = deployments.model
),
-- kernels that the engine's sources name for its version
backends as (
  select
    deployment_id,
    any_value(known.implementation order by known.needs is null, list_position(words, known.needs)) filter (layer = 'attention') as attention_backend,
    any_value(known.implementation order by known.needs is null, list_position(words, known.needs)) filter (layer = 'experts') as moe_backend,
    any_value(known.implementation order by known.needs is null, list_position(words, known.needs)) filter (layer = 'latent') as latent_backend
  from deployments
  join formats using (deployment_id)
  join needs using (deployment_id)
  join gpus on gpus.gpu = deployments.gpu
  join engine_backends as known on known.engine = deployments.engine
    and is_of_versions(deployments.engine_version, known.from_version, known.before_version)
  where (known.capabilities = '*' or list_contains(string_split(known.capabilities, ' '), gpus.compute_capability))
    and (known.format = '*' or known.format = case when formats.expert_format = 'fp16' then 'bf16' else formats.expert_format end)
    and (known.needs is null or list_contains(words, known.needs))
  group by deployment_id
),
-- how the engine's version runs adapters
adapting as (
  select deployment_id, known.*
  from deployments join engine_adapters as known using (engine)
  where enable_lora
  qualify row_number() over (
    partition by deployment_id order by holding_version(from_version, engine_version) desc nulls last, version_numbers(from_version)) = 1
),
-- source of draft tokens; null: none
proposing as (
  select
    deployment_id,
    case when num_speculative_tokens > 0 then coalesce(speculative_method, case when draft_deployment_id is null then 'ngram'
      else 'draft_model' end) end as method
  from limits
)
select
  limits.* exclude (
    quantization, enforce_eager, max_cudagraph_capture_size, async_with_drafts, draft_max_num_seqs, seats_per_stage,
    ranks_divide_budget, rank_conservativeness, graph_sizes_of, graph_tokens_per_seat, group_gpus, api_server_count, endpoint, request_delay_ms, cpu, kv_tier,
    kv_write_policy, sampling, enable_lora, max_cpu_loras
  ) replace (
    case when coalesce(limits.enable_lora, false) then limits.max_loras else 0 end as max_loras,
    coalesce(limits.tier, 'auto') as tier,
    coalesce(limits.attention_backend, backends.attention_backend) as attention_backend,
    coalesce(limits.moe_backend, backends.moe_backend) as moe_backend,
    formats.weights_dtype as dtype,
    coalesce(limits.kv_cache_dtype, case when formats.kv_cache_format = 'fp8' then 'fp8' else formats.weights_dtype end) as kv_cache_dtype,
    coalesce(limits.max_model_len, least(models.max_positions, 1048576))::bigint as max_model_len,
    -- default threshold of a long prompt with concurrent partial prefills: 4 % of max_model_len, as in vLLM's SchedulerConfig
    coalesce(
      deployments.long_prefill_token_threshold,
      case when greatest(deployments.max_num_partial_prefills, deployments.max_long_partial_prefills) > 1
           then greatest(least(coalesce(limits.max_model_len, models.max_positions), 1048576) * 4 // 100, 1) end,
      limits.long_prefill_token_threshold
    )::bigint as long_prefill_token_threshold,
    -- a static batch finishes prefill before it decodes, and keeps its blocks until it finishes
    case when deployments.scheduling = 'static' then 'prefill_first' else limits.prefill_policy end as prefill_policy,
    case when deployments.scheduling = 'static' then coalesce(deployments.capacity_policy, 'guaranteed_no_evict') else limits.capacity_policy end
      as capacity_policy,
    limits.schedule_conservativeness * case when lock_step then rank_conservativeness else 1 end as schedule_conservativeness,
    coalesce(limits.num_speculative_tokens, 0) as num_speculative_tokens,
    -- by position: the constant rate at which as many are accepted at the last one
    case when limits.num_speculative_tokens > 0
         then coalesce(limits.draft_acceptance_rate, list_last(positions.shares) ** (1 / len(positions.shares)), usual.acceptance_rate)
         else 0 end as draft_acceptance_rate,
    proposing.method as speculative_method,
    case when limits.num_speculative_tokens > 0 then limits.draft_deployment_id end as draft_deployment_id,
    -- TensorRT-LLM gathers tokens unless there are more expert ranks than experts per token
    case when deployments.expert_exchange is null and limits.engine = 'trtllm' and limits.ep <= coalesce(models.top_k, 0) then 'all_gather'
         else limits.expert_exchange end as expert_exchange,
    coalesce(deployments.windows_freed, pools.deployment_id is not null or limits.windows_freed) as windows_freed,
    case when coalesce(deployments.windows_freed, true) and pools.deployment_id is not null
         then coalesce(limits.swa_full_tokens_ratio, pools.swa_full_tokens_ratio) end as swa_full_tokens_ratio,
    case when coalesce(limits.enforce_eager, false) or coalesce(adapting.graphs = 'none', false) then 0 else limits.graph_max_tokens end as graph_max_tokens,
    -- what a deployment states holds everywhere
    case when deployments.prompt_graphs is null and adapting.graphs <> 'as_without' then 'none'
         when deployments.prompt_graphs is null and limits.prompt_graphs = 'chunk'
              and (gpus.vendor <> 'nvidia' or limits.pp > 1 or lock_step or limits.num_speculative_tokens > 0
                or coalesce(limits.kv_tier, 'none') <> 'none'
                   or coalesce(models.kv_lora_rank, models.index_top_k, models.linear_key_heads) is not null)
         then 'none' else limits.prompt_graphs end as prompt_graphs
  ),
  limits.tp * limits.dp // limits.ep as moe_tp,
  limits.ep as moe_ep,
  case limits.sampling when 'random' then 'torch_draw' when 'top_p' then deployment_samplers.sampler end as sampler,
  backends.latent_backend,
  formats.attention_format,
  formats.ffn_format,
  formats.expert_format,
  formats.activation_scales,
  usual.method is not null and limits.draft_acceptance_rate is null and limits.draft_acceptance is null as draft_acceptance_assumed,
  coalesce(usual.passes = 'block', false) as drafts_in_block,
  case when adapting.engine is null then 0
       else greatest(limits.max_loras, coalesce(limits.max_cpu_loras, case adapting.host_memory when 'all' then 256 else 0 end)) end as adapter_places,
  coalesce(adapting.slices_apart, false) as adapter_slices_apart,
  coalesce(adapting.gathers, false) as adapter_gathers,
  coalesce(adapting.head_waits, false) as adapter_head_waits,
  coalesce(adapting.unused, 'skipped') as adapters_unused
from limits
join deployments using (deployment_id)
join formats using (deployment_id)
join proposing using (deployment_id)
join models on models.model = limits.model
join gpus on gpus.gpu = limits.gpu
left join pools using (deployment_id)
left join adapting using (deployment_id)
left join backends using (deployment_id)
left join deployment_samplers using (deployment_id)
left join draft_acceptance_rates as usual on usual.method = proposing.method
left join (select deployment_id, string_split(draft_acceptance, ',')::double[] as shares from deployments) as positions using (deployment_id)
