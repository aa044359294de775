-- MLA decode: all heads read one latent vector per cached token, queries and outputs stay in the latent space;
-- draft tokens count as additional heads
with layers as (
  select sharded_layers.* replace (heads * query_tokens as heads)
  from sharded_layers join (select deployment_id, query_tokens from deployment_settings) using (deployment_id)
)
select
  layers.deployment_id,
  shapes.step_shape_id,
  layers.layer_kind || '.mla_decode' as call,
  'mla_decode' as name,
  layers.gpu,
  layers.engine,
  layers.count,
  shapes.decode_requests as batch,
  shapes.decode_context as context,
  layers.heads,
  models.kv_lora_rank,
  models.qk_rope_head_dim as rope_dim,
  settings.kv_cache_dtype as format,
  settings.dtype as math,
  2.0 * shapes.decode_requests * layers.heads * (2 * models.kv_lora_rank + models.qk_rope_head_dim) * (shapes.decode_context + 1) as flops,
  shapes.decode_requests * ((shapes.decode_context + 1) * (models.kv_lora_rank + models.qk_rope_head_dim) * formats.weight_bits / 8
    + 2.0 * layers.heads * (2 * models.kv_lora_rank + models.qk_rope_head_dim)) as bytes
from layers
join step_shapes as shapes using (deployment_id)
join deployment_settings as settings using (deployment_id)
join models on models.model = settings.model
join number_formats as formats on formats.format = settings.kv_cache_dtype
where layers.attention = 'mla' and shapes.decode_requests > 0 and shapes.decode_context is not null
