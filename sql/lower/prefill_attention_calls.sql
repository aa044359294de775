-- Causal softmax attention of new tokens over cached and new tokens, with grouped queries and sliding windows
with chunks as (
  select
    -- keys and values of different width count as of their mean: products and bytes are the same
    layers.* replace ((layers.head_dim + layers.value_dim) // 2 as head_dim), shapes.step_shape_id, settings.dtype, settings.kv_cache_dtype,
    formats.weight_bits / 8 as kv_bytes,
    shapes.prefill_requests as batch,
    shapes.prefill_tokens as new_tokens,
    shapes.prefill_cached as cached_tokens
  from sharded_layers as layers
  join step_shapes as shapes using (deployment_id)
  join deployment_settings as settings using (deployment_id)
  join number_formats as formats on formats.format = settings.kv_cache_dtype
  where layers.attention in ('full', 'sliding', 'selected') and shapes.prefill_requests > 0
)
select
  deployment_id,
  step_shape_id,
  layer_kind || '.prefill_attention' as call,
  'prefill_attention' as name,
  gpu,
  engine,
  count,
  batch,
  new_tokens,
  cached_tokens,
  heads,
  kv_heads,
  head_dim,
  "window",
  kv_cache_dtype as format,
  dtype as math,
  batch * visible_pairs(new_tokens, cached_tokens, "window") as visible_pairs,
  attention_flops(heads, head_dim, visible_pairs) as flops,
  prefill_attention_bytes(batch, new_tokens, cached_tokens, "window", heads, kv_heads, head_dim, kv_bytes) as bytes
from chunks
