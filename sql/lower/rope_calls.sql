-- In-place rotary embedding of queries and keys, including the KV write where the engine fuses the two
with layers as (
  select
    sharded_layers.*,
    case when sharded_layers.attention in ('mla', 'sparse') then (sharded_layers.heads + 1) * models.qk_rope_head_dim
         when models.rope_layers = 'sliding' and sharded_layers.attention = 'full' then 0
         else (sharded_layers.heads + sharded_layers.kv_heads) * models.rotary_dim end as columns,
    case when sharded_layers.attention in ('mla', 'sparse') then models.kv_lora_rank + models.qk_rope_head_dim
         when sharded_layers.attention = 'compressed' then sharded_layers.head_dim
         else sharded_layers.kv_heads * (sharded_layers.head_dim + sharded_layers.value_dim) end as kv_columns,
    formats.weight_bits / 8 as kv_bytes,
    writes.launched as kv_write_apart
  from sharded_layers
  join deployment_settings as settings using (deployment_id)
  join models on models.model = settings.model
  join number_formats as formats on formats.format = settings.kv_cache_dtype
  join engine_fusions as rope on rope.engine = settings.engine and rope.operation = 'rope' and rope.launched
  join engine_fusions as writes on writes.engine = settings.engine and writes.operation = 'kv_write'
  where sharded_layers.attention in ('full', 'sliding', 'selected', 'mla', 'sparse', 'compressed')
)
select
  layers.deployment_id,
  step_tokens.step_shape_id,
  layers.layer_kind || '.rope' as call,
  'rope' as name,
  layers.gpu,
  layers.engine,
  layers.count,
  step_tokens.tokens as rows,
  layers.columns,
  rope_flops(step_tokens.tokens, layers.columns) as flops,
  rope_bytes(step_tokens.tokens, layers.columns)
    + case when kv_write_apart then 0.0 else kv_write_bytes(step_tokens.tokens, layers.kv_columns, layers.kv_bytes) end as bytes
from layers
join step_tokens using (deployment_id)
where step_tokens.tokens > 0 and (layers.columns > 0 or not kv_write_apart)
