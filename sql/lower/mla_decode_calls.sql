-- MLA decode attention: all heads read one latent vector per cached token, and queries and outputs stay in the latent space;
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
  latent_flops(batch * (context + 1), layers.heads, models.kv_lora_rank, rope_dim) as flops,
  latent_bytes(batch * (context + 1), batch, layers.heads, models.kv_lora_rank, rope_dim, formats.weight_bits / 8) as bytes
from layers
join step_shapes as shapes using (deployment_id)
join deployment_settings as settings using (deployment_id)
join models on models.model = settings.model
join number_formats as formats on formats.format = settings.kv_cache_dtype
where layers.attention = 'mla' and shapes.decode_requests > 0 and shapes.decode_context is not null
