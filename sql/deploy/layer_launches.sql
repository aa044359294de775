-- One row per deployment, kind of layer and launch inside one of its nodes: which kernels the engine's version launches there
with nodes as (
  select deployment_id, layer_kind, count, hidden, experts, top_k,
         case when attention in ('mla', 'sparse') then 'mla' else attention end as node
  from sharded_layers
  union all
  select deployment_id, layer_kind, count, hidden, experts, top_k, 'experts' from sharded_layers where ffn = 'moe'
  union all
  select deployment_id, layer_kind, count, hidden, experts, top_k, 'shared_experts' from sharded_layers where ffn = 'moe' and shared_intermediate > 0
  union all
  -- products of FP8 weights with static scales, of attention and of dense layers
  select deployment_id, layer_kind, count * (case when settings.attention_format = 'fp8' then 2 else 0 end
         + case when settings.ffn_format = 'fp8' and models.experts is null then 2 else 0 end), models.hidden, null, null, 'fp8_product'
  from sharded_layers
  join deployment_settings as settings using (deployment_id)
  join models on models.model = settings.model
  where settings.activation_scales = 'static'
  union all
  -- linear layers with adapters, or what they join, and once a step the mapping of tokens to adapters
  select deployment_id, layer_kind, sum(count * case when adapter_slices_apart then joined else 1 end)::bigint, null, null, null, 'adapted'
  from layer_weights
  join adapted_layers using (name)
  join deployment_settings using (deployment_id)
  where max_loras > 0
  group by deployment_id, layer_kind
  union all
  select deployment_id, 'model', 1, null, null, null, 'adapter_mapping' from deployment_settings where max_loras > 0
  union all
  -- each pass of a model that drafts token by token, and those whose vocabulary is a part of the target model's
  select deployment_id, 'model', coalesce(speculative_num_steps, num_speculative_tokens), null, null, null, 'draft_pass'
  from deployment_settings where draft_deployment_id is not null and not drafts_in_block
  union all
  select deployment_id, 'model', coalesce(speculative_num_steps, num_speculative_tokens), null, null, null, 'draft_vocabulary'
  from deployment_settings
  join draft_acceptance_rates as methods on methods.method = speculative_method and methods.draft_vocab is not null
  where draft_deployment_id is not null and not drafts_in_block
)
select
  nodes.deployment_id,
  nodes.layer_kind,
  nodes.node,
  known.launch,
  nodes.count as nodes,
  nodes.count * known.kernels as count,
  nodes.count * known.operations as operations,
  not known.swept and known.mode = 'any' as apart,
  known.swept,
  case known.columns when 'experts' then nodes.experts when 'top_k' then nodes.top_k when 'hidden' then nodes.hidden when 'two_hidden' then nodes.hidden
    when 'rank' then settings.max_lora_rank end as columns,
  coalesce(known.columns = 'two_hidden', false) as two_inputs,
  nodes.count * coalesce(known.host_us, 0) as host_us
from nodes
join deployment_settings as settings using (deployment_id)
join deployments on deployments.deployment_id = nodes.deployment_id
join gpus on gpus.gpu = settings.gpu
join node_launches as known on known.engine = settings.engine and known.node = nodes.node
  and is_of_versions(deployments.engine_version, known.from_version, known.before_version)
where nodes.count > 0
  and is_listed(gpus.compute_capability, known.capabilities)
  and is_listed(settings.expert_format, known.formats)
  and is_listed(coalesce(settings.moe_backend, 'default'), known.implementations)
