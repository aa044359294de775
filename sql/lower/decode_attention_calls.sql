-- Softmax attention of one new token per request over its cached keys and values, in launches of its own, with grouped queries and sliding windows;
-- draft tokens count as additional heads, because kernels put all queries of a key-value head into one tile
with batches as (
  select
    layers.* replace (layers.heads * settings.query_tokens as heads, (layers.head_dim + layers.value_dim) // 2 as head_dim),
    shapes.step_shape_id, settings.dtype, settings.kv_cache_dtype,
    formats.weight_bits / 8 as kv_bytes,
    shapes.decode_requests as batch,
    case when layers.attention = 'full' then shapes.decode_context else shapes.decode_window_context end as context
  from sharded_layers as layers
  join step_shapes as shapes using (deployment_id)
  join deployment_settings as settings using (deployment_id)
  join number_formats as formats on formats.format = settings.kv_cache_dtype
  left join kernel_implementations as known on known.family = 'decode_attention'
    and known.implementation = settings.attention_backend and known.coefficient = 'joins_prompts'
  where layers.attention in ('full', 'sliding', 'selected') and shapes.decode_requests > 0
    and not joins_prompts(known.value, shapes.part, shapes.prefill_tokens, settings.query_tokens)
)
select
  deployment_id,
  step_shape_id,
  layer_kind || '.decode_attention' as call,
  'decode_attention' as name,
  gpu,
  engine,
  count,
  batch,
  context,
  heads,
  kv_heads,
  head_dim,
  "window",
  kv_cache_dtype as format,
  dtype as math,
  attention_flops(heads, head_dim, batch * keys_seen(context, "window")) as flops,
  decode_attention_bytes(batch, context, "window", heads, kv_heads, head_dim, kv_bytes) as bytes
from batches
where context is not null
