-- MLA prefill attention: keys and values are expanded to all heads, with one key-value head per query head
select
  layers.deployment_id,
  shapes.step_shape_id,
  layers.layer_kind || '.mla_prefill' as call,
  'mla_prefill' as name,
  layers.gpu,
  layers.engine,
  layers.count,
  shapes.prefill_requests as batch,
  shapes.prefill_tokens as new_tokens,
  shapes.prefill_cached as cached_tokens,
  layers.heads,
  layers.head_dim as qk_head_dim,
  models.v_head_dim,
  settings.kv_cache_dtype as format,
  settings.dtype as math,
  batch * visible_pairs(new_tokens, cached_tokens, 0) as visible_pairs,
  mla_prefill_flops(layers.heads, qk_head_dim, models.v_head_dim, visible_pairs) as flops,
  mla_prefill_bytes(batch, new_tokens, cached_tokens, layers.heads, qk_head_dim, models.v_head_dim) as bytes
from sharded_layers as layers
join step_shapes as shapes using (deployment_id)
join deployment_settings as settings using (deployment_id)
join models on models.model = settings.model
where layers.attention = 'mla' and shapes.prefill_requests > 0
