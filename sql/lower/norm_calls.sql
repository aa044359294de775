-- RMS norms over the residual width (fused with the residual addition), query and key heads, and MLA's compressed vectors, and the final norm
with layers as (
  select sharded_layers.*, models.norms_per_layer, models.qk_norm, models.q_lora_rank, models.kv_lora_rank,
         models.attention_output_gate, models.draft_inputs, models.architecture
  from sharded_layers
  join deployment_settings as settings using (deployment_id)
  join models on models.model = settings.model
),
norms as (
  select deployment_id, layer_kind, 'residual_norm' as name, count * norms_per_layer as count, 1 as rows_per_token,
         hidden as columns, true as with_residual, coalesce(fused_norm_tokens, 0) as above_tokens
  from layers where norms_per_layer > 0
  union all
  -- over all heads of several ranks: squares first, and the norm after their all-reduce; of queries and keys together or apart
  select layers.deployment_id, layer_kind, 'qk_norm', count * case when qk_norm = 'full' and tp > 1 then case when parts.launched then 4 else 2 end else 1 end,
         case qk_norm when 'head' then heads + kv_heads else 1 end,
         case qk_norm when 'head' then head_dim else (heads + kv_heads) * head_dim // case when parts.launched then 2 else 1 end end, false, 0
  from layers
  join engine_fusions as fusions on fusions.engine = layers.engine and fusions.operation = 'qk_norm' and fusions.launched
  left join engine_fusions as parts on parts.engine = layers.engine and parts.operation = 'qk_norm_apart' and parts.architecture = layers.architecture
   and is_of_versions(layers.engine_version, parts.from_version, parts.before_version)
  where qk_norm <> 'none' and attention in ('full', 'sliding', 'selected')
  union all
  select deployment_id, layer_kind, 'q_a_norm', count, 1, q_lora_rank, false, 0
  from layers where attention in ('mla', 'sparse', 'compressed') and q_lora_rank is not null
  union all
  select deployment_id, layer_kind, 'kv_a_norm', count, 1, kv_lora_rank, false, 0 from layers where attention in ('mla', 'sparse', 'compressed')
  union all
  select deployment_id, 'model', 'final_norm', 1, 1, any_value(hidden), true, 0 from layers group by deployment_id
  union all
  select deployment_id, 'model', 'draft_input_norm', any_value(draft_inputs), 1, any_value(hidden), false, 0 from layers
  where draft_inputs > 0 group by deployment_id
)
select
  norms.deployment_id,
  step_tokens.step_shape_id,
  norms.layer_kind || '.' || norms.name as call,
  norms.name,
  settings.gpu,
  settings.engine,
  norms.count,
  step_tokens.tokens * norms.rows_per_token as rows,
  norms.columns,
  norm_flops(step_tokens.tokens * norms.rows_per_token, norms.columns) as flops,
  norm_bytes(step_tokens.tokens * norms.rows_per_token, norms.columns, norms.with_residual) as bytes
from norms
join deployment_settings as settings using (deployment_id)
join step_tokens using (deployment_id)
where step_tokens.tokens > norms.above_tokens
