-- Causal softmax attention of new tokens over cached and new ones, with grouped queries and sliding windows
with chunks as (
  select
    layers.*, shapes.step_shape_id, settings.dtype, settings.kv_cache_dtype,
    formats.weight_bits / 8 as kv_bytes,
    shapes.prefill_requests as batch,
    shapes.prefill_tokens as new_tokens,
    shapes.prefill_cached as cached_tokens,
    case when layers."window" > 0 then least(greatest(layers."window" - shapes.prefill_cached, 0), shapes.prefill_tokens)
         else shapes.prefill_tokens end as growing
  from sharded_layers as layers
  join step_shapes as shapes using (deployment_id)
  join deployment_settings as settings using (deployment_id)
  join number_formats as formats on formats.format = settings.kv_cache_dtype
  where layers.attention in ('full', 'sliding') and shapes.prefill_requests > 0
),
pairs as (
  -- each query sees one key more than the previous one, until the window is full
  select
    *,
    growing * cached_tokens + growing * (growing + 1) / 2 + (new_tokens - growing) * "window" as visible_pairs,
    -- a window includes the query's own token
    case when "window" > 0 then least(cached_tokens, "window" - 1) else cached_tokens end as cached_read
  from chunks
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
  batch * visible_pairs as visible_pairs,
  4.0 * batch * heads * head_dim * visible_pairs as flops,
  batch * (4.0 * new_tokens * heads * head_dim + 4.0 * new_tokens * kv_heads * head_dim + 2.0 * cached_read * kv_heads * head_dim * kv_bytes) as bytes
from pairs
