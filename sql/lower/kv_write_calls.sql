-- Writes of the step's keys and values to the paged cache, where the engine launches a separate kernel
with layers as (
  select
    sharded_layers.*,
    case when sharded_layers.attention in ('mla', 'sparse') then models.kv_lora_rank + models.qk_rope_head_dim
         when sharded_layers.attention = 'compressed' then sharded_layers.head_dim
         else sharded_layers.kv_heads * (sharded_layers.head_dim + sharded_layers.value_dim) end as columns,
    formats.weight_bits / 8 as kv_bytes
  from sharded_layers
  join deployment_settings as settings using (deployment_id)
  join models on models.model = settings.model
  join number_formats as formats on formats.format = settings.kv_cache_dtype
  join engine_fusions as fusions on fusions.engine = settings.engine and fusions.operation = 'kv_write' and fusions.launched
  where sharded_layers.attention in ('full', 'sliding', 'selected', 'mla', 'sparse', 'compressed')
)
select
  layers.deployment_id,
  step_tokens.step_shape_id,
  layers.layer_kind || '.kv_write' as call,
  'kv_write' as name,
  layers.gpu,
  layers.engine,
  layers.count,
  step_tokens.tokens as rows,
  layers.columns,
  0.0 as flops,
  kv_write_bytes(step_tokens.tokens, layers.columns, layers.kv_bytes) as bytes
from layers
join step_tokens using (deployment_id)
where step_tokens.tokens > 0
